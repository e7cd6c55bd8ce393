"""Read-write lock: many threads read a catalogue at a time, one rewrites it alone; later readers do not overtake it.

Run it: python examples/read_write.py
"""

from __future__ import annotations

import threading

from lockstead import DistributedLock

SIZE = 1000
READERS, READS, WRITES = 6, 20, 5

locks = DistributedLock("memory://read-write")
catalogue = [0] * SIZE


@locks.write_lock("catalogue")
def rewrite(edition: int) -> None:
    for position in range(SIZE):  # a reader in between would see two editions at once
        catalogue[position] = edition


@locks.read_lock("catalogue")
def read() -> set[int]:
    return set(catalogue)


def keep_reading(torn: list[set[int]]) -> None:
    torn += [editions for _ in range(READS) if len(editions := read()) > 1]


if __name__ == "__main__":
    torn: list[set[int]] = []
    readers = [threading.Thread(target=keep_reading, args=(torn,)) for _ in range(READERS)]
    for reader in readers:
        reader.start()
    for edition in range(1, WRITES + 1):
        rewrite(edition)
    for reader in readers:
        reader.join()
    print(f"{READERS * READS} reads beside {WRITES} rewrites, {len(torn)} of them torn")
    assert not torn
    locks.close()
