"""Lineage pages: datasets and the jobs between them as a graph with the health of each, expanded step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from headgate.auth.roles import Permission
from headgate.errors import HeadgateError, InvalidPayloadError, TransientError
from headgate.health.lineage.blast_radius import Degree, LineageStep
from headgate.health.model import urns
from headgate.health.model.enums import SignalState
from headgate.pipelines.overview.attention import stored
from headgate.serve.pages.api_calls import ApiCaller, segment, twin
from headgate.serve.pages.labels import command
from headgate.serve.pages.live_updates import changes_of
from headgate.serve.pages.page import Chip, Page, PageRequest, PageRoute, chips

EXPAND: Final = "/ui/lineage/expand"
# Of a drawing within a page: beyond this it says less than a list.
NODES_MAX: Final = 120
# Of the lineage page, if more than one step is asked for.
ALL_NODES_MAX: Final = 2_000
ALL: Final = "all"
STEPS: Final = ("1", "2", "3", ALL)
CHOICES_MAX: Final = 50
_JOB: Final = "job:"
_WORST_FIRST: Final = (SignalState.CRITICAL, SignalState.WARNING, SignalState.UNKNOWN, SignalState.OK)
_TONES: Final[Mapping[SignalState, str]] = {
    SignalState.CRITICAL: "bad",
    SignalState.WARNING: "warn",
    SignalState.UNKNOWN: "odd",
    SignalState.OK: "good",
}


class GraphNode(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A box of the graph. `more` is the number of writers and readers that may be added to it."""

    id: str
    label: str
    kind: str
    tone: str = ""
    href: str = ""
    note: str = ""
    more: dict[str, int] = {}


class Graph(Struct, frozen=True, kw_only=True):
    """Boxes and arrows, as the page's script draws them. `hidden` datasets are outside of the caller's scope."""

    nodes: list[GraphNode]
    edges: list[tuple[str, str]]
    focus: str = ""
    hidden: int = 0
    is_complete: bool = True


class LineagePage(Struct, frozen=True, kw_only=True):
    """View of the lineage page. Without a dataset, it offers some."""

    urn: str
    graph: Graph | None
    datasets: list[Any]
    steps: list[Chip]
    expand: str = EXPAND


def lineage_graph(
    api: ApiCaller, urn: str, *, up_steps: int = 1, down_steps: int = 1, nodes_max: int = NODES_MAX
) -> Graph:
    """Return the graph around a dataset, nearest first. Raises as the API operations on its lineage."""
    urn = _readable(api, urn)
    found = _Collected(api, nodes_max)
    found.dataset(urn)
    for is_upstream, steps in ((True, up_steps), (False, down_steps)):
        frontier = [urn]
        for _ in range(steps):
            frontier = [reached for each in frontier for reached in found.step(each, is_upstream=is_upstream)]
            if not frontier:
                break
    return found.graph(focus=urn)


def expanded(api: ApiCaller, node: str, way: str) -> Graph:
    """Return what one more step adds to a node. Raises as `lineage_graph`, and `InvalidPayloadError`."""
    if way not in ("up", "down"):
        raise InvalidPayloadError(f"way {way[:20]!r}: use up or down")
    return lineage_graph(api, node, up_steps=int(way == "up"), down_steps=int(way == "down"))


class _Collected:
    """The nodes and edges found so far."""

    def __init__(self, api: ApiCaller, nodes_max: int) -> None:
        self._api = api
        self._nodes_max = nodes_max
        self._urns: dict[str, None] = {}
        self._jobs: dict[str, LineageStep] = {}
        self._edges: dict[tuple[str, str], None] = {}
        self._hidden: set[str] = set()
        self._is_complete = True

    def dataset(self, urn: str) -> bool:
        """Add a dataset, and return whether it is new. One outside of the scope is only counted."""
        if urn in self._urns:
            return False
        if not self._api.may(Permission.DATASET_READ, urn):
            self._hidden.add(urn)
            return False
        self._urns[urn] = None
        return True

    def step(self, urn: str, *, is_upstream: bool) -> list[str]:
        """Add the jobs next to a dataset and the datasets on their other side, and return the new datasets."""
        new: list[str] = []
        for step in self._api.health.blast_radii.step(urn, is_upstream=is_upstream):
            if len(self._urns) + len(self._jobs) >= self._nodes_max:
                self._is_complete = False
                break
            self._jobs[step.entity_id] = step
            self._edge(urn, step.entity_id, is_upstream=is_upstream)
            for other in step.datasets:
                if other == urn or len(self._urns) + len(self._jobs) >= self._nodes_max:
                    self._is_complete = self._is_complete and other == urn
                    continue
                if self.dataset(other):
                    new.append(other)
                if other in self._urns:
                    self._edge(other, step.entity_id, is_upstream=not is_upstream)
        return new

    def _edge(self, urn: str, entity_id: str, *, is_upstream: bool) -> None:
        job = _JOB + entity_id
        self._edges[(job, urn) if is_upstream else (urn, job)] = None

    def graph(self, focus: str) -> Graph:
        """Return the nodes with their health and what may still be added to them."""
        states = worst_states(self._api, self._urns)
        degrees = self._api.health.blast_radii.degrees(self._urns)
        written, read = (Counter(edge[place] for edge in self._edges) for place in (1, 0))
        nodes = []
        for urn in self._urns:
            left = Degree(degrees[urn].writers - written[urn], degrees[urn].readers - read[urn])
            nodes.append(dataset_node(urn, states.get(urn), more=_more(left)))
        defined = _defined(self._api, {each.entity_name for each in self._jobs.values()})
        nodes += [_job_node(each, is_pipeline=each.entity_name in defined) for each in self._jobs.values()]
        return Graph(
            nodes=nodes,
            edges=list(self._edges),
            focus=focus,
            hidden=len(self._hidden),
            is_complete=self._is_complete,
        )


def _more(left: Degree) -> dict[str, int]:
    """Return what may still be added to a dataset, by way."""
    ways = {"up": left.writers, "down": left.readers}
    return {way: count for way, count in ways.items() if count > 0}


def dataset_node(
    urn: str, state: SignalState | None, *, more: dict[str, int] | None = None, is_linked: bool = True
) -> GraphNode:
    """Return the box of a dataset with its worst signal state."""
    return GraphNode(
        id=urn,
        label=urn.removeprefix("urn:dp:"),
        kind="dataset",
        tone="" if state is None else _TONES[state],
        href=f"/ui/datasets/{segment(urn)}" if is_linked else "",
        note="" if state is None else state.value,
        more=more or {},
    )


def worst_states(api: ApiCaller, dataset_urns: Iterable[str]) -> dict[str, SignalState]:
    """Return the worst signal state of each dataset that has signals which the caller may read."""
    readable = [each for each in dataset_urns if api.may(Permission.SIGNAL_READ, each)]
    try:
        found = api.health.signals.of_datasets(readable) if readable else []
    except TransientError:
        return {}
    return {
        urn: min((each.state for each in signals), key=_WORST_FIRST.index)
        for urn, signals in zip(readable, found, strict=True)
        if signals
    }


def _defined(api: ApiCaller, names: Iterable[str]) -> set[str]:
    """Return the names that pipelines have, in one call to the store."""
    return set() if api.pipelines is None else {each.pipeline.id for each in stored(api.pipelines, sorted(names))}


def _job_node(step: LineageStep, *, is_pipeline: bool) -> GraphNode:
    return GraphNode(
        id=_JOB + step.entity_id,
        label=step.entity_name,
        kind="pipeline" if is_pipeline else step.entity_type.value.lower(),
        href=f"/ui/pipelines/{segment(step.entity_name)}" if is_pipeline else "",
    )


def _readable(api: ApiCaller, urn: str) -> str:
    """Return the registered name of a dataset whose lineage the caller may read. Raises as the API operation."""
    registered = api.health.registered(urns.dataset_urn(urn))
    api.call("GET /datasets/{dataset_urn}/writers", path={"dataset_urn": registered}, query={"page_size": 1})
    return registered


def _page(api: ApiCaller, request: PageRequest) -> Page:
    urn = str(request.query.get("dataset", ""))
    graph = _graph(api, urn, str(request.query.get("steps", STEPS[0]))) if urn else None
    datasets = [] if urn else _offered(api)
    choices = [("1 step", ""), ("2 steps", "2"), ("3 steps", "3"), ("all", ALL)]
    return Page(
        template="lineage.html",
        title="Lineage" if graph is None else graph.focus,
        crumbs=() if graph is None else (("Lineage", "/ui/lineage"),),
        view=LineagePage(
            urn="" if graph is None else graph.focus,
            graph=graph,
            datasets=datasets,
            steps=chips("/ui/lineage", request.query, "steps", choices),
        ),
        json=twin("/datasets") if graph is None else twin(f"/datasets/{segment(graph.focus)}/downstream"),
        cli=command("lineage", "downstream", graph.focus) if graph is not None else command("dataset", "ls"),
        changes=changes_of(),
        section="lineage",
    )


def _graph(api: ApiCaller, urn: str, steps: str) -> Graph:
    if steps not in STEPS:
        raise InvalidPayloadError(f"steps {steps[:20]!r}: use one of {', '.join(STEPS)}")
    if steps == STEPS[0]:
        return lineage_graph(api, urn)
    count = ALL_NODES_MAX if steps == ALL else int(steps)
    return lineage_graph(api, urn, up_steps=count, down_steps=count, nodes_max=ALL_NODES_MAX)


def _offered(api: ApiCaller) -> list[Any]:
    """Return datasets with the most readers and writers first."""
    listed = api.listed("GET /datasets", most=CHOICES_MAX).items
    degrees = api.health.blast_radii.degrees([each["dataset_urn"] for each in listed])
    states = worst_states(api, degrees)
    rows = [
        {
            "dataset_urn": each["dataset_urn"],
            "owner_team": each["owner_team"],
            "state": states[each["dataset_urn"]].value if each["dataset_urn"] in states else "",
            "writers": degrees[each["dataset_urn"]].writers,
            "readers": degrees[each["dataset_urn"]].readers,
        }
        for each in listed
    ]
    return sorted(rows, key=lambda each: -(each["writers"] + each["readers"]))


def graph_or_reason(api: ApiCaller, urn: str, **steps: int) -> tuple[Graph | None, str]:
    """Return the graph around a dataset for a part of a page, or why there is none."""
    try:
        return lineage_graph(api, urn, **steps), ""
    except HeadgateError as exc:
        return None, exc.message


PAGES: Final = (PageRoute("/lineage", _page, ("dataset", "steps")),)
