"""Which arguments the command takes, and its help."""

from __future__ import annotations

import argparse
import re
from argparse import ArgumentParser
from typing import Any, NoReturn

from lockstead import __version__
from lockstead.cli.outcome import Exit, Failure

EXIT_CODES = """\
exit codes:
  0      done; for `run` and `elect`: the command's own code, whatever it is
  1      `show`, `release`: the lock is free; `demo`: a check failed; `doctor`: there is something to mend
  2      bad input, or a refusal that explains itself
  65     the store has something that cannot be read: the message says how to clear it
  69     the store cannot be reached, or does not answer
  74     the lease was lost, or about to end: the command was stopped
  75     busy: not acquired within --timeout
  126    the command cannot be executed
  127    the command was not found
  128+N  ended by signal N: 130 for Ctrl-C, 143 for SIGTERM
"""


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        if may_be_secret(message):  # what comes after the last of these is what was given
            message = re.sub(r"(value|choice|arguments|understood): .*", r"\1: …", message, flags=re.DOTALL)
        raise Failure(Exit.BAD_INPUT, f"{message} (see {self.prog} --help)")


def may_be_secret(text: str) -> bool:
    """Tell whether a text may have a URL in it, which is in the wrong place, and in that a password."""
    return any(mark in text for mark in ("://", "@", "password="))


def build_parser() -> ArgumentParser:
    """Describe every subcommand and option; what `run` and `elect` run, after --, is not argparse's business."""
    looks: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
    parser = _Parser(
        prog="lockstead",
        description="Distributed locks with leases, fences and fair waiting.",
        epilog=f"start here:\n  lockstead demo\n  lockstead run nightly-report -- ./report.sh\n\n{EXIT_CODES}",
        **looks,
    )
    parser.add_argument("--version", action="version", version=f"lockstead {__version__}")
    subcommands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def add(name: str, summary: str, *, description: str, example: str, usage: str | None = None) -> ArgumentParser:
        subcommand = subcommands.add_parser(
            name, help=summary, description=description, epilog=f"example:\n  {example}", usage=usage, **looks
        )
        subcommand.add_argument(
            "--url", help="the store; default: $LOCKSTEAD_URL, else your own SQLite file (for this machine only)"
        )
        subcommand.add_argument("--json", action="store_true", help="print JSON, errors too (one object, on stderr)")
        return subcommand

    run = add(
        "run",
        "run a command while holding a lock",
        usage="lockstead run NAME [options] -- CMD [ARG ...]",
        description=(
            "Acquire a lock, run a command, release the lock, exit with the command's code.\n\n"
            "The lease is renewed while the command runs. If it cannot be, or is taken away, the command and its\n"
            "descendants are stopped before anybody else can hold the lock: SIGTERM, then SIGKILL.\n"
            "The command finds LOCKSTEAD_NAME and LOCKSTEAD_FENCE in its environment. SIGTERM, SIGINT, SIGHUP,\n"
            "SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to it; while waiting, the first four end the wait."
        ),
        example=f"lockstead run cron:backup --timeout 0 --at-least 60 -- ./backup.sh --full\n\n{EXIT_CODES}",
    )
    run.add_argument("name", metavar="NAME", help="the lock, e.g. order:42:ship, job:mail:17 or cron:backup")
    _add_lease_options(run)
    run.add_argument(
        "--timeout", type=float, metavar="S", help="how long to wait; 0: not at all (default: as long as it takes)"
    )
    run.add_argument(
        "--at-least",
        type=float,
        default=0.0,
        metavar="S",
        help="leave the lock taken until S seconds after it was acquired, however the command ended: so that no other "
        "host, whose clock is behind, runs it again",
    )
    run.add_argument("--max-hold", type=float, metavar="S", help="stop the command before it has held this long")

    elect = add(
        "elect",
        "run a command on one machine of many, while it leads",
        usage="lockstead elect NAME [options] -- CMD [ARG ...]",
        description=(
            "Stand for election, run a command once elected, and exit with the command's code when it ends.\n\n"
            "Whoever holds the lock NAME leads: `lockstead show NAME` tells who. If the lead is lost, or about to end\n"
            "because it cannot be renewed, the command and its descendants are stopped before anybody else can lead,\n"
            "and this stands again; outages of the store are sat out. Environment and signals are as for `run`."
        ),
        example=f"lockstead elect scheduler --ttl 15 --metadata host=web-1 -- ./scheduler\n\n{EXIT_CODES}",
    )
    elect.add_argument("name", metavar="NAME", help="what to lead, e.g. scheduler")
    _add_lease_options(elect)

    ls = add(
        "ls",
        "list the locks that are held",
        description="List the locks that are held: by whom, since when, for how long, and how many wait.",
        example="lockstead ls cron:",
    )
    ls.add_argument("prefix", metavar="PREFIX", nargs="?", default="", help="only names that start so")

    show = add(
        "show",
        "tell who holds a lock",
        description="Tell who holds a lock. Exits with 1 if nobody does.",
        example="lockstead show cron:backup --json",
    )
    show.add_argument("name", metavar="NAME")

    release = add(
        "release",
        "take a lock away from its holder",
        description=(
            "Take a lock away from its holder and give it to the next in line. Exits with 1 if it was free.\n\n"
            "A lock whose holder is dead ends by itself after its ttl: this is for when that is too long.\n"
            "A holder that is alive learns of it at its next renewal; until then two work at once."
        ),
        example="lockstead release cron:backup --force",
    )
    release.add_argument("name", metavar="NAME")
    release.add_argument("--force", action="store_true", help="do it; without this, only say what it would do")

    migrate = add(
        "migrate",
        "make the lease table in PostgreSQL, or bring it up to date",
        description=(
            "Make the lease table and its SQL functions in a PostgreSQL database, or bring them up to date: in one\n"
            "transaction, as often as you like, while others use them.\n\n"
            "With --print it only prints the SQL, for a migration of your own (Alembic, Django), and needs no --url."
        ),
        example="lockstead migrate --url postgresql://owner@db/app --grant app",
    )
    migrate.add_argument("--schema", help="where to put it (default: what the URL's ?schema= says, else lockstead)")
    migrate.add_argument("--print", action="store_true", help="print the SQL and do nothing")
    migrate.add_argument(
        "--grant", action="extend", nargs="+", default=[], metavar="ROLE", help="let these roles use it, and no more"
    )

    add(
        "doctor",
        "look for what could take locks away",
        description=(
            "Look at the store's servers for what could take locks away from their holders: eviction, missing\n"
            "persistence, a missing migration, clocks that differ, Redlock nodes that are down or do not vote.\n"
            "Exits with 1 if there is any."
        ),
        example="lockstead doctor --url redlock://redis-1,redis-2,redis-3",
    )

    demo = add(
        "demo",
        "see it work: a crash, a pause, and nothing lost",
        description=(
            "Let several processes increment one counter under one lock, kill one in the middle of its work and\n"
            "pause another, and check that every increment counts once. Takes about ten seconds."
        ),
        example="lockstead demo --workers 6",
    )
    demo.add_argument("--workers", type=int, default=4, metavar="N", help="how many processes, 4 to 12 (default: 4)")
    return parser


def _add_lease_options(subcommand: ArgumentParser) -> None:
    """Add what whoever runs a command under a lease may choose."""
    subcommand.add_argument(
        "--ttl", type=float, default=30.0, metavar="S", help="the lease's life in seconds (default: 30)"
    )
    subcommand.add_argument(
        "--metadata",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="shown to whoever looks at the lock; may be repeated, or be one JSON object",
    )
    subcommand.add_argument(
        "--grace",
        type=float,
        metavar="S",
        help="time between SIGTERM and SIGKILL (default: a quarter of the ttl, at most 10)",
    )
