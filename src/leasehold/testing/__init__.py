"""What proves a store, one of ours or one of yours."""

from __future__ import annotations

from leasehold.testing.simulation.any_store import simulate
from leasehold.testing.simulation.memory import SimulatedMember, SimulatedMemberStore, SimulatedServer
from leasehold.testing.simulation.monitor import Monitor, QuorumMonitor, ViolationError
from leasehold.testing.simulation.network import Faults, SimulatedStore

__all__ = [
    "Faults",
    "Monitor",
    "QuorumMonitor",
    "SimulatedMember",
    "SimulatedMemberStore",
    "SimulatedServer",
    "SimulatedStore",
    "ViolationError",
    "simulate",
]
