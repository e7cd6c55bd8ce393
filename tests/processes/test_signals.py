"""What these tests rely on: children end by signals, however the tests themselves were started."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.harness.signals import INHERITED
from tests.harness.tree import ROOT

STARTED = """
import signal, subprocess, sys
from tests.harness.signals import INHERITED, let_children_have_defaults
for number in INHERITED:
    signal.signal(number, signal.SIG_IGN)
let_children_have_defaults()
signal.raise_signal(int(sys.argv[1]))
print("goes on")
child = "import signal, sys; signal.raise_signal(int(sys.argv[1]))"
sys.exit(subprocess.run([sys.executable, "-c", child, sys.argv[1]]).returncode != 0)
"""


@pytest.mark.parametrize("number", INHERITED, ids=lambda number: number.name)
def test_a_child_does_not_ignore_what_its_parent_was_started_to_ignore(number: signal.Signals) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTED, str(int(number))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("goes on\n", 1), done.stderr
