"""That servers, networks and clocks can be harmed as a test wants them to be is for `make mutants`."""

import os

collect_ignore = [] if os.environ.get("LOCKSTEAD_TORTURE") else ["test_servers.py", "test_postgres_servers.py"]
