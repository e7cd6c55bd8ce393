"""Redis and Valkey: one server, Sentinel, Cluster."""
