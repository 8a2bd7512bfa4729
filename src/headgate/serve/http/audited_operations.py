"""Audited operations: writes the audit entry of an API operation around its handler."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from string import Formatter
from typing import Any, Final, cast

import msgspec
from litestar import Response
from msgspec import Struct

from headgate.errors import HeadgateError
from headgate.health.audit.actions import Action, ActionLog, ActionRefused, State
from headgate.serve.http.operations import Answer, Call, Operation, Result

# The text of the caller. A rerun has a note of the person beside a reason that is a kind of rerun.
_NAMED: Final = ("note", "cause", "reason")


class AuditedAction(Struct, frozen=True):
    """The audit entry of an operation.

    `entity` is formatted with the parameters of the path and the fields of the response. `state` is the path of the
    GET operation that shows the resource before and after the change; without it the response is what was changed.
    """

    action: str
    entity: str
    state: str | None = None


class Unaudited(enum.StrEnum):
    """Why an operation has no audit entry of its own."""

    # Its service commits the entry together with the change.
    BY_SERVICE = "by the service"
    # It reports data or the progress of work; what it writes is the record.
    REPORT = "report"
    # It only reads.
    READ = "read"


class OperationAudit:
    """Runs operations and audits them, by a table of method and path."""

    def __init__(self, actions: ActionLog, table: Mapping[tuple[str, str], AuditedAction | Unaudited]) -> None:
        self._actions = actions
        self._table = table

    def audited(self, operations: Sequence[Operation]) -> list[Operation]:
        """Return the operations with auditing around their handlers. Raises `KeyError` for one not in the table."""
        shown = {each.path: each for each in operations if each.method == "GET"}
        return [each if each.method == "GET" else self._audited(each, shown) for each in operations]

    def _audited(self, operation: Operation, shown: Mapping[str, Operation]) -> Operation:
        action = self._table[operation.method, operation.path]
        if isinstance(action, Unaudited):
            return operation
        show = None if action.state is None else shown[action.state]
        if any(inspect.iscoroutinefunction(each.run) for each in (operation, show) if each is not None):
            raise TypeError(f"{operation.method} {operation.path}: a handler on the event loop cannot be audited")
        run = operation.run

        def handle(call: Call[Any, Any]) -> Result:
            def state(answer: Result | None) -> State:
                if show is not None:
                    return _shown(show, call)
                return _content(answer)

            about = Action(
                actor=call.principal.name,
                action=action.action,
                entity=_entity(action.entity, call),
                reason=_reason(call),
            )
            if getattr(call.body, "dry_run", False) or getattr(call.body, "is_heartbeat", False):
                # It changes nothing that an audit is about.
                return cast("Result", run(call))
            try:
                return self._actions.run(
                    about,
                    lambda: _accepted(cast("Result", run(call))),
                    state=state,
                    entity_of=lambda answer: _entity(action.entity, call, _content(answer)),
                )
            except _Refused as exc:
                return exc.answer

        return replace(operation, run=handle)


class _Refused(ActionRefused):
    """The handler refused the request with a response instead of an error."""

    def __init__(self, answer: Response[Any]) -> None:
        super().__init__()
        self.answer = answer


def _accepted(answer: Result) -> Result:
    if isinstance(answer, Response) and answer.status_code is not None and answer.status_code >= HTTPStatus.BAD_REQUEST:
        raise _Refused(answer)
    return answer


def _shown(show: Operation, call: Call[Any, Any]) -> State:
    """Return what the GET operation of the resource shows; None if it refuses, as for a missing resource."""
    # A schedule of the request selects the same period here.
    names = {each.name for each in msgspec.structs.fields(show.query)}
    given = {name: getattr(call.body, name) for name in names if getattr(call.body, name, None) is not None}
    try:
        return _content(cast("Result", show.run(replace(call, query=show.query(**given), body=None, headers={}))))
    except HeadgateError:
        return None


def _content(answer: Result | None) -> State:
    body = answer.body if isinstance(answer, Answer) else None
    # By way of JSON, which is what callers see: some values are raw JSON.
    content = None if body is None else msgspec.json.decode(msgspec.json.encode(body))
    return content if isinstance(content, dict) else None


def _entity(pattern: str, call: Call[Any, Any], created: State = None) -> str:
    """Return the name of the resource from the path; what the path lacks, from the response or the body."""
    names = {name: "(new)" for _, name, _, _ in Formatter().parse(pattern) if name}
    for name in names:
        for value in (call.path.get(name), (created or {}).get(name), getattr(call.body, name, None)):
            if value is not None:
                names[name] = str(value)
                break
    return pattern.format_map(names)


def _reason(call: Call[Any, Any]) -> str:
    for source in (call.body, call.query):
        for name in _NAMED:
            text = getattr(source, name, None)
            if isinstance(text, str) and text:
                return text
    return ""
