"""The `lockstead` command: a thin layer over the public API."""

from lockstead.cli.command import main

__all__ = ["main"]
