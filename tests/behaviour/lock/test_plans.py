"""What an acquisition costs before it reaches the engine, and the policy it carries."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from lockstead import InvalidInputError, RetryPolicy
from lockstead.core.model import Ask
from lockstead.primitives import plans
from lockstead.primitives.plans import Defaults, Plan

DEFAULTS = Defaults(30.0, RetryPolicy())


def calls_of_a_plan(**options: Any) -> list[str]:
    """Name the Python functions that planning calls, itself included."""
    called: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called.append(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        plans.plan("x", DEFAULTS, **options)
    finally:
        sys.setprofile(before)
    return called


def test_options_that_are_not_given_are_not_checked() -> None:
    """At most three calls: the plan, the check of its name, and one named tuple."""
    assert len(calls_of_a_plan()) <= 3
    as_facades_call = {"ttl": None, "timeout": plans.NO_WAIT, "at_least": 0.0, "renew": True, "reentrant": False}
    assert calls_of_a_plan(**as_facades_call) == calls_of_a_plan()
    assert len(calls_of_a_plan(ttl=5, timeout=1)) > 3


def test_a_plan_has_all_of_its_fields() -> None:
    """It is made without the constructor of its class, which would count them."""
    plan = plans.plan("x", DEFAULTS)
    assert type(plan) is Plan
    assert len(plan) == len(Plan._fields)
    assert plan == Plan(**plan._asdict())
    assert [len(ask) for ask in plan.asks] == [len(Ask._fields)]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"max_retries": -1}, "max_retries must be from 0"),
        ({"max_retries": float("nan")}, "max_retries must be a whole number, got nan"),
        ({"max_retries": "3"}, "max_retries must be a whole number, got '3'"),
        ({"max_retries": True}, "max_retries must be a whole number"),
        ({"retry_delay": 0}, "retry_delay must be above 0"),
        ({"retry_delay": 2.0}, "at most max_delay"),
        ({"retry_delay": "1"}, "retry_delay must be a number, got '1'"),
        ({"retry_delay": float("nan")}, "retry_delay must be from 0"),
        ({"max_delay": float("inf")}, "max_delay must be from 0"),
        ({"max_delay": None}, "max_delay must be a number, got None"),
        ({"backoff": 0.5}, "backoff must be from 1 to 1000, got 0.5"),
        ({"backoff": float("nan")}, "backoff must be from 1 to 1000"),
        ({"backoff": 1e10}, "backoff must be from 1 to 1000"),
        ({"jitter": 2}, "jitter must be from 0 to 1, got 2"),
        ({"jitter": float("nan")}, "jitter must be from 0 to 1"),
        ({"jitter": True}, "jitter must be a number"),
    ],
    ids=str,
)
def test_a_bad_retry_policy_is_refused_when_it_is_made(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        RetryPolicy(**settings)


def test_every_retry_policy_that_is_accepted_has_finite_pauses() -> None:
    extreme = RetryPolicy(max_retries=10**6, retry_delay=1.0, max_delay=5.0, backoff=1000.0, jitter=0)
    assert extreme.pause(10**6, 0.5) == 5.0
