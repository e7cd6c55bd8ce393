"""The servers, and the faults done to them, are what they say they are."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import redis
from redis.crc import key_slot
from redis.exceptions import AskError, AuthenticationError, MovedError, OutOfMemoryError, ReadOnlyError
from redis.exceptions import ConnectionError as Unreachable
from redis.exceptions import TimeoutError as Unresponsive

from tests.harness.conditions import eventually
from tests.harness.processes import is_alive
from tests.servers.binaries import VALKEY9, Flavour, redis_flavours
from tests.servers.cluster import ClusterDeployment
from tests.servers.ports import BUS, Port
from tests.servers.process import ServerError
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer, abilities, client_of
from tests.servers.sentinel import SentinelDeployment
from tests.servers.stats import commands_of, connections_to
from tests.servers.tls import Authority

Start = Callable[..., RedisServer]
SHORT = 0.2
"""How long to wait for an answer that does not come."""


@pytest.fixture
def through(proxy: FaultProxy) -> Iterator[redis.Redis]:
    """Give a client that comes through the proxy, and is connected."""
    with client_of(proxy.url, socket_timeout=SHORT) as client:
        client.ping()
        yield client


def seconds_ahead(client: redis.Redis) -> float:
    seconds, microseconds = client.time()
    return float(seconds + microseconds / 1e6 - time.time())


class TestBinaries:
    def test_the_servers_of_the_test_dependencies_are_present(self):
        assert {"valkey9"} <= {flavour.name for flavour in redis_flavours()}
        assert all(flavour.is_present for flavour in redis_flavours())

    def test_a_server_is_of_the_version_its_flavour_says(self, redis_server: RedisServer):
        info = redis_server.client().info("server")
        running = info.get("valkey_version") or info["redis_version"]
        assert running == ".".join(map(str, redis_server.flavour.version))

    def test_a_variable_that_names_no_program_is_an_error(self, flavour: Flavour, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv(flavour.variable, "/nonexistent")
        with pytest.raises(ServerError, match=flavour.variable):
            list(flavour.candidates())


class TestPorts:
    def test_a_port_is_not_given_twice(self):
        with closing(Port()) as one, closing(Port()) as other:
            assert one.number != other.number

    def test_a_port_is_free_and_so_is_that_of_its_bus(self):
        with closing(Port()) as port:
            for number in (port.number, port.number + BUS):
                with socket.create_server(("127.0.0.1", number)):
                    pass


class TestLife:
    def test_a_start_that_fails_shows_the_log(self, start_server: Start):
        with pytest.raises(ServerError, match="memory value"):
            start_server(maxmemory="plenty")

    def test_only_the_loopback_is_listened_to(self, redis_server: RedisServer):
        assert redis_server.client().config_get("bind") == {"bind": "127.0.0.1"}

    def test_a_restart_loses_the_data(self, fresh_server: RedisServer):
        client = fresh_server.client()
        client.set("key", "value")
        port = fresh_server.port
        fresh_server.restart()
        assert client.get("key") is None
        assert fresh_server.port == port

    def test_data_in_the_log_survives_a_kill_unless_the_disk_is_lost(self, start_server: Start):
        server = start_server(append_only=True)
        client = server.client()
        client.set("key", "value")
        server.kill()
        assert not server.is_running
        with pytest.raises(Unreachable):
            client.get("key")
        server.restart()
        assert client.get("key") == "value"
        server.restart(empty=True)
        assert client.get("key") is None

    def test_a_paused_server_does_not_answer_until_it_is_resumed(self, fresh_server: RedisServer):
        client = fresh_server.client(socket_timeout=SHORT)
        fresh_server.pause()
        assert fresh_server.is_running
        with pytest.raises(Unresponsive):
            client.ping()
        fresh_server.resume()
        assert fresh_server.client().ping()

    def test_a_paused_server_can_be_stopped(self, fresh_server: RedisServer):
        fresh_server.pause()
        fresh_server.stop()
        assert not fresh_server.is_running

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
    def test_a_server_and_its_directory_go_with_the_process_that_started_it(self, number: signal.Signals):
        script = (
            "import sys, time\n"
            "from tests.servers.redis import RedisServer\n"
            "server = RedisServer()\n"
            "server.pause()\n"
            "print(server.pid, server._directory.path, flush=True)\n"
            "time.sleep(60)\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as starter:
            assert starter.stdout is not None
            pid, directory = starter.stdout.readline().split()
            starter.send_signal(number)
        eventually(lambda: not is_alive(int(pid)), "the server is gone")
        eventually(lambda: not os.path.exists(directory), "its directory is gone")

    def test_a_server_outlives_the_thread_that_started_it(self):
        servers: list[RedisServer] = []
        thread = threading.Thread(target=lambda: servers.append(RedisServer()))
        thread.start()
        thread.join()
        with servers[0] as server:
            assert server.client().ping()


class TestOptions:
    def test_a_password_is_in_the_url_and_asked_for(self, start_server: Start):
        server = start_server(password="s3:/@ret")
        assert server.client().ping()
        with client_of(f"redis://127.0.0.1:{server.port}") as without_password, pytest.raises(AuthenticationError):
            without_password.ping()

    def test_a_server_can_be_started_with_little_memory(self, start_server: Start):
        client = start_server(maxmemory="3mb", maxmemory_policy="noeviction").client()
        with pytest.raises(OutOfMemoryError):
            for number in range(100):
                client.set(str(number), "x" * 100_000)

    def test_a_unix_socket_leads_to_the_same_server(self, start_server: Start):
        server = start_server(unix_socket=True, password="secret")
        server.client().set("key", "value")
        with client_of(server.unix_url) as client:
            assert client.get("key") == "value"

    def test_a_replica_receives_writes_and_refuses_its_own(self, start_server: Start):
        master = start_server()
        replica = start_server(replicaof=f"127.0.0.1 {master.port}")
        master.client().set("key", "value")
        client = replica.client()
        eventually(lambda: client.get("key") == "value", "the replica has the key")
        with pytest.raises(ReadOnlyError):
            client.set("key", "other")

    def test_commands_for_debugging_are_enabled(self, redis_server: RedisServer):
        assert redis_server.client().execute_command("DEBUG", "SLEEP", "0")

    def test_tls_is_the_servers_own_where_it_has_it(self, start_server: Start, flavour: Flavour, authority: Authority):
        if "tls" not in abilities(flavour):
            with pytest.raises(ValueError, match="FaultProxy"):
                start_server(tls=authority)
            return
        server = start_server(tls=authority, password="secret")
        assert server.url.startswith("rediss://")
        assert server.client().ping()


class TestClock:
    @pytest.mark.parametrize("step", [60, -60, 0.25, -0.25])
    def test_the_clock_can_be_stepped_while_the_server_runs(self, start_server: Start, step: float):
        server = start_server(clock=True)
        client = server.client()
        assert seconds_ahead(client) == pytest.approx(0, abs=0.1)
        server.step_clock(step)
        assert seconds_ahead(client) == pytest.approx(step, abs=0.1)
        server.step_clock(-step)
        assert seconds_ahead(client) == pytest.approx(0, abs=0.1)

    def test_keys_expire_by_the_stepped_clock(self, start_server: Start):
        server = start_server(clock=True)
        client = server.client()
        client.set("key", "value", px=30_000)
        server.step_clock(-60)
        assert 80_000 < client.pttl("key") <= 90_000
        server.step_clock(+90.5)
        assert client.get("key") is None

    def test_the_clock_stays_stepped_over_a_restart(self, start_server: Start):
        server = start_server(clock=True)
        server.step_clock(3600)
        server.restart()
        assert seconds_ahead(server.client()) == pytest.approx(3600, abs=0.1)

    def test_the_clock_can_be_stopped(self, start_server: Start):
        server = start_server(clock=True)
        server.clock.stop_at(2_000_000_000.25)
        client = server.client()
        for _ in range(2):
            time.sleep(0.02)
            seconds, microseconds = client.time()
            assert seconds == 2_000_000_000
            assert microseconds == pytest.approx(250_000, abs=1500)


class TestStats:
    def test_commands_are_counted_but_not_those_of_the_count(self, fresh_server: RedisServer):
        client = fresh_server.client()
        client.ping()
        with commands_of(fresh_server) as counted:
            client.set("key", "value")
            client.get("key")
            client.get("key")
        assert counted == {"set": 1, "get": 2}

    def test_connections_are_listed_but_not_that_of_the_list(self, fresh_server: RedisServer):
        assert connections_to(fresh_server) == []
        client = fresh_server.client(client_name="waiter")
        client.ping()
        assert [one["name"] for one in connections_to(fresh_server)] == ["waiter"]


class TestProxy:
    def test_the_proxy_counts_commands(self, proxy: FaultProxy, through: redis.Redis):
        before = proxy.commands
        with through.pipeline(transaction=False) as pipeline:
            for _ in range(3):
                pipeline.ping()
            pipeline.execute()
        assert proxy.commands - before == 3
        assert (proxy.accepted, proxy.open) == (1, 1)
        through.close()
        eventually(lambda: proxy.open == 0, "the connection is closed")

    def test_a_large_value_goes_through_whole(self, through: redis.Redis, key_prefix: str):
        value = "x" * 1_000_000
        through.set(key_prefix, value, ex=60)
        assert through.get(key_prefix) == value

    def test_a_delay_is_added(self, proxy: FaultProxy, through: redis.Redis):
        proxy.delay(0.05)
        began = time.monotonic()
        through.ping()
        assert time.monotonic() - began >= 0.1
        proxy.heal()

    @pytest.mark.parametrize("direction", ["both", "requests", "replies"])
    def test_a_black_hole_swallows_for_good(self, proxy: FaultProxy, through: redis.Redis, direction, key_prefix: str):
        proxy.black_hole(direction)
        with pytest.raises(Unresponsive):
            through.incr(key_prefix)
        with pytest.raises(Unresponsive):
            through.incr(key_prefix)
        proxy.heal()
        executed = int(through.get(key_prefix) or 0)
        # The second is never sent: its connection does not get past the handshake.
        assert executed == (direction == "replies")
        eventually(lambda: proxy.open == 1, "the connections that lost something are gone")

    def test_a_client_that_only_waits_is_disconnected_after_a_lost_message(self, proxy: FaultProxy, key_prefix: str):
        with client_of(proxy.url, socket_timeout=15) as waiting, proxy.server.client() as other:
            waiting.ping()
            with ThreadPoolExecutor() as pool:
                waits = pool.submit(waiting.blpop, [key_prefix], 30)
                eventually(lambda: other.info("clients")["blocked_clients"] == 1, "it waits")
                proxy.black_hole("replies")
                other.lpush(key_prefix, "lost")
                eventually(lambda: proxy.dropped, "its answer is swallowed")
                proxy.heal()
                with pytest.raises(Unreachable):
                    waits.result(20)

    def test_the_proxy_delivers_held_messages_late(self, proxy: FaultProxy, through: redis.Redis, key_prefix: str):
        proxy.hold()
        with pytest.raises(Unresponsive):
            through.set(key_prefix, "late", ex=60)
        watcher = proxy.server.client()
        assert watcher.get(key_prefix) is None
        proxy.heal()
        eventually(lambda: watcher.get(key_prefix) == "late", "the command arrives after its sender gave up")

    def test_refusing_new_connections_keeps_open_ones(self, proxy: FaultProxy, through: redis.Redis):
        proxy.refuse()
        assert through.ping()
        with client_of(proxy.url) as newcomer, pytest.raises(Unreachable, match="refused"):
            newcomer.ping()
        proxy.heal()
        with client_of(proxy.url) as newcomer:
            assert newcomer.ping()

    def test_reset_all_resets_open_connections_and_not_new_ones(self, proxy: FaultProxy):
        with socket.create_connection(proxy.address) as connection:
            eventually(lambda: proxy.open == 1, "the connection is through")
            proxy.reset_all()
            with pytest.raises(ConnectionResetError):
                connection.recv(1)
        with client_of(proxy.url) as newcomer:
            assert newcomer.ping()

    def test_a_lost_reply_belongs_to_a_command_that_was_executed(
        self, proxy: FaultProxy, through: redis.Redis, key_prefix: str
    ):
        proxy.lose_reply()
        with pytest.raises(Unreachable):
            through.incr(key_prefix)
        assert through.get(key_prefix) == "1"
        assert proxy.lost == 1

    def test_a_lost_request_was_not_executed(self, proxy: FaultProxy, through: redis.Redis, key_prefix: str):
        proxy.lose_request(2)
        for _ in range(2):
            with pytest.raises(Unreachable):
                through.incr(key_prefix)
        assert through.get(key_prefix) is None
        assert proxy.lost == 2

    def test_the_command_to_lose_can_be_chosen(self, proxy: FaultProxy, through: redis.Redis, key_prefix: str):
        proxy.lose_reply(when=lambda command: command[0] == b"DEL")
        through.set(key_prefix, "value")
        with pytest.raises(Unreachable):
            through.delete(key_prefix)
        assert through.get(key_prefix) is None

    def test_the_lost_reply_is_that_of_its_command_in_a_pipeline(
        self, proxy: FaultProxy, through: redis.Redis, key_prefix: str
    ):
        proxy.lose_reply(when=lambda command: command[0] == b"INCRBY")
        with through.pipeline(transaction=False) as pipeline, pytest.raises(Unreachable):
            pipeline.set(key_prefix, 5)
            pipeline.get(key_prefix)
            pipeline.incr(key_prefix)
            pipeline.execute()
        assert through.get(key_prefix) == "6"

    def test_a_server_that_is_gone_resets(self, fresh_server: RedisServer):
        with FaultProxy(fresh_server) as proxy, client_of(proxy.url) as client:
            client.ping()
            fresh_server.kill()
            with pytest.raises(Unreachable):
                client.ping()
            with pytest.raises(Unreachable):
                client.ping()
            fresh_server.restart()
            assert client.ping()

    def test_the_proxy_speaks_tls_for_servers_that_do_not(
        self, redis_server: RedisServer, authority: Authority, key_prefix
    ):
        with FaultProxy(redis_server, tls=authority) as proxy, client_of(proxy.url) as client:
            assert proxy.url.startswith("rediss://")
            assert client.ping()
            proxy.lose_reply()
            with pytest.raises(Unreachable):
                client.set(key_prefix, "value", ex=60)
            assert client.get(key_prefix) == "value"

    def test_a_certificate_of_another_authority_is_not_trusted(
        self, redis_server, authority: Authority, tmp_path: Path
    ):
        with (
            FaultProxy(redis_server, tls=authority) as proxy,
            client_of(redis_server.url_at(proxy.port, Authority(tmp_path))) as client,
            pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"),
        ):
            client.ping()


class TestSentinel:
    @pytest.mark.parametrize("how", ["kill", "pause"])
    def test_a_master_that_is_down_is_replaced(self, sentinel: SentinelDeployment, how, key_prefix: str):
        old = sentinel.master()
        old.client().set(key_prefix, "value")
        old.client().wait(1, 5000)
        new = sentinel.failover(how)
        assert new is not old
        assert new is sentinel.master()
        with closing(sentinel.client()) as client:
            assert client.get(key_prefix) == "value"
        sentinel.restore()
        assert sentinel.master() is new, sentinel.log
        assert sentinel.replicas() == [old]


class TestCluster:
    def test_the_masters_share_the_slots(self, cluster: ClusterDeployment, key_prefix: str):
        with closing(cluster.client()) as client:
            for number in range(20):
                client.set(f"{key_prefix}{number}", number, ex=60)
        assert len({cluster.owner(slot) for slot in (0, 8000, 16383)}) == 3

    def test_in_the_middle_of_a_move_the_old_owner_says_ask(self, cluster: ClusterDeployment, key_prefix: str):
        gone, stays = (f"{{{key_prefix}}}{which}" for which in ("gone", "stays"))
        slot = key_slot(gone.encode())
        old, new = cluster.owner(slot), cluster.other_master(slot)
        with closing(cluster.client()) as client:
            client.mset_nonatomic({gone: "1", stays: "2"})
            with cluster.moving_slot(slot, new) as move:
                move.move_keys(gone)
                with pytest.raises(AskError):
                    old.client().get(gone)
                assert old.client().get(stays) == "2"
                assert [client.get(gone), client.get(stays)] == ["1", "2"]
            assert cluster.owner(slot) is new
            with pytest.raises(MovedError):
                old.client().get(gone)
            assert [client.get(gone), client.get(stays)] == ["1", "2"]
            cluster.move_slot(slot, old)
            assert [client.get(gone), client.get(stays)] == ["1", "2"]

    def test_redis_6_makes_a_cluster_too_and_a_replica_takes_over(self):
        flavour = next((flavour for flavour in redis_flavours() if flavour.version < (7,)), VALKEY9)
        with ClusterDeployment(flavour, replicas=1, cluster_node_timeout="1000") as cluster:
            old = cluster.owner(0)
            new = cluster.failover(old)
            assert new is not old
            with closing(cluster.client()) as client:
                client.set("key", "value")
            cluster.restore()
            assert cluster.owner(0) is new
