"""Listed ids: for each noun, where the server lists what it names, and the page of one of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

if TYPE_CHECKING:
    from headgate.cli.api_client import Api


class Listing(NamedTuple):
    """A list of the API: its path, the member with the entries, the id of an entry, and the page of that id.

    A path with `{}` lists what belongs to the first argument of the command.
    """

    path: str
    # Lists within lists are separated by a dot.
    member: str
    field: str
    page: str | None = None
    # The parameter that limits the list, if it has one.
    limit: str | None = None
    query: Mapping[str, str] = {}


LISTINGS: Final[Mapping[str, Listing]] = {
    "pipeline": Listing("/pipelines", "pipelines", "id", "/pipelines/{}", "limit"),
    "run": Listing("/runs", "runs", "run_id", "/runs/{}", "limit"),
    "backfill": Listing("/backfills", "backfills", "backfill_id", "/backfills/{}", "limit"),
    "schedule": Listing("/schedules", "schedules", "id", "/schedules/{}", "limit"),
    "alert": Listing("/alerts", "alerts", "alert_id", "/alerts/{}", "limit"),
    "dataset": Listing("/datasets", "items", "dataset_urn", "/datasets/{}", "page_size"),
    "incident": Listing("/incidents", "items", "incident_id", "/incidents/{}", "page_size"),
    "job": Listing("/jobs", "items", "job_id", "/jobs/{}", "page_size"),
    # As `execution ls` lists them: without those of state machines, such as the lifecycles of pipelines.
    "execution": Listing("/executions", "executions", "id", "/executions/{}", "limit", {"machines": "false"}),
    "machine-execution": Listing(
        "/executions", "executions", "id", "/machine-executions/{}", "limit", {"workflow": "headgate.machine"}
    ),
    "machine": Listing("/machines", "machines", "name", "/machines/{}", "limit"),
    "fanout": Listing("/fanouts", "fanouts", "run_id", "/fanouts/{}", "limit"),
    "chunk": Listing("/fanouts/{}/chunks", "chunks", "chunk_id", "/fanouts/{}/chunks/{}", "limit"),
    "period": Listing("/pipelines/{}/run-logs", "run_logs", "date", limit="limit"),
    "version": Listing("/pipelines/{}/versions", "pipelines", "version", limit="limit"),
    "sensor": Listing("/pipelines/{}/sensors", "sensors", "key", limit="limit"),
    "trait": Listing("/pipelines/{}/traits", "traits", "trait_type"),
    "check": Listing("/datasets/{}/checks", "checks", "id"),
    "signal": Listing("/datasets/{}/signals", "signals", "signal_type"),
    "override": Listing("/gate/overrides/{}", "overrides", "override_id"),
    "workflow": Listing("/workflows", "workflows", "name"),
    "worker": Listing("/workers", "workers", "id"),
    "build": Listing("/deployments", "deployments.versions", "build"),
    "subscription": Listing("/subscriptions", "subscriptions", "name"),
    "replay": Listing("/subscriptions/{}/replays", "replays", "id"),
    "probe": Listing("/probes", "probes", "id"),
    "pool": Listing("/pools", "pools", "name"),
    "calendar": Listing("/calendars", "calendars", "name"),
    "channel": Listing("/alert-channels", "channels", "name"),
    "mute": Listing("/alert-mutes", "mutes", "mute_id"),
    "flag": Listing("/flags", "flags", "name"),
    "setting": Listing("/settings", "settings", "name"),
    "producer": Listing("/lineage/specs", "items", "producer_id", limit="page_size"),
    "api-key": Listing("/api-keys", "items", "key_id", limit="page_size"),
    "session": Listing("/sessions", "items", "sign_in_id", limit="page_size"),
    "chain": Listing("/audit/heads", "heads", "chain"),
}
# Nouns whose ids alone tell the page, in the order in which the server is asked.
PAGED: Final = (
    "pipeline",
    "machine-execution",
    "execution",
    "fanout",
    "schedule",
    "machine",
    "backfill",
    "job",
    "run",
    "dataset",
    "incident",
    "alert",
)
# Arguments that have the same meaning in every group of commands.
_BY_ARGUMENT: Final = {
    "pipeline": ("pipeline",),
    "urn": ("dataset",),
    "urns": ("dataset",),
    "workflow": ("workflow",),
    "subscription": ("subscription",),
    "worker": ("worker",),
    "build": ("build",),
    "channel": ("channel",),
    "mute": ("mute",),
    "chain": ("chain",),
    "date": ("period",),
    "dataset": ("dataset",),
}
# Options that take an id, by the names of their parameters. Other options of such names set one.
ID_OPTIONS: Final = frozenset({"pipeline", "workflow", "dataset", "urn", "date", "build", "subscription"})
_BY_GROUP: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("asl", "name"): ("machine",),
    ("asl", "machine"): ("machine",),
    ("asl", "id"): ("machine-execution",),
    ("check", "name"): ("check",),
    ("chunk", "run_id"): ("fanout",),
    ("chunk", "id"): ("fanout",),
    ("chunk", "chunk_id"): ("chunk",),
    ("fanout", "ids"): ("fanout",),
    ("fanout", "before"): ("fanout",),
    ("fanout", "after"): ("fanout",),
    ("fanout", "chunk"): ("chunk",),
    ("fanout", "chunks"): ("chunk",),
    ("open", "name"): PAGED,
    ("open", "part"): ("chunk", "period"),
    ("pipeline", "before"): ("version",),
    ("pipeline", "after"): ("version",),
    ("pool", "run"): ("run",),
    ("run", "target"): ("pipeline", "run"),
    ("sensor", "key"): ("sensor",),
    ("settings", "name"): ("setting",),
    ("signal", "type"): ("signal",),
    ("trait", "type"): ("trait",),
}
_BY_COMMAND: Final[Mapping[tuple[str, str, str], tuple[str, ...]]] = {
    # It names a new one.
    ("schedule", "create", "id"): (),
    ("check", "try", "name"): (),
    ("dataset", "merge", "into"): ("dataset",),
    ("event", "stop-replay", "id"): ("replay",),
    ("evidence", "show", "id"): (),
    ("gate", "flag", "name"): ("flag",),
    ("gate", "revoke", "id"): ("override",),
    ("lineage", "producer", "id"): ("producer",),
}
_OWN_IDS: Final = frozenset({"id", "run", "alert", "backfill"})
_OWN_NAMES: Final = frozenset({"calendar", "pool", "probe"})


def nouns_of(group: str, verb: str, argument: str) -> tuple[str, ...]:
    """Return the nouns whose ids an argument of a command takes; none if it takes something else."""
    if (group, verb, argument) in _BY_COMMAND:
        return _BY_COMMAND[group, verb, argument]
    if (group, argument) in _BY_GROUP:
        return _BY_GROUP[group, argument]
    if argument in _BY_ARGUMENT:
        return _BY_ARGUMENT[argument]
    is_own = argument in _OWN_IDS or (argument == "name" and group in _OWN_NAMES)
    return (group,) if is_own and group in LISTINGS else ()


def ids(api: Api, noun: str, owner: str = "", limit: int = 100) -> list[str]:
    """Return ids of a noun, the latest first where the server lists them so. Raises as `Api.request` does.

    `owner` is the id of what they belong to, if the path of the list names it.
    """
    listing = LISTINGS[noun]
    query: dict[str, Any] = {**listing.query, **({listing.limit: limit} if listing.limit else {})}
    answer = api.get(listing.path.format(quote(owner, safe="")), **query)
    return list(dict.fromkeys(str(entry[listing.field]) for entry in _entries(answer, listing.member.split("."))))


def _entries(answer: Mapping[str, Any], members: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    first, *rest = members
    for entry in answer[first]:
        if rest:
            yield from _entries(entry, rest)
        else:
            yield entry


def page_of(noun: str, *names: str) -> str:
    """Return the path of the page of an id; that of a chunk has the id of its fan-out before its own."""
    page = LISTINGS[noun].page
    if page is None:
        raise ValueError(f"{noun}: has no page")
    return f"/ui{page.format(*(quote(each, safe='') for each in names))}"
