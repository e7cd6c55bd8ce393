"""Idempotency keys: a webhook is delivered three times, but booked once; every delivery gets the same answer.

Run it: python examples/once.py
"""

from __future__ import annotations

import threading

from lockstead import DistributedLock

locks = DistributedLock("memory://once")
booked: list[str] = []


@locks.once("webhook:{event_id}", period=24 * 3600, timeout=10)
def handle_event(event_id: str, amount: int) -> dict[str, int]:
    booked.append(event_id)
    return {"receipt": len(booked), "amount": amount}


if __name__ == "__main__":
    answers: list[dict[str, int]] = []
    deliveries = [threading.Thread(target=lambda: answers.append(handle_event("evt_42", 1999))) for _ in range(3)]
    for delivery in deliveries:
        delivery.start()
    for delivery in deliveries:
        delivery.join()
    print(f"3 deliveries, booked {len(booked)} time(s), answers {answers}")
    assert booked == ["evt_42"]
    assert answers == [{"receipt": 1, "amount": 1999}] * 3
    locks.close()
