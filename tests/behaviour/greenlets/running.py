"""Programs in processes of their own, since gevent, eventlet and trio each want a whole one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[3]
PATIENCE = 60.0
"""How long a program that waits for conditions with deadlines of its own may take."""


def run(order: str, program: str, *args: str, when_ready: Callable[[], object] | None = None) -> None:
    """Run a program to its end and print what it wrote; once it writes `ready`, call that, and tell it.

    See `tests.behaviour.greenlets.programs` for the order.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.behaviour.greenlets.programs", order, program, *args],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    said = ""
    try:
        if when_ready is not None:
            while not said.endswith("ready\n") and (line := process.stdout.readline()):
                said += line
            when_ready()
        said += process.communicate("\n", timeout=PATIENCE)[0]
    except subprocess.TimeoutExpired as error:
        said += error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
        raise AssertionError(f"{program} {args} had not ended after {PATIENCE:g} s:\n{said}") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        process.stdin.close()
        process.stdout.close()
    assert process.returncode == 0, f"{program} {args} ended with {process.returncode}:\n{said}"
    print(said)
