"""Execution pages: the list, and one execution with its timeline, what it waits for, and its history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from headgate.auth.roles import Permission
from headgate.durable.model.history import Status
from headgate.serve.pages.actions import REASON, Action, Field, FieldKind, Tone, allowed
from headgate.serve.pages.api_calls import ApiCaller, Section, segment, twin
from headgate.serve.pages.labels import command, options
from headgate.serve.pages.live_updates import ALL_WORK, changes_of
from headgate.serve.pages.page import Page, PageRequest, PageRoute
from headgate.serve.pages.work.execution_timeline import Timeline, timeline

LISTED: Final = 50
TURNS_MAX: Final = 1000
CHILDREN_MAX: Final = 50
FAILURES_MAX: Final = 10
FILTERS: Final = ("workflow", "status", "tag", "text", "since", "until", "cursor")
CHOICES: Final = frozenset({"tag"})
_CLOSED: Final = frozenset(each.value for each in Status if each.is_closed)


class ExecutionList(Struct, frozen=True, kw_only=True):
    """A page of the list."""

    executions: list[Any]
    cursor: str | None
    filters: Mapping[str, Any]
    workflows: list[str]
    statuses: tuple[str, ...] = tuple(each.value for each in Status)


class ResetLine(Struct, frozen=True):
    """A reset of the execution: the turn that records it, and the turn that was computed again."""

    turn: int
    run: int
    at_ms: int
    to: int
    reason: str
    from_failure: bool


class ExecutionPage(Struct, frozen=True, kw_only=True):
    """View of an execution."""

    execution: Any
    sentence: str
    timeline: Timeline
    turns: list[Any]
    has_more_turns: bool
    resets: list[ResetLine]
    # Turns that a later reset has dropped.
    dropped: frozenset[int]
    children: Section
    failures: Section
    log: Section
    commands: tuple[tuple[str, str], ...]


def sentence(execution: Mapping[str, Any]) -> str:
    """Return what is the matter with an execution, in one sentence."""
    error = execution["error"] or execution["failure"]
    why = f": {error['message']}" if error else ""
    match execution["status"]:
        case Status.RUNNING:
            blocked = next((each["fact"] for each in execution["waits_for"] if each["kind"] == "worker"), None)
            if blocked is not None:
                return f"It waits for a worker: {blocked}."
            waits = [_wait(each) for each in execution["waits_for"]]
            return (
                f"It waits for {', '.join(waits[:3])}{' and others' if len(waits) > 3 else ''}."
                if waits
                else "It runs."
            )
        case Status.STUCK:
            return f"It is stuck{why}. A worker with fixed code releases it, or redrive it."
        case status if status in _CLOSED and error:
            return f"It ended as {status.lower()}{why}"
        case status:
            return f"It ended as {status.lower()}."


def _wait(wait: Mapping[str, Any]) -> str:
    match wait["kind"]:
        case "activity":
            most = f" of {wait['attempts_max']}" if wait["attempts_max"] else ""
            attempt = f", attempt {wait['attempt']}{most}" if wait["attempt"] else ""
            state = f"{attempt}, {wait['state']}" if wait["state"] else ""
            return f"activity {wait['name']}{state}"
        case "signal":
            return f"signal {wait['name']}"
        case "timer" | "start":
            return f"a timer at {wait['due_at'][:19].replace('T', ' ')} UTC"
        case "child":
            return f"child {wait['execution_id']}"
        case "retry":
            return f"a retry of its turn after {wait['error']}"
        case "redrive":
            return "a redrive"
        case _:
            return str(wait.get("fact", wait["kind"]))


def execution_list(api: ApiCaller, query: Mapping[str, Any]) -> ExecutionList:
    """Return a page of the list. Raises as the API operation."""
    found = api.call("GET /executions", query={**query, "limit": LISTED})
    workflows = api.section("GET /workflows").items("workflows")
    return ExecutionList(
        executions=found["executions"],
        cursor=found["cursor"],
        filters={name: query.get(name, [] if name in CHOICES else "") for name in FILTERS},
        workflows=sorted({each["name"] for each in workflows}),
    )


def execution_page(api: ApiCaller, execution_id: str) -> ExecutionPage:
    """Return the page of an execution. Raises `NotFoundError`, and as the API operation."""
    path = {"id": execution_id}
    execution = api.call("GET /executions/{id}", path=path)
    history = api.call("GET /executions/{id}/history", path=path, query={"limit": TURNS_MAX})
    is_closed = execution["status"] in _CLOSED
    resets = reset_lines(history["turns"])
    return ExecutionPage(
        execution=execution,
        sentence=sentence(execution),
        timeline=timeline(history["turns"], api.now_ms, is_closed=is_closed),
        turns=history["turns"],
        resets=resets,
        dropped=dropped_turns(history["turns"], resets),
        has_more_turns=history["next_after"] is not None,
        children=api.section("GET /executions", query={"parent": execution_id, "limit": CHILDREN_MAX}),
        failures=api.section("GET /executions/{id}/failures", path=path, query={"limit": FAILURES_MAX}),
        log=api.section("GET /executions/{id}/logs", path=path, query={"limit": 200}),
        commands=(
            ("Its history", command("execution", "history", execution_id)),
            ("Its log", command("execution", "logs", execution_id)),
            ("Wait for its result", command("execution", "result", execution_id)),
            ("Replay it with the code of a folder", command("execution", "replay", execution_id)),
        ),
    )


def reset_lines(turns: Sequence[Mapping[str, Any]]) -> list[ResetLine]:
    """Return the resets that a history records, in their order."""
    return [
        ResetLine(
            turn["turn"],
            turn["run"],
            turn["at_ms"],
            event["to"],
            event.get("reason", ""),
            event.get("from_failure", False),
        )
        for turn in turns
        for event in turn["events"]
        if event["kind"] == "reset"
    ]


def dropped_turns(turns: Sequence[Mapping[str, Any]], resets: Sequence[ResetLine]) -> frozenset[int]:
    """Return the numbers of the turns that a later reset has dropped."""
    numbers = [turn["turn"] for turn in turns]
    return frozenset(number for number in numbers for reset in resets if reset.to <= number < reset.turn)


def execution_actions(api: ApiCaller, execution: Mapping[str, Any]) -> tuple[Action, ...]:
    """Return the actions that fit the state of an execution."""
    execution_id, status = execution["id"], execution["status"]
    base = f"/executions/{segment(execution_id)}"
    found: list[Action] = []
    if status == Status.STUCK:
        found.append(
            Action(
                label="Redrive",
                sentence="Tries the turn that failed again, with the code that the workers have now.",
                path=f"{base}/redrive",
                fields=(),
                cli=command("execution", "redrive", execution_id),
                tone=Tone.PRIMARY,
                done="The turn is tried again.",
            )
        )
    if status not in _CLOSED:
        waiting = [each["name"] for each in execution["waits_for"] if each["kind"] == "signal"]
        found += [
            Action(
                label="Send a signal",
                sentence="Delivers a message to the execution. It is kept until the code waits for it.",
                path=f"{base}/signals",
                fields=(
                    Field(name="name", label="Signal", value=waiting[0] if waiting else "", is_required=True),
                    Field(name="payload", label="Payload", kind=FieldKind.JSON, hint="A JSON value, or nothing."),
                ),
                cli=f"{command('execution', 'signal', execution_id)} {{name}} --payload {{payload}}",
                tone=Tone.PRIMARY if waiting else Tone.PLAIN,
                done="The signal is delivered.",
            ),
            Action(
                label="Cancel",
                sentence="Asks the code to end. It may clean up before it does.",
                path=f"{base}/cancel",
                cli=f"{command('execution', 'cancel', execution_id)} --reason {{reason}}",
                done="Cancellation is requested.",
            ),
            Action(
                label="Terminate",
                sentence="Ends the execution at once. Its code does not run, so nothing is cleaned up.",
                path=f"{base}/terminate",
                cli=f"{command('execution', 'terminate', execution_id)} --reason {{reason}}",
                tone=Tone.DANGER,
                done="The execution is terminated.",
            ),
        ]
    elif status != Status.SUCCEEDED:
        found += [
            Action(
                label="Continue from the failure",
                sentence="Computes the turn that ended it again, with the code that the workers have now. Completed "
                "activities are not repeated; one that failed runs again.",
                path=f"{base}/retry-from-failure",
                cli=f"{command('execution', 'retry', execution_id)} --from-failure --reason {{reason}}",
                tone=Tone.PRIMARY,
                done="It continues from the failure.",
            ),
            Action(
                label="Retry from the start",
                sentence="Starts the workflow again with the same input, as a new run under the same id.",
                path=f"{base}/retry",
                fields=(),
                cli=command("execution", "retry", execution_id),
                done="It was started again.",
            ),
        ]
    if execution["turn"]:
        found.append(
            Action(
                label="Reset",
                sentence="Goes back to a turn, or runs an activity again, with the history before it. What was done "
                "outside of Headgate since then is not undone.",
                path=f"{base}/reset",
                fields=(
                    Field(
                        name="to",
                        label="To",
                        is_required=True,
                        hint="A turn, an activity (NAME, NAME#NUMBER), or a state.",
                    ),
                    Field(
                        name="signals",
                        label="Signals since then",
                        kind=FieldKind.CHOICE,
                        value="keep",
                        choices=("keep", "drop"),
                    ),
                    REASON,
                ),
                cli=f"{command('execution', 'reset', execution_id)} --to {{to}} --signals {{signals}} "
                "--reason {reason}",
                done="It was reset.",
            )
        )
    return tuple(allowed(api, Permission.EXECUTION_WRITE, each) for each in found)


def _list(api: ApiCaller, request: PageRequest) -> Page:
    view = execution_list(api, request.query)
    filters = (
        ("--workflow", request.query.get("workflow")),
        ("--status", request.query.get("status")),
        ("--tag", request.query.get("tag", [])),
        ("--text", request.query.get("text")),
        ("--since", request.query.get("since")),
        ("--until", request.query.get("until")),
    )
    return Page(
        template="executions.html",
        title="Executions",
        view=view,
        json=twin("/executions", request.query),
        cli=command("execution", "ls", *options(filters)),
        changes=changes_of(of=ALL_WORK),
        section="executions",
    )


def _one(api: ApiCaller, request: PageRequest) -> Page:
    execution_id = request.path["execution_id"]
    view = execution_page(api, execution_id)
    return Page(
        template="execution.html",
        title=execution_id,
        crumbs=(("Executions", "/ui/executions"),),
        view=view,
        actions=execution_actions(api, view.execution),
        json=twin(f"/executions/{segment(execution_id)}"),
        cli=command("execution", "show", execution_id),
        changes=changes_of(of=ALL_WORK),
        section="executions",
    )


PAGES: Final = (
    PageRoute("/executions", _list, FILTERS, CHOICES, needs="GET /executions"),
    PageRoute("/executions/{execution_id:str}", _one),
)
