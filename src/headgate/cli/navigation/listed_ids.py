"""Listed ids: for each noun, where the server lists what it names, and the page of one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

if TYPE_CHECKING:
    from headgate.cli.api_client import Api


class Listing(NamedTuple):
    """A list of the API: its path, the member with the entries, the id of an entry, and the page of that id."""

    path: str
    member: str
    field: str
    page: str | None = None
    # The parameter that limits the list, if it has one.
    limit: str | None = "limit"


_RUNS: Final = Listing("/runs", "runs", "run_id", "/runs/{}")
_EXECUTIONS: Final = Listing("/executions", "executions", "id", "/executions/{}")
_DATASETS: Final = Listing("/datasets", "items", "dataset_urn", "/datasets/{}", "page_size")
_MACHINES: Final = Listing("/machines", "machines", "name", "/machines/{}")
_FANOUTS: Final = Listing("/fanouts", "fanouts", "run_id", "/fanouts/{}")
LISTINGS: Final[Mapping[str, Listing]] = {
    "pipeline": Listing("/pipelines", "pipelines", "id", "/pipelines/{}"),
    "run": _RUNS,
    "backfill": Listing("/backfills", "backfills", "backfill_id", "/backfills/{}"),
    "schedule": Listing("/schedules", "schedules", "id", "/schedules/{}"),
    "alert": Listing("/alerts", "alerts", "alert_id", "/alerts/{}"),
    "dataset": _DATASETS,
    "incident": Listing("/incidents", "items", "incident_id", "/incidents/{}", "page_size"),
    "job": Listing("/jobs", "items", "id", "/jobs/{}", "page_size"),
    "execution": _EXECUTIONS,
    "machine": _MACHINES,
    "fanout": _FANOUTS,
    "workflow": Listing("/workflows", "workflows", "name", None, None),
    "probe": Listing("/probes", "probes", "name", None, None),
    "pool": Listing("/pools", "pools", "name", None, None),
    "calendar": Listing("/calendars", "calendars", "name", None, None),
}
# Arguments that name something of another noun than their command's.
_BY_ARGUMENT: Final = {"pipeline": "pipeline", "urn": "dataset", "urns": "dataset", "workflow": "workflow"}
_BY_COMMAND: Final = {
    ("asl", "name"): "machine",
    ("asl", "machine"): "machine",
    ("asl", "id"): "execution",
    ("chunk", "run_id"): "fanout",
    ("chunk", "id"): "fanout",
    ("fanout", "id"): "fanout",
    ("fanout", "ids"): "fanout",
    ("fanout", "before"): "fanout",
    ("fanout", "after"): "fanout",
    ("pool", "run"): "run",
    ("run", "target"): "pipeline",
}
_OWN_IDS: Final = frozenset({"id", "name", "run", "alert", "backfill"})


def noun_of(group: str, argument: str) -> str | None:
    """Return the noun whose ids an argument of a command group takes, or None if it takes something else."""
    if (group, argument) in _BY_COMMAND:
        return _BY_COMMAND[group, argument]
    if argument in _BY_ARGUMENT:
        return _BY_ARGUMENT[argument]
    return group if argument in _OWN_IDS and group in LISTINGS else None


def ids(api: Api, noun: str, limit: int = 100) -> list[str]:
    """Return ids of a noun, the latest first where the server lists them so. Raises as `Api.request` does."""
    listing = LISTINGS[noun]
    query: dict[str, Any] = {} if listing.limit is None else {listing.limit: limit}
    return [str(entry[listing.field]) for entry in api.get(listing.path, **query)[listing.member]]


def page_of(noun: str, name: str) -> str | None:
    """Return the path of the page of an id, or None if the noun has no pages."""
    page = LISTINGS[noun].page
    return None if page is None else f"/ui{page.format(quote(name, safe=''))}"
