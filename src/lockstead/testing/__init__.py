"""Tests for a store, one of ours or one of yours: simulation, contract and torture."""

from __future__ import annotations

from lockstead.testing.simulation.any_store import simulate
from lockstead.testing.simulation.memory import SimulatedMember, SimulatedMemberStore, SimulatedServer
from lockstead.testing.simulation.monitor import Monitor, QuorumMonitor, ViolationError
from lockstead.testing.simulation.network import Faults, SimulatedStore

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
