"""A process that writes to a store until it is killed, saying on standard output what was acknowledged.

Each transaction writes two rows that must agree and moves a counter by compare-and-swap:
`python -m tests.acceptance.store_writer FOLDER NAME THREADS`.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from headgate.store.catalogue.tables import CONTROL, FANOUT
from headgate.store.model.requests import Put
from tests.stores import open_sqlite


def main() -> None:
    folder, name, threads = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    store = open_sqlite(folder)

    def write(thread: int) -> None:
        number = 0
        while True:
            pair = f"{name}-{thread}-{number:06d}"
            store.transact(
                [
                    Put(CONTROL, {"PK": f"DEDUP#{pair}", "SK": "DEDUP", "due_pk": name, "due_at_ms": number}),
                    Put(FANOUT, {"PK": f"run-{name}", "SK": f"CHUNK#chunk-{pair}", "GSI1_PK": name, "GSI1_SK": pair}),
                ]
            )
            # One write call a line: a line is either there whole or not at all, whenever the process dies.
            os.write(1, f"{pair}\n".encode())
            number += 1

    for thread in range(threads):
        threading.Thread(target=write, args=(thread,), daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
