"""Programs in processes of their own, since gevent, eventlet and trio each want a whole one."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from tests.harness.processes import Program

LONGEST = 60.0
"""How long a program that waits for conditions with deadlines of its own may take."""


def run(order: str, program: str, *args: str, when_ready: Callable[[], object] | None = None) -> None:
    """Run a program to its end and print what it wrote; once it writes `ready`, call that, and let the program go on.

    See `tests.behaviour.greenlets.programs` for the order.
    """
    process = Program("behaviour/greenlets/programs/__main__.py", order, program, *args, stderr=subprocess.STDOUT)
    said = ""
    try:
        if when_ready is not None:
            while not said.endswith("ready\n") and (line := process.read_line()):
                said += line
            when_ready()
        said += process.communicate("\n", LONGEST)[0]
    except subprocess.TimeoutExpired as error:
        said += error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
        raise AssertionError(f"{program} {args} had not ended after {LONGEST:g} s:\n{said}") from None
    finally:
        process.dispose()
    assert process.status == 0, f"{program} {args} ended with {process.status}:\n{said}"
    print(said)
