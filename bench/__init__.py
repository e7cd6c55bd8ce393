"""One program per question. Times differ from machine to machine: the ratios are what counts."""
