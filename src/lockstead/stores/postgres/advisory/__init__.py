"""PostgreSQL's session-level advisory locks."""
