"""What pages ask: the operations of the API themselves, so that a page shows what its JSON twin answers to its caller.

Rules, scopes and masks are those of the operations, and there is no other way from a page to what is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.auth.principals import Principal, may
from headgate.auth.roles import Permission
from headgate.durable.bus.bus import Bus
from headgate.errors import ForbiddenError, NotFoundError, TransientError
from headgate.health.service import HealthService
from headgate.pipelines.service import PipelineService
from headgate.serve.http.operations import PREFIX, Answer, Call, Operation
from headgate.serve.rest.health.datasets import dataset_operations
from headgate.serve.rest.health.gate import gate_operations
from headgate.serve.rest.health.incidents import incident_operations
from headgate.serve.rest.health.lineage import lineage_operations
from headgate.serve.rest.health.models import complete
from headgate.serve.rest.health.signals import signal_operations
from headgate.serve.rest.pipelines.pipelines import pipeline_operations

PAGE_SIZE: Final = 100
# A caller with a narrow scope may have to look through many pages for the few things that it sees.
_PAGES_MAX: Final = 10


class Section(Struct, frozen=True):
    """A part of a page. Without `value`, `missing` says why it cannot be shown to this caller, or now."""

    value: Any = None
    missing: str = ""

    def items(self, name: str = "items") -> list[Any]:
        """Return what it lists, which is nothing if it cannot be shown."""
        found: list[Any] = [] if self.value is None else self.value[name]
        return found


class Listed(Struct, frozen=True):
    """Some things of a list. `has_more`: there may be others."""

    items: list[Any]
    has_more: bool


class PipelinesAsked(NamedTuple):
    """The pipelines of a server, and where their events are told."""

    service: PipelineService
    bus: Bus


class ApiCatalog:
    """The operations that pages ask; those of pipelines, where there are any."""

    def __init__(self, health: HealthService, pipelines: PipelinesAsked | None = None) -> None:
        self.health = health
        self.pipelines = None if pipelines is None else pipelines.service
        operations: list[Operation] = [
            *dataset_operations(health),
            *signal_operations(health),
            *incident_operations(health),
            *lineage_operations(health),
            *gate_operations(health),
            *(() if pipelines is None else pipeline_operations(pipelines.service, pipelines.bus)),
        ]
        self._operations = {f"{each.method} {each.path}": each for each in operations}

    def operation(self, name: str) -> Operation:
        """Return an operation by its method and path."""
        return self._operations[name]


class ApiCaller:
    """Asks for one caller, who may be nobody known."""

    def __init__(self, questions: ApiCatalog, principal: Principal | None) -> None:
        self.health = questions.health
        # None: this server has no pipelines.
        self.pipelines = questions.pipelines
        self.now_ms = int(questions.health.clock.seconds() * 1000)
        self._questions = questions
        self._principal = principal

    def may(self, permission: Permission, dataset_urn: str | None = None) -> bool:
        """Whether the caller may do something."""
        return self._principal is not None and may(self._principal, permission, dataset_urn)

    def ask(
        self,
        name: str,
        *,
        path: Mapping[str, str] | None = None,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - JSON of any shape
        """Return what an operation answers, as plain JSON values. Raises what it raises."""
        operation, named = self._questions.operation(name), dict(path or {})
        if "dataset_urn" in named:
            named["dataset_urn"] = self.health.registered(named["dataset_urn"])
        assert operation.rule is not None
        given = convert(query or {}, operation.query)
        sent = None if operation.body is None else typed_decode.convert(body or {}, operation.body)
        known = operation.rule.admit(self._principal, {"path": named, "query": given, "body": sent})
        answer = operation.run(Call(named, given, sent, {}, b"", known))
        assert isinstance(answer, Answer)
        # With every field, so that a template need not ask whether there is one.
        return msgspec.to_builtins(complete(answer.body))

    def section(
        self,
        name: str,
        *,
        path: Mapping[str, str] | None = None,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Section:
        """Return what an operation answers as a part of a page, which can do without it."""
        try:
            return Section(self.ask(name, path=path, query=query, body=body))
        except (ForbiddenError, NotFoundError, TransientError) as exc:
            return Section(missing=exc.message)

    def listed(self, name: str, *, most: int, query: Mapping[str, Any] | None = None) -> Listed:
        """Return the first things of a list that the caller may see, page by page. Raises as `ask` does."""
        found: list[Any] = []
        token: str | None = None
        for _ in range(_PAGES_MAX):
            size = {"page_size": PAGE_SIZE, **({} if token is None else {"page_token": token})}
            page = self.ask(name, query={**(query or {}), **size})
            found += page["items"]
            token = page["next_page_token"]
            if token is None or len(found) >= most:
                break
        return Listed(found[:most], token is not None or len(found) > most)


def convert(given: Mapping[str, Any], kind: type[msgspec.Struct]) -> Any:  # noqa: ANN401 - of the given kind
    """Return a query as an operation takes it. Raises `msgspec.ValidationError`."""
    return typed_decode.convert(dict(given), kind, strict=False)


def twin(path: str, query: Mapping[str, Any] | None = None) -> str:
    """Return the address of the API that answers what a page shows."""
    return f"{PREFIX}{path}" + (f"?{urlencode(query, doseq=True)}" if query else "")


def segment(text: str) -> str:
    """Return a text as one segment of a path."""
    return quote(text, safe="")
