"""Declared workflows: their definition in this process, and their limits published to processes without their code."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from headgate.durable.model.interceptors import Interceptor
from headgate.durable.model.payload import Signature
from headgate.durable.model.payload_codec import PayloadCodec
from headgate.durable.model.retry import Retry
from headgate.store.catalogue.tables import DEFINITION, DEFINITIONS
from headgate.store.model.requests import Put
from headgate.store.model.values import Item
from headgate.store.port import Store

_KIND: Final = "workflow"


class Versioning(enum.StrEnum):
    """Which builds take the turns of an execution."""

    # Any build whose code fits its history; the current one first.
    AUTO = "auto"
    # The build that took its first turn.
    PINNED = "pinned"


_PAGE: Final = 100


class Limits(NamedTuple):
    """The declared time-out and retention of a workflow's executions; None where there is none."""

    timeout_seconds: float | None = None
    retention_seconds: float | None = None


class Declarations:
    """The declarations of all apps. For two of the same name, the last one counts."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def declare(self, app: str, workflows: Mapping[str, Limits], specs: Mapping[str, str] | None = None) -> None:
        """Publish the limits of an app's workflows, and the specs of their input by name."""
        known = specs or {}
        items = [{**_item(app, name, limits), "spec": known.get(name, "")} for name, limits in workflows.items()]
        for start in range(0, len(items), _PAGE):
            page = items[start : start + _PAGE]
            stored = self._store.get_many(DEFINITIONS, [DEFINITIONS.key_of(item) for item in page], consistent=True)
            changed = [item for item, earlier in zip(page, stored, strict=True) if item != earlier]
            if changed:
                self._store.batch_write([Put(DEFINITIONS, item) for item in changed])

    def app_of(self, workflow: str) -> str:
        """Return the app that has declared a workflow; empty if none has."""
        item = self._store.get(DEFINITIONS, DEFINITION.key(kind=_KIND, name=workflow))
        return "" if item is None else str(item["app"])

    def limits(self, workflow: str) -> Limits:
        """Return the declared limits of a workflow; no limits if it is not declared."""
        item = self._store.get(DEFINITIONS, DEFINITION.key(kind=_KIND, name=workflow))
        return Limits() if item is None else Limits(item["timeout_seconds"], item["retention_seconds"])

    def spec(self, workflow: str) -> str:
        """Return the spec of a workflow's input; empty if it is not declared, or by an earlier version of Headgate."""
        if not workflow or "#" in workflow:
            # No workflow can have such a name.
            return ""
        item = self._store.get(DEFINITIONS, DEFINITION.key(kind=_KIND, name=workflow))
        return "" if item is None else str(item.get("spec", ""))


def _item(app: str, name: str, limits: Limits) -> Item:
    key = DEFINITIONS.key_attributes(DEFINITION.key(kind=_KIND, name=name))
    return {**key, **DEFINITION.index_attributes(kind=_KIND), "app": app, **limits._asdict()}


class WorkflowDefinition(Protocol):
    """A declared workflow: its function, its signature and its limits."""

    @property
    def name(self) -> str: ...

    @property
    def function(self) -> Callable[..., Awaitable[Any]]: ...

    @property
    def signature(self) -> Signature: ...

    @property
    def retry(self) -> Retry | None: ...

    @property
    def interceptors(self) -> Sequence[Interceptor]: ...

    @property
    def timeout_seconds(self) -> float | None: ...

    @property
    def retention_seconds(self) -> float | None: ...

    @property
    def versioning(self) -> Versioning: ...

    @property
    def codec(self) -> PayloadCodec | None: ...


def pinned_workflows(workflows: Iterable[WorkflowDefinition]) -> list[str]:
    """Return the names of the workflows whose executions stay on one build."""
    return [each.name for each in workflows if each.versioning is Versioning.PINNED]
