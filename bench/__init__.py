"""One program per question. Times differ from machine to machine: compare the ratios."""
