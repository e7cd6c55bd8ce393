"""Advisory locks in the user's own transaction."""
