"""The protocol: a pure rule over an ordered line of places, and the engine that acquires and renews them. No I/O."""
