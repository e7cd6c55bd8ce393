"""Proof that a client's process is dead: a lock that the kernel releases when the process ends, and not before.

Every process locks one byte of a file beside the database, at a random position that is in the address of its places.
Where that byte is not locked, the process is dead. The file stays empty.
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
from weakref import WeakValueDictionary

from lockstead.core import lifecycle

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
    """A store object's share in the lock of its process, and a look at those of others.

    Not promised: that a death is proven. On network file systems, on anything but Linux, and where the file was
    replaced or may not be written, no process is known to be dead, and its places expire.
    """

    def __init__(self) -> None:
        self._lock: _Lock | None = None

    @property
    def evidence(self) -> str:
        """What others need to find the lock, written at the end of an address; empty if there is none."""
        return "" if self._lock is None else self._lock.evidence

    def announce(self, database: str) -> None:
        """Lock a byte, if that is possible. Call it before a place is written."""
        if self._lock is None and HAS_LOCKS:
            with suppress(OSError):
                self._lock = _locks.of(os.path.realpath(database))

    def can_judge(self, address: str) -> bool:
        """Return whether a death of the process at that address, another one's, could be proven."""
        lock = self._lock
        return lock is not None and lock.can_judge(address.rpartition("/")[2])

    def is_dead(self, address: str) -> bool:
        """Return whether the kernel proves that the process of that address is dead."""
        lock = self._lock  # read once: another thread may drop it, and this reference keeps its file open
        return lock is not None and lock.proves_death(address.rpartition("/")[2])

    def drop(self, *, has_places: bool) -> None:
        """Give the share up. As long as the process lives, a lock is not released that places may carry.

        A handle may be dropped while the code that it protects is still at work: its lease is left to expire. And a
        client that moves to another event loop renews, through another store object, what it holds.
        """
        if self._lock is not None and has_places:
            _locks.keep(self._lock)
        self._lock = None


class _Lock:
    """One byte of a file, locked until nothing refers to this object."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._token = secrets.token_hex(8)
        self.identity = _identity(file)
        self.evidence = f"{self._token}@{self.identity}"

    def lock(self) -> bool:
        """Lock the byte, where the kernel itself keeps the lock."""
        is_local = _file_system(self._file) in LOCAL_FILE_SYSTEMS
        if is_local:
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, _request(self._token))
        return is_local

    def is_on(self, identity: str) -> bool:
        """Return whether the lock is on that file, and no other code has closed its descriptor."""
        with suppress(OSError):
            return _identity(self._file) == identity
        return False

    def can_judge(self, evidence: str) -> bool:
        found = _EVIDENCE.fullmatch(evidence)
        # Its own lock would not conflict with its own look.
        return found is not None and self._file != -1 and found[2] == self.identity and evidence != self.evidence

    def proves_death(self, evidence: str) -> bool:
        if not self.can_judge(evidence) or not self.is_on(self.identity):
            return False
        try:
            answer = fcntl.fcntl(self._file, fcntl.F_OFD_GETLK, _request(evidence[:16]))
        except OSError:
            return False
        return bool(_FLOCK.unpack(answer)[0] == fcntl.F_UNLCK)

    def close(self) -> None:
        file, self._file = self._file, -1
        if file != -1:
            with suppress(OSError):
                os.close(file)

    __del__ = close


class _Locks:
    """The locks of this process, one for each file: all its store objects have the same one.

    There is no mutex, which a fork or an interrupt could leave locked: each change is one operation of a dictionary or
    a set. Two threads that open a file for the first time at the same time may make two locks, which is as safe.
    """

    def __init__(self) -> None:
        self._all: WeakValueDictionary[str, _Lock] = WeakValueDictionary()
        self._kept: set[_Lock] = set()
        lifecycle.at_fork(self, in_child="_forked")

    def of(self, database: str) -> _Lock | None:
        """Return the lock on the file beside that database; None if nothing could be proven by it."""
        with suppress(FileNotFoundError):
            if (shared := self._find(_identity(f"{database}{SUFFIX}"))) is not None:
                return shared
        lock = _Lock(_open(database))
        if not lock.lock():
            return None
        self._all[lock.evidence] = lock
        return lock

    def _find(self, identity: str) -> _Lock | None:
        locks = (reference() for reference in self._all.valuerefs())
        return next((lock for lock in locks if lock is not None and lock.is_on(identity)), None)

    def keep(self, lock: _Lock) -> None:
        """Release that lock only when the process ends."""
        self._kept.add(lock)

    def _forked(self) -> None:
        """Close the descriptors of the parent, in its child: the locks would outlive the parent otherwise."""
        for reference in self._all.valuerefs():
            if (lock := reference()) is not None:
                lock.close()
        self._all.clear()
        self._kept.clear()


_locks = _Locks()


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


def _identity(file: int | str) -> str:
    found = os.stat(file)
    return f"{found.st_dev:x}.{found.st_ino:x}"


def _file_system(file: int) -> str:
    """Return the type of the file system, empty for what is no plain file."""
    if not stat.S_ISREG(os.fstat(file).st_mode):
        return ""
    facts = Path(f"/proc/self/fdinfo/{file}").read_text("ascii")
    mount = re.search(r"^mnt_id:\s*(\d+)$", facts, re.MULTILINE)
    mounts = Path("/proc/self/mountinfo").read_text("utf-8", "replace")
    kind = mount and re.search(rf"^{mount[1]} .*? - (\S+) ", mounts, re.MULTILINE)
    return kind[1] if kind else ""
