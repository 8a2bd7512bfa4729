"""A fan-out on a DBOS queue on a SQLite file, in this process: an enqueued workflow for each item.

Runs in the peers' environment and prints one `FanoutAnswer`.
"""
# The peers' packages are not in the environment that checks types.
# mypy: disable-error-code="import-not-found, untyped-decorator"

from __future__ import annotations

from importlib.metadata import version
from time import perf_counter

from dbos import DBOS

from bench.peers.answer import rate
from bench.peers.dbos import durability
from bench.peers.fanout_answer import WARM_UP_ITEMS, FanoutAnswer, asked, tell

QUEUE = "items"


# Without a step, which would be one more commit.
@DBOS.workflow()
def nothing(item: int) -> int:
    return item


def main() -> None:
    folder, items = asked()
    file = folder / "dbos.sqlite"
    DBOS(config={"name": "peers", "system_database_url": f"sqlite:///{file}", "log_level": "ERROR"})
    DBOS.launch()
    try:
        # As it comes: no limit to how many run at once, and a look at the queue every second.
        DBOS.register_queue(QUEUE)
        mapped(WARM_UP_ITEMS)
        # What it says of steps does not apply.
        promise = durability(file).rpartition(", ")[0]
        answer = FanoutAnswer(version("dbos"), f"queue with its defaults, {promise}", mapped(items))
    finally:
        DBOS.destroy()
    tell(answer)


def mapped(items: int) -> float:
    started = perf_counter()
    handles = [DBOS.enqueue_workflow(QUEUE, nothing, item) for item in range(items)]
    results = [handle.get_result() for handle in handles]
    assert results == list(range(items))
    return rate(items, started)


if __name__ == "__main__":
    main()
