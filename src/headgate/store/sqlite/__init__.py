"""SQLite: the store on one SQLite file, shared by all processes of a machine."""
