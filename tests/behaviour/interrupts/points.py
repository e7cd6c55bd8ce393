"""Deliver a real signal at a chosen point of a piece of work.

CPython runs signal handlers only at some instructions: when a function is entered, after a call of something written in
C, at a jump backwards. A trace function that raises by itself would also raise where no signal ever does. So what is
traced here is only counted, and the signal is made pending by a function written in C, in which no handler runs: the
interpreter then takes it at the very next point at which it would have taken one that came from outside.
"""

from __future__ import annotations

import ctypes
import dis
import functools
import itertools
import signal
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

_CHECKED = {"CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD"}
"""Where handlers run, beside the first instruction of a function."""
_ARGUMENTS = (ctypes.py_object, ctypes.py_object, ctypes.py_object)
_LIBRARY = ctypes.CDLL(None)
# Trace functions without a frame of their own: one makes the signal pending, the other does nothing.
_trip: Any = functools.partial(
    ctypes.PYFUNCTYPE(None, ctypes.c_int, *_ARGUMENTS)(("raise", _LIBRARY)), int(signal.SIGUSR1)
)
_ignore: Any = ctypes.PYFUNCTYPE(None, *_ARGUMENTS)(("getpid", _LIBRARY))


def at_point(number: int, work: Callable[[], object], handler: Callable[[], object]) -> bool:
    """Run the work, and the handler in the middle of it; False if the work ended before that point. Main thread only.

    What the handler raises is raised from there.
    """
    left = number
    called = False

    def on_signal(*_: object) -> None:
        nonlocal called
        sys.settrace(None)
        if not called:
            called = True
            handler()

    def on_call(frame: FrameType, event: str, arg: object) -> Any:
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return count()

    def on_opcode(frame: FrameType, event: str, arg: object) -> Any:
        return count() if event == "opcode" and frame.f_lasti in _before_checks(frame.f_code) else on_opcode

    def count() -> Any:
        """Go on counting, or let the frame's next instruction be the one."""
        nonlocal left
        left -= 1
        if left >= 0:
            return on_opcode
        sys.settrace(_ignore)
        return _trip

    before = signal.signal(signal.SIGUSR1, on_signal)
    tracing = sys.gettrace()
    try:
        sys.settrace(on_call)
        try:
            work()
        finally:
            sys.settrace(tracing)
    finally:
        signal.signal(signal.SIGUSR1, before)
    return called


@functools.cache
def _before_checks(code: CodeType) -> frozenset[int]:
    """Find the instructions after which comes one where handlers run."""
    instructions = list(dis.get_instructions(code))
    return frozenset(first.offset for first, second in itertools.pairwise(instructions) if second.opname in _CHECKED)
