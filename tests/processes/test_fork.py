"""What a fork does to the client and the locks of the process that forks. Scenarios: programs/forking.py."""

from __future__ import annotations

import weakref
from pathlib import Path

import pytest

from lockstead import DistributedLock
from lockstead.core import lifecycle
from tests.harness.processes import run
from tests.harness.sqlite import rows


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param("inert", id="the_childs_copy_of_a_handle_is_inert"),
        pytest.param("inherited_with", id="a_child_that_leaves_the_with_block_releases_nothing"),
        pytest.param("identity", id="the_child_is_a_client_of_its_own"),
        pytest.param("secrets", id="the_child_draws_no_secret_that_its_parent_will_use"),
        pytest.param("waits_for_its_parent", id="a_child_waits_for_its_parent_and_is_woken"),
        pytest.param("child_exits_hard", id="a_child_that_ends_by_os_exit_releases_nothing"),
        pytest.param("child_exits", id="a_child_that_ends_by_sys_exit_releases_nothing"),
        pytest.param("child_leaves_its_own_behind", id="a_child_gives_up_at_its_exit_only_what_it_took_itself"),
        pytest.param("grandchildren", id="forks_of_forks_work"),
        pytest.param("multiprocessing_fork", id="a_forked_pool_uses_the_client_it_inherited"),
        pytest.param("hammered", id="threads_at_the_store_do_not_break_a_fork"),
        pytest.param("hammered_with_new_clients", id="clients_made_during_a_fork_do_not_break_it"),
    ],
)
def test_a_fork_leaves_parent_and_child_with_working_clients(scenario: str, path: Path, locks: DistributedLock) -> None:
    worker = run("processes/programs/forking.py", scenario, path, within=18)
    assert worker.errors == ""
    assert worker.process.returncode == 0
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]
    assert locks.inspect() == []


def test_a_failing_after_fork_hook_keeps_no_other_from_running() -> None:
    done = []

    class Part:
        def fail(self) -> None:
            raise OSError("it is gone already")

        def let_go(self) -> None:
            done.append(self)

    first, second = Part(), Part()
    with pytest.raises(OSError, match="gone already"):
        lifecycle._call([(weakref.ref(first), "fail"), (weakref.ref(second), "let_go")])
    assert done == [second]
