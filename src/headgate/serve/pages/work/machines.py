"""State machine pages: the list, a machine drawn as a graph, and an execution with its progress lit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from headgate.asl.graph.labels import StateMark
from headgate.asl.machines.executions import ExecutionStatus
from headgate.auth.roles import Permission
from headgate.serve.pages.actions import REASON, Action, Field, FieldKind, Tone, allowed
from headgate.serve.pages.api_calls import ApiCaller, Section, segment, twin
from headgate.serve.pages.labels import command, options
from headgate.serve.pages.live_updates import ALL_WORK, changes_of
from headgate.serve.pages.page import Chip, Page, PageRequest, PageRoute, chips, following
from headgate.serve.pages.work.machine_graph import machine_graph
from headgate.serve.rest.asl.events import details_of
from headgate.serve.rest.asl.state_visits import Visits

ADDRESS: Final = "/ui/machines"
LISTED: Final = 100
EXECUTIONS_MAX: Final = 50
FAILURES_MAX: Final = 10
# Events read for the progress of an execution, in pages, and events listed.
_EVENTS_PAGE: Final = 1000
_PAGES_MAX: Final = 10
EVENTS_SHOWN: Final = 200
FILTERS: Final = ("status", "version", "cursor")
_STATES: Final = (("All", ""), *((each.value.replace("_", " ").capitalize(), each.value) for each in ExecutionStatus))


class MachinePage(Struct, frozen=True, kw_only=True):
    """View of a machine."""

    machine: Any
    graph: Any
    executions: Section
    versions: Section
    chips: list[Chip]
    more: str
    start_cli: str


class StateEvent(Struct, frozen=True):
    """An event of an execution, with the state that it belongs to."""

    event: Any
    state: str
    details: Any


class MachineExecutionPage(Struct, frozen=True, kw_only=True):
    """View of an execution. Without `graph`, its definition is not stored."""

    execution: Any
    sentence: str
    graph: Any
    events: list[StateEvent]
    hidden: int
    fanouts: Mapping[str, str]
    # Of its durable execution: what it waits for, and failed attempts at Tasks.
    waits: list[Any]
    failures: Section
    history_cli: str


class Progress(Struct, frozen=True):
    """The mark of each visited state, the fan-outs of distributed Maps by state, and the events."""

    marks: Mapping[str, StateMark]
    fanouts: Mapping[str, str]
    events: list[StateEvent]


def progress_of(events: Sequence[Mapping[str, Any]]) -> Progress:
    """Return the progress that the events of an execution show."""
    visits = Visits()
    found, fanouts = [], {}
    for event in events:
        visit = visits.take(event)
        if visit is not None and visit.map_run:
            fanouts[visit.name] = visit.map_run
        found.append(StateEvent(event, "" if visit is None else visit.name, details_of(event)))
    return Progress(visits.statuses(), fanouts, found)


def sentence(execution: Mapping[str, Any]) -> str:
    """Return the state of an execution in one sentence."""
    states = ", ".join(execution["states"])
    match ExecutionStatus(execution["status"]):
        case ExecutionStatus.RUNNING:
            return f"It is in {states}." if states else "It has not entered a state yet."
        case ExecutionStatus.SUCCEEDED:
            return "It succeeded."
        case ExecutionStatus.ABORTED:
            return f"It was stopped{': ' + execution['cause'] if execution['cause'] else ''}."
        case _:
            where = f" in {states}" if states else ""
            cause = f": {execution['cause']}" if execution["cause"] else ""
            return f"It failed{where} with {execution['error'] or 'an error'}{cause}. Fix the cause, then redrive it."


def _list(api: ApiCaller, request: PageRequest) -> Page:
    found = api.call("GET /machines", query={**request.query, "limit": LISTED})
    return Page(
        template="machines.html",
        title="Machines",
        view={"machines": found["machines"], "more": following(ADDRESS, request.query, found["cursor"])},
        json=twin("/machines", request.query),
        cli=command("asl", "ls"),
        changes=changes_of(of=ALL_WORK),
        section="machines",
    )


def _start(api: ApiCaller, name: str) -> Action:
    action = Action(
        label="Start",
        sentence=f"Starts an execution of {name}.",
        path=f"/machines/{segment(name)}/executions",
        fields=(Field(name="input", label="Input", kind=FieldKind.JSON, value="{}", hint="A JSON value."),),
        cli=f"{command('asl', 'run', name, '--detach')} --input {{input}}",
        tone=Tone.PRIMARY,
        done="It is started.",
    )
    return allowed(api, Permission.EXECUTION_WRITE, action)


def _one(api: ApiCaller, request: PageRequest) -> Page:
    name, query = request.path["name"], request.query
    path, address = {"name": name}, f"{ADDRESS}/{segment(request.path['name'])}"
    version = {"version": query["version"]} if "version" in query else {}
    machine = api.call("GET /machines/{name}", path=path, query=version)
    selected = {key: query[key] for key in ("status", "cursor") if key in query}
    executions = api.section("GET /machines/{name}/executions", path=path, query={**selected, "limit": EXECUTIONS_MAX})
    cursor = None if executions.value is None else executions.value["cursor"]
    return Page(
        template="machine.html",
        title=name,
        crumbs=(("Machines", ADDRESS),),
        view=MachinePage(
            machine=machine,
            graph=machine_graph(machine["definition"]),
            executions=executions,
            versions=api.section("GET /machines/{name}/versions", path=path, query={"limit": LISTED}),
            chips=chips(address, query, "status", _STATES),
            more=following(address, query, cursor),
            start_cli=command("asl", "run", name, "--input", "{}", "--detach"),
        ),
        actions=(_start(api, name),),
        json=twin(f"/machines/{segment(name)}", version),
        cli=command("asl", "show", name, *options((("--version", query.get("version")),))),
        changes=changes_of(of=ALL_WORK),
        section="machines",
    )


def _events(api: ApiCaller, execution_id: str) -> list[Any]:
    events: list[Any] = []
    query: dict[str, Any] = {"limit": _EVENTS_PAGE}
    for _ in range(_PAGES_MAX):
        page = api.call("GET /machine-executions/{id}/history", path={"id": execution_id}, query=query)
        events += page["events"]
        if page["cursor"] is None:
            break
        query["cursor"] = page["cursor"]
    return events


def entered_states(events: Sequence[Mapping[str, Any]], definition: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the states of the outermost level that an execution has entered, the last one first."""
    states = {} if definition is None else definition.get("States", {})
    names = [
        str(details_of(event).get("name", "")) for event in reversed(events) if event["type"].endswith("StateEntered")
    ]
    return tuple(dict.fromkeys(name for name in names if name in states))


def execution_actions(api: ApiCaller, execution: Mapping[str, Any], entered: Sequence[str] = ()) -> tuple[Action, ...]:
    """Return the actions that fit the state of an execution, which has `entered` these states."""
    execution_id, status = execution["id"], ExecutionStatus(execution["status"])
    base = f"/machine-executions/{segment(execution_id)}"
    found: list[Action] = []
    if status is ExecutionStatus.RUNNING:
        found.append(
            Action(
                label="Stop",
                sentence="Ends the execution. Its state is ABORTED.",
                path=f"{base}/stop",
                fields=(Field(name="cause", label="Reason", is_required=True, hint="Recorded in the history."),),
                cli=f"{command('asl', 'stop', execution_id)} --cause {{cause}}",
                tone=Tone.DANGER,
                done="The execution is stopped.",
            )
        )
    elif status is not ExecutionStatus.SUCCEEDED:
        found.append(
            Action(
                label="Redrive",
                sentence="Continues from the failed state; states that succeeded do not run again.",
                path=f"{base}/redrive",
                fields=(),
                cli=command("asl", "redrive", execution_id),
                tone=Tone.PRIMARY,
                done="The execution goes on.",
            )
        )
    if status is not ExecutionStatus.RUNNING and entered:
        found.append(
            Action(
                label="Reset",
                sentence="Runs it again from a state that it has entered, with the input of that entry. What was done "
                "outside of Headgate since then is not undone.",
                path=f"/executions/{segment(execution_id)}/reset",
                fields=(
                    Field(name="to", label="State", kind=FieldKind.CHOICE, value=entered[0], choices=tuple(entered)),
                    REASON,
                ),
                cli=f"{command('execution', 'reset', execution_id)} --to {{to}} --reason {{reason}}",
                done="It was reset.",
            )
        )
    return tuple(allowed(api, Permission.EXECUTION_WRITE, each) for each in found)


def _execution(api: ApiCaller, request: PageRequest) -> Page:
    execution_id = request.path["execution_id"]
    execution = api.call("GET /machine-executions/{id}", path={"id": execution_id})
    events = _events(api, execution_id)
    progress = progress_of(events)
    name = execution["machine"]
    durable = {"id": execution_id}
    waiting = api.section("GET /executions/{id}", path=durable)
    version = {"version": execution["version"]} if execution["version"] else {}
    machine = api.section("GET /machines/{name}", path={"name": name}, query=version)
    known = None if machine.value is None else machine.value["definition"]
    return Page(
        template="machine_execution.html",
        title=execution["name"] or execution_id,
        crumbs=(("Machines", ADDRESS), *(((name, f"{ADDRESS}/{segment(name)}"),) if known is not None else ())),
        view=MachineExecutionPage(
            execution=execution,
            sentence=sentence(execution),
            graph=None if known is None else machine_graph(known, progress.marks, progress.fanouts),
            events=progress.events[:EVENTS_SHOWN],
            hidden=max(0, len(progress.events) - EVENTS_SHOWN),
            fanouts=progress.fanouts,
            waits=waiting.items("waits_for"),
            failures=api.section("GET /executions/{id}/failures", path=durable, query={"limit": FAILURES_MAX}),
            history_cli=command("asl", "history", execution_id),
        ),
        actions=execution_actions(api, execution, entered_states(events, known)),
        json=twin(f"/machine-executions/{segment(execution_id)}"),
        cli=command("asl", "show-execution", execution_id),
        changes=changes_of(of=ALL_WORK),
        section="machines",
    )


PAGES: Final = (
    PageRoute("/machines", _list, ("cursor",), needs="GET /machines"),
    PageRoute("/machines/{name:str}", _one, FILTERS),
    PageRoute("/machine-executions/{execution_id:str}", _execution),
)
