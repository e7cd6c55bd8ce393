"""`python -m leasehold` is the `leasehold` command."""

from __future__ import annotations

import sys

from leasehold.cli import main

if __name__ == "__main__":
    sys.exit(main())
