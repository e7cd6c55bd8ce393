"""`lockstead doctor` on sound and unsound servers."""

from __future__ import annotations

import json

from tests.harness.command import Lockstead
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer


def test_doctor_finds_nothing_wrong_with_a_sound_store(lockstead: Lockstead) -> None:
    with RedisServer(append_only=True) as server:
        done = lockstead("doctor", "--url", server.url)
    assert done.returncode == 0
    assert "ok" in done.stdout
    assert "Valkey 9" in done.stdout
    assert lockstead("doctor").returncode == 0


def test_doctor_names_the_file_and_the_server_that_it_examined(
    lockstead: Lockstead, postgres_server: PostgresServer
) -> None:
    assert f"sqlite:///{lockstead.database}  it answers requests" in lockstead("doctor").stdout
    url = postgres_server.url.replace("postgresql:", "postgresql+advisory:")
    assert f"postgresql+advisory://127.0.0.1:{postgres_server.port}" in lockstead("doctor", "--url", url).stdout


def test_doctor_warns_of_a_server_that_persists_nothing_which_is_used_all_the_same(lockstead: Lockstead) -> None:
    with RedisServer() as server:
        done = lockstead("doctor", "--url", server.url, "--json")
        used = lockstead("run", "job", "--url", f"{server.url}?strict=true", "--", "true")
        with server.client() as client:
            client.config_set("save", "900 1")
        saved = lockstead("doctor", "--url", server.url)
    (fine, finding) = json.loads(done.stdout)
    assert (done.returncode, fine["level"], finding["level"]) == (1, "ok", "warning")
    assert finding["subject"] == f"127.0.0.1:{server.port}"
    assert "persists nothing" in finding["message"]
    assert (used.returncode, used.stderr) == (0, "")
    assert saved.returncode == 0


def test_doctor_warns_of_a_server_that_may_evict_locks(lockstead: Lockstead) -> None:
    with RedisServer(append_only=True, maxmemory="20mb", maxmemory_policy="allkeys-lru") as server:
        done = lockstead("doctor", "--url", server.url, "--json")
        (fine, finding) = json.loads(done.stdout)
    assert done.returncode == 1
    assert fine["level"] == "ok"
    assert finding["level"] == "warning"
    assert finding["subject"] == f"127.0.0.1:{server.port}"
    assert "noeviction" in finding["message"]


def test_doctor_names_a_redlock_node_that_is_down_and_one_that_came_back_empty(lockstead: Lockstead) -> None:
    with RedisServer(append_only=True) as one, RedisServer(append_only=True) as two, RedisServer() as three:
        url = "redlock://" + ",".join(f"127.0.0.1:{server.port}" for server in (one, two, three))
        assert lockstead("run", "job", "--url", url, "--ttl", "300", "--", "true").returncode == 0
        three.restart(empty=True)
        two.kill()
        done = lockstead("doctor", "--url", url)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines if f":{one.port} " in line] == ["ok"]
    assert any("connection refused" in line for line in lines if line.startswith("ERROR") and f":{two.port} " in line)
    assert any("restarted empty" in line for line in lines if f":{three.port} " in line)
    assert any("persists nothing" in line for line in lines if f":{three.port} " in line)


def test_a_server_that_is_down_is_an_error(lockstead: Lockstead) -> None:
    with RedisServer() as server:
        server.stop()
        done = lockstead("doctor", "--url", server.url)
    assert done.returncode == 69
    assert f"127.0.0.1:{server.port}: connection refused" in done.stderr


def test_a_clock_that_is_off_is_reported_but_no_reason_to_refuse_a_server(lockstead: Lockstead) -> None:
    with RedisServer(clock=True) as server:
        server.step_clock(30)
        done = lockstead("doctor", "--url", server.url)
        assert lockstead("run", "job", "--url", f"{server.url}?strict=true", "--", "true").returncode == 0
    assert done.returncode == 1
    assert "its clock is +30" in done.stdout or "its clock is +29" in done.stdout
