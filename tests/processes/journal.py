"""The counter that only a lock protects, and the record every process keeps of what it did to it.

A section is: note the intent, write the counter, note the end. Each is one write that no page boundary splits,
so a kill falls between writes, never into one. Whether a section without an end wrote the counter is shown by
what the next section read.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

COUNTER = struct.Struct("<q")
ENTRY = struct.Struct("<c7xqqqd24x")
assert ENTRY.size == 64

INTENT = b"i"
END = b"e"


class Entry(NamedTuple):
    kind: bytes
    fence: int
    found: int
    """The counter as this section read it."""
    pid: int
    at: float


class Section(NamedTuple):
    fence: int
    found: int
    pid: int
    entered: float
    left: float | None


def note(log: int, entry: Entry) -> None:
    os.write(log, ENTRY.pack(*entry))


def read(path: Path) -> list[Entry]:
    return [Entry(*values) for values in ENTRY.iter_unpack(path.read_bytes())] if path.exists() else []


def read_counter(file: int) -> int:
    (value,) = COUNTER.unpack(os.pread(file, COUNTER.size, 0))
    return int(value)


def write_counter(file: int, value: int) -> None:
    os.pwrite(file, COUNTER.pack(value), 0)


def sections(entries: Iterable[Entry]) -> list[Section]:
    """Pair intents with ends, in the order of the fences."""
    intents: dict[int, Entry] = {}
    ends: dict[int, Entry] = {}
    for entry in entries:
        side = intents if entry.kind == INTENT else ends
        assert entry.fence not in side, f"two sections have the fence {entry.fence}"
        side[entry.fence] = entry
    assert ends.keys() <= intents.keys()
    return [
        Section(fence, intent.found, intent.pid, intent.at, ends[fence].at if fence in ends else None)
        for fence, intent in sorted(intents.items())
    ]
