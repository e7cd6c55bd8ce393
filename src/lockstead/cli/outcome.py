"""The exit codes of the command, and the failure that carries one."""

from __future__ import annotations

import json
import sys
from enum import IntEnum
from typing import Any


class Exit(IntEnum):
    """Exit codes of lockstead's own; those above 64 are what sysexits.h and shells use for the same."""

    FREE = 1
    FINDINGS = 1
    BAD_INPUT = 2
    DAMAGED = 65
    STORE_UNREACHABLE = 69
    LEASE_LOST = 74
    BUSY = 75
    NOT_EXECUTABLE = 126
    NOT_FOUND = 127


SIGNALLED = 128
"""Added to the number of the signal that ended the command."""


class Failure(Exception):  # noqa: N818 - most kinds are expected outcomes, not errors of the program
    """Why the command ends with a code other than 0. `details` are for programs: they are printed with --json only."""

    def __init__(self, code: Exit, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details


def report(failure: Failure, *, as_json: bool) -> None:
    """Print a failure to stderr: a line for a person, or one JSON object for a program."""
    if as_json:
        fields = {
            "error": failure.code.name.lower(),
            "exit_code": int(failure.code),
            "message": failure.message,
            **failure.details,
        }
        print(json.dumps(fields), file=sys.stderr)
    else:
        print(f"lockstead: {failure.message}", file=sys.stderr)
