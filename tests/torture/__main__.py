"""Torture our stores: `python -m tests.torture --minutes 30`."""

import sys

from lockstead.testing.torture.command import main
from tests.harness.signals import let_children_have_defaults
from tests.torture.arenas import ARENAS

if __name__ == "__main__":
    let_children_have_defaults()
    sys.exit(main(ARENAS.values()))
