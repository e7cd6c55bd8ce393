"""Signals as a program finds them that was started in a terminal, however these tests were started.

`nohup`, and a shell that starts a job in the background, let signals be ignored. A child inherits that, but no handler:
it would not end by a signal that a test sends it.
"""

from __future__ import annotations

import signal

INHERITED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def let_children_have_defaults() -> None:
    """Replace what is ignored by a handler that does nothing. Main thread only.

    Children start with the default, while this process goes on as if it ignored the signal, as its starter wants.
    """
    for number in INHERITED:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _ignore)


def _ignore(*_: object) -> None:
    pass
