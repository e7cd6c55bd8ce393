"""Background work of threads: a thread that has ended its work waits for more, and ends with its runtime."""

from __future__ import annotations

import threading
from math import inf

import pytest

from lockstead.core.runtime import drive
from lockstead.runtimes import workers
from lockstead.runtimes.threads import ThreadRuntime
from tests.harness.conditions import eventually


def ran_in(runtime: ThreadRuntime) -> threading.Thread:
    """Return the thread that runs a piece of background work, once it has."""
    threads: list[threading.Thread] = []
    done = runtime.event()

    async def work() -> None:
        threads.append(threading.current_thread())
        done.set()

    runtime.spawn(work, "some work")
    assert drive(done.wait(10.0))
    return threads[0]


def is_idle(thread: threading.Thread) -> bool:
    return thread.name == workers.IDLE_NAME


def test_work_runs_in_a_thread_that_waits_for_it() -> None:
    runtime = ThreadRuntime()
    first = ran_in(runtime)
    eventually(lambda: runtime._workers.idle, "it waits for more")
    assert ran_in(runtime) is first


def test_work_runs_at_once_while_other_work_is_running() -> None:
    runtime = ThreadRuntime()
    blocked = runtime.event()

    async def wait() -> None:
        await blocked.wait(inf)

    runtime.spawn(wait, "waits")
    assert ran_in(runtime).is_alive()
    blocked.set()


def test_a_waiting_thread_ends_with_its_runtime() -> None:
    runtime = ThreadRuntime()
    thread = ran_in(runtime)
    eventually(lambda: is_idle(thread), "it waits for more")
    del runtime
    eventually(lambda: not thread.is_alive(), "it has ended")


def test_a_waiting_thread_ends_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "IDLE_TIMEOUT", 0.05)
    runtime = ThreadRuntime()
    thread = ran_in(runtime)
    eventually(lambda: not thread.is_alive(), "it has ended")
    assert ran_in(runtime) is not thread
