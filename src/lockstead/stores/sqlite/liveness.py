"""Proof that a client's process is dead: a lock that the kernel releases when the process ends, and not before.

Every store object locks one byte of a file beside the database, at a random position that is in the address of its
places. Where that byte is not locked, no process has the store object any more. The file stays empty.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import struct
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from lockstead.runtimes import clock

if sys.platform == "linux":
    import fcntl

HAS_LOCKS = sys.platform == "linux" and sys.maxsize > 2**32
"""Locks of open file descriptions. Those of POSIX would not do: they are gone as soon as the process closes any other
descriptor of the file, say by copying the directory."""
SUFFIX = "-alive"
"""Of the file's name."""
LOCAL_FILE_SYSTEMS = {
    "bcachefs",
    "btrfs",
    "ext2",
    "ext3",
    "ext4",
    "f2fs",
    "jfs",
    "nilfs2",
    "overlay",
    "ramfs",
    "reiserfs",
    "tmpfs",
    "xfs",
    "zfs",
}
"""Where the kernel itself keeps the locks. A network file system may lose those of a process that lives."""

_FLOCK = struct.Struct("hhqqi0q")
"""type, whence, start, length, process (0), as `struct flock` on 64-bit Linux."""
_EVIDENCE = re.compile(r"([0-9a-f]{16})@([0-9a-f]+\.[0-9a-f]+)")
"""Which byte, and of which file: its device and inode, as another file may be in its place by now."""


class Liveness:
    """The lock of one store object, and a look at those of others.

    Not promised: that a death is proven. On network file systems, on anything but Linux, and where the file was
    replaced or may not be written, no process is known to be dead, and its places expire.
    """

    def __init__(self) -> None:
        self.evidence = ""
        """What others need to find the lock, written at the end of an address; empty if there is none."""
        self._file = -1
        self._identity = ""
        self._longest_ttl = 0.0

    def announce(self, database: str) -> None:
        """Lock a byte, if that is possible. Call it before a place is written."""
        if self._file != -1 or not HAS_LOCKS:
            return
        _close_kept()
        token = secrets.token_hex(8)
        with suppress(OSError):
            file = _open(os.path.realpath(database))
            try:
                if _file_system(file) in LOCAL_FILE_SYSTEMS:
                    fcntl.fcntl(file, fcntl.F_OFD_SETLK, _request(token))
                    found = os.fstat(file)
                    self._identity = f"{found.st_dev:x}.{found.st_ino:x}"
                    self._file = file
                    self.evidence = f"{token}@{self._identity}"  # last: after an interrupt there is none
            finally:
                if self._file != file:
                    os.close(file)

    def can_judge(self, address: str) -> bool:
        """Return whether a death of the process at that address, another one's, could be proven."""
        evidence = _EVIDENCE.fullmatch(address.rpartition("/")[2])
        # Its own lock would not conflict with its own look.
        return (
            evidence is not None and self._file != -1 and evidence[2] == self._identity and evidence[0] != self.evidence
        )

    def is_dead(self, address: str) -> bool:
        """Return whether the kernel proves that no process has the store object of that address any more."""
        if not self.can_judge(address):
            return False
        try:
            request = _request(address.rpartition("/")[2][:16])
            answer = fcntl.fcntl(self._file, fcntl.F_OFD_GETLK, request)
        except OSError:
            return False
        return bool(_FLOCK.unpack(answer)[0] == fcntl.F_UNLCK)

    def count(self, ttl: float) -> None:
        """Remember that a place was requested for that long."""
        self._longest_ttl = max(self._longest_ttl, ttl)

    def drop(self, *, has_places: bool) -> None:
        """Release the lock: now or, as long as places may be left that this process trusts, later.

        A handle may be dropped while the code that it protects is still at work: its lease is left to expire.
        """
        file, self._file = self._file, -1
        if file == -1:
            return
        if has_places:
            _kept.append((clock.now() + self._longest_ttl, file))
        else:
            os.close(file)

    def forked(self) -> None:
        """Close the descriptors of the parent, in its child: the lock would outlive the parent otherwise."""
        files = [self._file, *(file for _, file in _kept)]
        _kept.clear()
        self._file, self.evidence = -1, ""
        for file in files:
            if file != -1:
                with suppress(OSError):
                    os.close(file)


_kept: list[tuple[float, int]] = []
"""Descriptors of stores that are gone, and until when a place of theirs may be trusted."""


def _close_kept() -> None:
    now = clock.now()
    for kept in [kept for kept in _kept if kept[0] <= now]:
        with suppress(ValueError):  # another thread has closed it
            _kept.remove(kept)
            os.close(kept[1])


def _request(token: str) -> bytes:
    return _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, int(token, 16) >> 2, 1, 0)


def _open(database: str) -> int:
    """Open the file beside a database; a new one has the database's mode and owner."""
    path = f"{database}{SUFFIX}"
    try:
        return os.open(path, os.O_RDWR)
    except FileNotFoundError:
        create_empty(Path(path), like=os.stat(database))
        return os.open(path, os.O_RDWR)


def create_empty(path: Path, like: os.stat_result | None = None) -> None:
    """Create an empty file that only its user may open, or else with the mode and owner of another file.

    Under another name first: nothing sees it before it has its mode, and opening and closing a database itself would
    release the locks that SQLite has on it in this process.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        if like is not None:
            os.fchmod(handle, stat.S_IMODE(like.st_mode))
            if os.geteuid() == 0:
                os.fchown(handle, like.st_uid, like.st_gid)
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.close(handle)
        os.unlink(temporary)


def _file_system(file: int) -> str:
    """Return the type of the file system, empty for what is no plain file."""
    if not stat.S_ISREG(os.fstat(file).st_mode):
        return ""
    facts = Path(f"/proc/self/fdinfo/{file}").read_text("ascii")
    mount = re.search(r"^mnt_id:\s*(\d+)$", facts, re.MULTILINE)
    mounts = Path("/proc/self/mountinfo").read_text("utf-8", "replace")
    kind = mount and re.search(rf"^{mount[1]} .*? - (\S+) ", mounts, re.MULTILINE)
    return kind[1] if kind else ""
