"""DBOS on a SQLite file that was set to WAL before. DBOS itself leaves the mode as it finds it."""

from __future__ import annotations

from bench.peers import dbos

if __name__ == "__main__":
    dbos.main(journal_mode="WAL")
