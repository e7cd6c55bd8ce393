"""Locks, elections, rate limits and the rest, built on the engine and shared by the two façades."""
