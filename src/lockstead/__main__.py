"""`python -m lockstead` is the `lockstead` command."""

from __future__ import annotations

import sys

from lockstead.cli import main

if __name__ == "__main__":
    sys.exit(main())
