"""What proves a store, one of ours or one of yours."""

from __future__ import annotations

from leasehold.testing.simulation import (
    Faults,
    Monitor,
    QuorumMonitor,
    SimulatedMember,
    SimulatedMemberStore,
    SimulatedServer,
    SimulatedStore,
    ViolationError,
)

__all__ = [
    "Faults",
    "Monitor",
    "QuorumMonitor",
    "SimulatedMember",
    "SimulatedMemberStore",
    "SimulatedServer",
    "SimulatedStore",
    "ViolationError",
]
