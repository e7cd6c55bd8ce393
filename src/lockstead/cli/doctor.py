"""`lockstead doctor`: check a store for anything that is wrong with it, or could lose locks."""

from __future__ import annotations

import json
import sys
from argparse import Namespace

from lockstead.cli.client import open_client
from lockstead.cli.outcome import Exit
from lockstead.cli.text import BOLD, styled, takes_colour
from lockstead.core.quoting import escaped

LABELS = {"ok": "ok", "warning": "warning", "error": "ERROR"}


def doctor(arguments: Namespace) -> int:
    """Print the findings about a store; return 0 if all are ok, 1 if any is a warning or an error."""
    with open_client(arguments.url) as locks:
        findings = locks.examine()
    if arguments.json:
        print(json.dumps([finding._asdict() for finding in findings], indent=2))
    else:
        for finding in findings:
            label = styled(LABELS[finding.level].ljust(7), BOLD, wanted=takes_colour(sys.stdout))
            print(f"{label}  {escaped(finding.subject)}  {escaped(finding.message)}")
    return 0 if all(finding.level == "ok" for finding in findings) else Exit.FINDINGS
