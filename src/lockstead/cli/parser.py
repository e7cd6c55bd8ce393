"""The arguments of the command, and its help."""

from __future__ import annotations

import argparse
import json
import re
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any, NoReturn

from lockstead import __version__
from lockstead.cli.outcome import Exit, Failure

EXIT_CODES = """\
exit codes:
  0      success; for `run` and `elect`: the command's own code, which may be any
  1      `show`, `release`: the lock is free; `demo`: a check failed; `doctor`: a warning or an error was found
  2      bad input, or lockstead refuses it: the message says why and what to do
  65     the store has a record that cannot be read: the message says how to clear it
  69     the store cannot be reached, does not answer, or refuses the request
  74     the lease was lost, or about to end: the command was stopped
  75     busy: not acquired within --timeout
  126    the command cannot be executed
  127    the command was not found
  128+N  ended by signal N: 130 for Ctrl-C, 143 for SIGTERM
  141    the reader of the output closed its pipe
"""


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        if may_be_secret(message):  # after these words, argparse repeats the user's input
            message = re.sub(r"(value|choice|arguments): .*", r"\1: …", message, flags=re.DOTALL)
        raise Failure(Exit.BAD_INPUT, f"{message} (see {self.prog} --help)")


def may_be_secret(text: str) -> bool:
    """Return whether a text may contain a misplaced URL, and in it a password."""
    return any(mark in text for mark in ("://", "@", "password="))


def build_parser() -> ArgumentParser:
    """Define every subcommand and option; the command after -- of `run` and `elect` is not parsed here."""
    style: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
    parser = _Parser(
        prog="lockstead",
        description="Distributed locks with leases, fences and fair waiting.",
        epilog=f"start here:\n  lockstead demo\n  lockstead run nightly-report -- ./report.sh\n\n{EXIT_CODES}",
        **style,
    )
    parser.add_argument("--version", action="version", version=f"lockstead {__version__}")
    subcommands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def add(name: str, summary: str, *, description: str, example: str, usage: str | None = None) -> ArgumentParser:
        subcommand = subcommands.add_parser(
            name, help=summary, description=description, epilog=f"example:\n  {example}", usage=usage, **style
        )
        subcommand.add_argument(
            "--url",
            type=_url,
            help="the store; default: $LOCKSTEAD_URL, else your own SQLite file (shared on this machine only)",
        )
        subcommand.add_argument(
            "--json", action="store_true", help="print results as JSON, and errors as one JSON object on stderr"
        )
        return subcommand

    run = add(
        "run",
        "run a command while holding a lock",
        usage="lockstead run NAME [options] -- CMD [ARG ...]",
        description=(
            "Acquire a lock, run a command, release the lock, exit with the command's code.\n\n"
            "The lease is renewed while the command runs. If it cannot be renewed, or is taken away, the command and\n"
            "its descendants are stopped before another client can hold the lock: SIGTERM, then SIGKILL.\n"
            "The command gets LOCKSTEAD_NAME and LOCKSTEAD_FENCE in its environment. SIGTERM, SIGINT, SIGHUP,\n"
            "SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to it; while waiting for the lock, the first four end the wait."
        ),
        example=f"lockstead run cron:backup --timeout 0 --at-least 60 -- ./backup.sh --full\n\n{EXIT_CODES}",
    )
    run.add_argument("name", metavar="NAME", help="the lock's name, e.g. order:42:ship, job:mail:17 or cron:backup")
    _add_lease_options(run)
    run.add_argument(
        "--timeout",
        type=float,
        metavar="S",
        help="how long to wait for the lock, in seconds; 0 does not wait (default: wait without limit)",
    )
    run.add_argument(
        "--at-least",
        type=float,
        default=0.0,
        metavar="S",
        help="keep the name reserved until S seconds after it was acquired, also if the command ended earlier or "
        "failed: a host whose clock is behind does not run it again",
    )
    run.add_argument(
        "--max-hold", type=float, metavar="S", help="stop the command before it has held the lock for S seconds"
    )

    elect = add(
        "elect",
        "leader election: run a command on one machine of many",
        usage="lockstead elect NAME [options] -- CMD [ARG ...]",
        description=(
            "Campaign for leadership, run a command once elected, and exit with the command's code when it ends.\n\n"
            "The holder of the lock NAME is the leader: see `lockstead show NAME`. If leadership is lost, or about\n"
            "to end because it cannot be renewed, the command and its descendants are stopped before another machine\n"
            "can lead, and `elect` campaigns again. During an outage of the store it keeps retrying.\n"
            "Environment and signals are as for `run`."
        ),
        example=f"lockstead elect scheduler --ttl 15 --metadata host=web-1 -- ./scheduler\n\n{EXIT_CODES}",
    )
    elect.add_argument("name", metavar="NAME", help="the election's name, e.g. scheduler")
    _add_lease_options(elect)

    ls = add(
        "ls",
        "list the locks that are held",
        description="List the locks that are held: holder, fence, since when, expiry, and how many clients wait.",
        example="lockstead ls cron:",
    )
    ls.add_argument("prefix", metavar="PREFIX", nargs="?", default="", help="only names that start with this")

    show = add(
        "show",
        "show the holder of a lock",
        description="Show the holder of a lock. Exits with 1 if the lock is free.",
        example="lockstead show cron:backup --json",
    )
    show.add_argument("name", metavar="NAME", help="the lock's name")

    release = add(
        "release",
        "take a lock away from its holder",
        description=(
            "Take a lock away from its holder and grant it to the next waiter. Exits with 1 if the lock was free.\n\n"
            "A dead holder's lock is free after the ttl; on SQLite on Linux at once. Use this when that is too long.\n"
            "A holder that is still running notices the loss at its next renewal; until then two work at once."
        ),
        example="lockstead release cron:backup --force",
    )
    release.add_argument("name", metavar="NAME", help="the lock's name")
    release.add_argument(
        "--force", action="store_true", help="do it; without this, only name the holder and explain the consequences"
    )

    migrate = add(
        "migrate",
        "create or update the lease table in PostgreSQL",
        description=(
            "Create or update the lease table and its SQL functions in a PostgreSQL database: in one transaction.\n"
            "It can be repeated, also while locks are held.\n\n"
            "With --print it only prints the SQL, for a migration of your own (Alembic, Django), and needs no --url."
        ),
        example="lockstead migrate --url postgresql://owner@db/app --grant app",
    )
    migrate.add_argument("--schema", help="the schema to create it in (default: the URL's ?schema=, else lockstead)")
    migrate.add_argument("--print", action="store_true", help="print the SQL and do nothing")
    migrate.add_argument(
        "--grant",
        action="extend",
        nargs="+",
        default=[],
        metavar="ROLE",
        help="grant these roles the rights to use it, and no more",
    )

    add(
        "doctor",
        "check a store for anything that could lose locks",
        description=(
            "Check the store's servers for anything that could take locks away from their holders: eviction, missing\n"
            "persistence, a missing migration, clocks that differ, Redlock nodes that are down or do not vote.\n"
            "Each finding is ok, warning or ERROR. Exits with 1 if there is a warning or an error."
        ),
        example="lockstead doctor --url redlock://redis-1,redis-2,redis-3",
    )

    demo = add(
        "demo",
        "watch processes share a lock while one crashes and one stalls",
        description=(
            "Let several processes increment one counter under one lock, kill one holder in the middle of its work,\n"
            "pause another, and check that every increment counts once. Takes about six seconds."
        ),
        example="lockstead demo --workers 6",
    )
    demo.add_argument("--workers", type=int, default=4, metavar="N", help="how many processes, 4 to 12 (default: 4)")
    return parser


def _url(text: str) -> str:
    if not text:
        msg = "it is empty: is the variable set that it is read from? Leave --url out for the default store"
        raise argparse.ArgumentTypeError(msg)
    return text


def _add_lease_options(subcommand: ArgumentParser) -> None:
    """Add the options that `run` and `elect` share."""
    subcommand.add_argument(
        "--ttl",
        type=float,
        default=30.0,
        metavar="S",
        help="lease duration in seconds: how long the lock stays held if this machine dies (default: 30)",
    )
    subcommand.add_argument(
        "--metadata",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="shown by `ls` and `show`; may be repeated, or be a JSON object",
    )
    subcommand.add_argument(
        "--grace",
        type=float,
        metavar="S",
        help="seconds between SIGTERM and SIGKILL (default: a quarter of the ttl, at most 10)",
    )


def parse_metadata(texts: Sequence[str]) -> dict[str, Any]:
    """Parse KEY=VALUE pairs, whose values are strings, and JSON objects; a later one wins."""
    metadata: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if text.lstrip().startswith("{"):
            try:
                metadata |= json.loads(text)
            except (ValueError, RecursionError) as error:
                raise Failure(Exit.BAD_INPUT, f"--metadata {text!r} is not a JSON object: {error}") from error
        elif equals and key:
            metadata[key] = value
        else:
            raise Failure(Exit.BAD_INPUT, f"--metadata takes KEY=VALUE or a JSON object, got {text!r}")
    return metadata
