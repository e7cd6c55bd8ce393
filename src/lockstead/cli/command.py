"""Parse the command line, call the subcommand, turn errors into exit codes."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from signal import Signals

from lockstead.cli.outcome import SIGNALLED, Exit, Failure, report
from lockstead.cli.parser import build_parser, may_be_secret
from lockstead.errors import DamagedError, LockError, LockLostError, StoreError

MODULES = {
    "run": "run",
    "elect": "elect",
    "ls": "inspection",
    "show": "inspection",
    "release": "inspection",
    "demo": "demo",
    "doctor": "doctor",
    "migrate": "migrate",
}
"""The module of each subcommand, which has a function of its name. Imported on use: not every system can import all."""

RUNNING = ("run", "elect")
"""The subcommands that run the command after --."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, by default the process's own, and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in arguments[: arguments.index("--") if "--" in arguments else None]
    _prepare_output(as_json=as_json)
    try:
        code = _dispatch(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt:
        if sys.stdin is not None and sys.stdin.isatty():
            # A shell ends its script only if the process it waits for was ended by the signal itself.
            signal.signal(Signals.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), Signals.SIGINT)
        return SIGNALLED + Signals.SIGINT
    except BrokenPipeError:
        # Python would flush again at exit, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return SIGNALLED + Signals.SIGPIPE
    except (Failure, LockError) as error:
        failure = error if isinstance(error, Failure) else _failure(error)
        report(failure, as_json=as_json)
        return failure.code
    return code


def _prepare_output(*, as_json: bool) -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if as_json:
        logging.getLogger("lockstead").addHandler(logging.NullHandler())
    else:
        logging.basicConfig(format="lockstead: %(message)s")


def _dispatch(argv: list[str]) -> int:
    command_line: list[str] = []
    if argv and argv[0] in RUNNING and "--" in argv:
        end = argv.index("--")
        argv, command_line = argv[:end], argv[end + 1 :]
    parser = build_parser()
    if not argv:
        parser.print_help()
        return Exit.BAD_INPUT
    try:
        arguments, surplus = parser.parse_known_args(argv)
    except SystemExit:  # after --help or --version: everything else raises Failure
        return 0
    if arguments.command in RUNNING and not command_line:
        example = " ".join("…" if may_be_secret(word) else word for word in surplus) or "CMD"
        msg = f"put the command to run after --: lockstead {arguments.command} {arguments.name} -- {example}"
        raise Failure(Exit.BAD_INPUT, msg)
    if surplus:
        parser.error(f"unrecognized arguments: {' '.join(surplus)}")
    arguments.command_line = command_line
    function = getattr(import_module(f"lockstead.cli.{MODULES[arguments.command]}"), arguments.command)
    return int(function(arguments))


def _failure(error: LockError) -> Failure:
    if isinstance(error, DamagedError):
        code = Exit.DAMAGED
    elif isinstance(error, StoreError):
        code = Exit.STORE_UNREACHABLE
    elif isinstance(error, LockLostError):
        code = Exit.LEASE_LOST
    else:
        code = Exit.BAD_INPUT
    return Failure(code, str(error), **({"name": error.name} if error.name else {}))
