"""A fan-out by Prefect's `map` in a flow, with the server on a SQLite file that Prefect starts for it.

Runs in the peers' environment and prints one `FanoutAnswer`.
"""
# The peers' packages are not in the environment that checks types.
# mypy: disable-error-code="import-not-found, untyped-decorator"

from __future__ import annotations

from importlib.metadata import version
from time import perf_counter

from prefect import flow, task

from bench.peers.answer import rate
from bench.peers.fanout_answer import WARM_UP_ITEMS, FanoutAnswer, asked, tell


@task
def nothing(item: int) -> int:
    return item


@flow
def fan_out(items: int) -> list[int]:
    results: list[int] = nothing.map(range(items)).result()
    return results


def main() -> None:
    # Its server keeps its file in the home folder, which is the one that may be written to.
    _, items = asked()
    mapped(WARM_UP_ITEMS)
    promise = "SQLite file with synchronous=NORMAL, states of tasks sent to its server as events and written later"
    tell(FanoutAnswer(version("prefect"), promise, mapped(items)))


def mapped(items: int) -> float:
    started = perf_counter()
    assert fan_out(items) == list(range(items))
    return rate(items, started)


if __name__ == "__main__":
    main()
