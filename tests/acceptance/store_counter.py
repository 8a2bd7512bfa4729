"""A process that adds to one counter by compare-and-swap from several threads.

`python -m tests.acceptance.store_counter FOLDER THREADS TIMES` prints the versions it made, a line each.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from headgate.errors import ConflictError
from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.conditions import version_is
from headgate.store.model.schema import Key
from tests.stores import open_sqlite

COUNTER = Key("QUOTA#everyone", "total")


def main() -> None:
    folder, threads, times = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    store = open_sqlite(folder)
    made: list[int] = []

    def add() -> None:
        for _ in range(times):
            item = store.get(CONTROL, COUNTER, consistent=True)
            while True:
                assert item is not None
                try:
                    following = item["version"] + 1
                    store.update(CONTROL, COUNTER, set={"version": following}, condition=version_is(item["version"]))
                except ConflictError as exc:
                    item = exc.current
                else:
                    made.append(following)
                    break

    workers = [threading.Thread(target=add) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    store.close()
    sys.stdout.write("".join(f"{version}\n" for version in made))


if __name__ == "__main__":
    main()
