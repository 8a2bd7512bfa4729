"""Worker page: worker processes, the builds of their code, the queues that they serve, and the pools of pipelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from headgate.auth.roles import Permission
from headgate.serve.pages.actions import Action, Tone, allowed
from headgate.serve.pages.api_calls import ApiCaller, Section, segment, twin
from headgate.serve.pages.labels import command
from headgate.serve.pages.live_updates import ALL_WORK, changes_of
from headgate.serve.pages.page import Chip, Page, PageRequest, PageRoute, chips
from headgate.serve.pages.work.versions import VersionTable, version_table

ADDRESS: Final = "/ui/workers"
FILTERS: Final = ("state", "queue")
_ALIVE: Final = "alive"
_STATES: Final = (("All", ""), ("Alive", _ALIVE), ("Gone", "gone"))


class Queue(Struct, frozen=True):
    """A queue, with the workers that are alive and those that are gone."""

    name: str
    alive: int
    gone: int


class WorkerPage(Struct, frozen=True, kw_only=True):
    """View of the workers."""

    workers: list[Any]
    versions: VersionTable
    queues: list[Queue]
    chips: list[Chip]
    filters: Mapping[str, Any]
    pools: Section
    frees: Mapping[tuple[str, str], Action]


def queues_of(workers: Sequence[Mapping[str, Any]]) -> list[Queue]:
    """Return the queues of all workers, those without a live worker first."""
    counts: dict[str, list[int]] = {}
    for worker in workers:
        for name in worker["queues"]:
            counts.setdefault(name, [0, 0])[0 if worker["alive"] else 1] += 1
    found = [Queue(name, alive, gone) for name, (alive, gone) in counts.items()]
    return sorted(found, key=lambda each: (each.alive > 0, each.name))


def _free(api: ApiCaller, pool: str, run_id: str) -> Action:
    action = Action(
        label="Free",
        sentence="Frees the slots of the run for others. Its job goes on if it is still running.",
        path=f"/pools/{segment(pool)}/free",
        body={"run_id": run_id},
        cli=f"{command('pool', 'free', pool, run_id)} --reason {{reason}}",
        tone=Tone.DANGER,
        done="The slots are free.",
    )
    return allowed(api, Permission.PIPELINE_CONTROL, action)


def worker_page(api: ApiCaller, query: Mapping[str, Any]) -> WorkerPage:
    """Return the page of the workers. Raises as the API operation."""
    every = api.call("GET /workers")["workers"]
    state, queue = query.get("state"), query.get("queue")
    pools = api.section("GET /pools")
    leases = [(pool["name"], lease["run_id"]) for pool in pools.items("pools") for lease in pool["leases"]]
    return WorkerPage(
        workers=[
            each
            for each in every
            if (state is None or each["alive"] is (state == _ALIVE)) and (queue is None or queue in each["queues"])
        ],
        versions=version_table(api),
        queues=queues_of(every),
        chips=chips(ADDRESS, query, "state", _STATES),
        filters={name: query.get(name, "") for name in FILTERS},
        pools=pools,
        frees={key: _free(api, *key) for key in leases},
    )


def _page(api: ApiCaller, request: PageRequest) -> Page:
    return Page(
        template="workers.html",
        title="Workers",
        view=worker_page(api, request.query),
        json=twin("/workers"),
        cli=command("worker", "ls"),
        changes=changes_of(of=ALL_WORK),
        section="workers",
    )


PAGES: Final = (PageRoute("/workers", _page, FILTERS, needs="GET /workers"),)
