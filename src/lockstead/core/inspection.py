"""Look at a store's lines, and clear them by force: what an operator asks for, beside the protocol."""

from __future__ import annotations

from lockstead.core.engine import Engine
from lockstead.core.model import Finding, Line
from lockstead.core.store import Examinable, Repairable
from lockstead.core.timing import REQUEST_TIMEOUT


async def find(engine: Engine, name: str) -> Line | None:
    """Read one line; None if it is empty. Raises DamagedError if it cannot be read."""
    line = await _read(engine, name)
    if line is not None and line.damage is not None and not line.places:
        raise line.damage
    return line


async def find_all(engine: Engine, prefix: str) -> list[Line]:
    """Read every line whose name starts with `prefix`."""
    engine.check_call()
    return await engine.store.inspect(prefix)


async def examine(engine: Engine) -> list[Finding]:
    """Check the store for problems that could cost locks. Raises StoreError if it does not answer."""
    engine.check_open()
    if isinstance(engine.store, Examinable):
        return await engine.store.examine()
    await engine.store.inspect("lockstead:doctor", exact=True)
    return [Finding("ok", engine.store.address, "it answers requests")]


async def force_release(engine: Engine, name: str) -> Line | None:
    """Remove the places of the holders, and return the line as it was; clear a line that cannot be read."""
    line = await _read(engine, name)
    if line is not None:
        if line.damage is not None:
            if not isinstance(engine.store, Repairable):
                raise line.damage
            await engine.store.repair(name, REQUEST_TIMEOUT)
        for place in line.places:
            if place.acquired_at is not None:
                await engine.store.leave(name, place.owner, REQUEST_TIMEOUT)
    return line


async def _read(engine: Engine, name: str) -> Line | None:
    engine.check_call(name)
    lines = await engine.store.inspect(name, exact=True)
    return lines[0] if lines else None
