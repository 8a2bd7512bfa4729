"""Workflow definition: what the engine and the client need to know of a declared workflow."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from headgate.durable.model.payload import Signature


class WorkflowDefinition(Protocol):
    """A declared workflow: its function, its signature and its limits."""

    @property
    def name(self) -> str: ...

    @property
    def function(self) -> Callable[..., Awaitable[Any]]: ...

    @property
    def signature(self) -> Signature: ...

    @property
    def timeout_seconds(self) -> float | None: ...

    @property
    def retention_seconds(self) -> float | None: ...
