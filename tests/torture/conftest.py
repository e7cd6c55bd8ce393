"""That every fault does the harm it is named after is for `make mutants`."""

import os

collect_ignore = [] if os.environ.get("LOCKSTEAD_TORTURE") else ["test_nemesis.py"]
