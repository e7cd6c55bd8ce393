"""What takes long on a store that is an example only is for `make mutants`."""

import os

collect_ignore = [] if os.environ.get("LOCKSTEAD_TORTURE") else ["test_own_store.py"]
