"""`lockstead demo` proves what it prints."""

from __future__ import annotations

import json
import re

from tests.harness.command import Lockstead


def test_the_demo_succeeds_and_prints_what_happened(lockstead: Lockstead) -> None:
    del lockstead.environment["LOCKSTEAD_URL"]
    finished = lockstead("demo")
    assert (finished.returncode, finished.stderr) == (0, "")
    events, _, summary = finished.stdout.partition("What was checked")
    moments = [events.index(word) for word in ("KILLED", "after the kill", "PAUSED", "after the pause", "REFUSED")]
    assert moments == sorted(moments)
    assert len(re.findall(r"(?m)^  ok ", summary)) == 5
    assert "FAILED" not in summary
    assert "\033" not in finished.stdout


def test_the_demo_runs_on_a_given_store_and_prints_json(lockstead: Lockstead) -> None:
    finished = lockstead("demo", "--workers", "5", "--url", lockstead.url, "--json")
    output = json.loads(finished.stdout)
    assert (finished.returncode, output["ok"]) == (0, True)
    assert all(check["passed"] for check in output["checks"])
    assert {event["process"] for event in output["events"]} >= {"worker 1", "worker 3", "worker 5"}
    assert lockstead.json("ls") == []
