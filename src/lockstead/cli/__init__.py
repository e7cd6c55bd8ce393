"""The `lockstead` command, built on the blocking façade."""

from lockstead.cli.command import main

__all__ = ["main"]
