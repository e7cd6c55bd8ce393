"""The lease table, its SQL functions and its migrations."""
