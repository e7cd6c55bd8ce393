"""Connections to a server, for the stores that have one: pools, pipelines and subscribers."""
