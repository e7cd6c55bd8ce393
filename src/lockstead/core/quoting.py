"""Text from elsewhere inside ours: in a line of a log, on a terminal, in a command to run."""

from __future__ import annotations

import shlex


def escaped(text: str) -> str:
    """Escape control characters, which a terminal would obey and a log would show as lines of its own."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def command_for(name: str, subcommand: str, *options: str) -> str:
    """Write the command for a name; one that begins with a hyphen would be taken for an option."""
    name, words = shlex.quote(name), ["lockstead", subcommand]
    return " ".join([*words, *options, "--", name] if name.startswith("-") else [*words, name, *options])
