"""`lockstead doctor`: what is wrong with a store, or could take locks away."""

from __future__ import annotations

import json
import sys
from argparse import Namespace

from lockstead.cli.client import open_client
from lockstead.cli.outcome import Exit
from lockstead.cli.text import BOLD, escaped, styled, takes_colour

SIGNS = {"ok": "ok", "warning": "warning", "error": "ERROR"}


def doctor(arguments: Namespace) -> int:
    """Examine a store: 0 if it is sound, 1 if there is something to mend."""
    with open_client(arguments.url) as locks:
        findings = locks.examine()
    if arguments.json:
        print(json.dumps([finding._asdict() for finding in findings], indent=2))
    else:
        for finding in findings:
            sign = styled(SIGNS[finding.level].ljust(7), BOLD, wanted=takes_colour(sys.stdout))
            print(f"{sign}  {escaped(finding.subject)}  {escaped(finding.message)}")
    return 0 if all(finding.level == "ok" for finding in findings) else Exit.FINDINGS
