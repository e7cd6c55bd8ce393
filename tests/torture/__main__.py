"""Torture our stores: `python -m tests.torture --minutes 30`."""

import sys

from lockstead.testing.torture.command import main
from tests.torture.arenas import ARENAS

if __name__ == "__main__":
    sys.exit(main(ARENAS.values()))
