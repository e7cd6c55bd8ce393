"""SQLite: lines in a file, shared by the processes of one machine."""
