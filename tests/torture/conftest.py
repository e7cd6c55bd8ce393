"""Slices of the torture are for `make soak`: they want the machine for themselves."""

import os

collect_ignore = [] if os.environ.get("LEASEHOLD_TORTURE") else ["test_nemesis.py", "test_torture.py"]
