"""API calls of pages: pages call API operations in-process, with the caller's permissions.

A page therefore shows exactly what its JSON twin returns to the same caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec
from litestar.types import ControllerRouterHandler
from msgspec import Struct

from headgate import typed_decode
from headgate.auth.principals import Principal, may, require
from headgate.auth.roles import Permission
from headgate.errors import ForbiddenError, NotFoundError, TransientError
from headgate.health.service import HealthService
from headgate.pipelines.service import PipelineService
from headgate.serve.http.operations import PREFIX, Answer, Call, Operation, OperationHandler
from headgate.serve.rest.health.models import complete

PAGE_SIZE: Final = 100
# Maximum pages read for a caller with a narrow scope.
_PAGES_MAX: Final = 10


class Section(Struct, frozen=True):
    """A part of a page. Without `value`, `missing` is the reason."""

    value: Any = None
    missing: str = ""

    def items(self, name: str = "items") -> list[Any]:
        """Return the listed items; none if the section is missing."""
        items: list[Any] = [] if self.value is None else self.value[name]
        return items


class Listed(Struct, frozen=True):
    """The first items of a list. `has_more`: there may be others."""

    items: list[Any]
    has_more: bool


class ApiCatalog:
    """The API operations that pages call, by method and path: those of the server's own routes."""

    def __init__(
        self,
        health: HealthService,
        routes: Iterable[ControllerRouterHandler],
        pipelines: PipelineService | None = None,
    ) -> None:
        self.health = health
        self.pipelines = pipelines
        self._operations = {
            f"{operation.method} {operation.path}": operation
            for route in routes
            if isinstance(route, OperationHandler)
            for operation in route.operations
        }

    def has(self, name: str) -> bool:
        """Whether this server has an operation."""
        return name in self._operations

    def operation(self, name: str) -> Operation:
        """Return an operation. Raises `NotFoundError` if this server does not have it."""
        found = self._operations.get(name)
        if found is None:
            raise NotFoundError(f"{name}: this server does not serve it")
        return found


class ApiCaller:
    """Calls operations for one caller, who may be anonymous."""

    def __init__(self, catalog: ApiCatalog, principal: Principal | None) -> None:
        self.health = catalog.health
        # None: this server has no pipelines.
        self.pipelines = catalog.pipelines
        self.now_ms = int(catalog.health.clock.seconds() * 1000)
        self._catalog = catalog
        self._principal = principal

    def may(self, permission: Permission, dataset_urn: str | None = None) -> bool:
        """Whether the caller has a permission."""
        return self._principal is not None and may(self._principal, permission, dataset_urn)

    def require(self, permission: Permission) -> None:
        """Raise `UnauthenticatedError` or `ForbiddenError` unless the caller has a permission."""
        require(self._principal, permission)

    def has_pipeline(self, pipeline_id: str) -> bool:
        """Whether a pipeline is defined; runs, alerts and verdicts outlive the definition of theirs."""
        return self.pipelines is not None and self.pipelines.known.find(pipeline_id) is not None

    def call(
        self,
        name: str,
        *,
        path: Mapping[str, str] | None = None,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - JSON of any shape
        """Call an operation, and return its response as plain JSON values. Raises its errors."""
        operation, parameters = self._catalog.operation(name), dict(path or {})
        if "dataset_urn" in parameters:
            parameters["dataset_urn"] = self.health.registered(parameters["dataset_urn"])
        assert operation.rule is not None
        arguments = convert(query or {}, operation.query)
        sent = None if operation.body is None else typed_decode.convert(body or {}, operation.body)
        principal = operation.rule.admit(self._principal, {"path": parameters, "query": arguments, "body": sent})
        answer = operation.run(Call(parameters, arguments, sent, {}, b"", principal))
        assert isinstance(answer, Answer)
        # With every field, so that templates need no existence checks.
        return msgspec.to_builtins(complete(answer.body), enc_hook=_decoded)

    def section(
        self,
        name: str,
        *,
        path: Mapping[str, str] | None = None,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Section:
        """Call an operation for an optional part of a page."""
        try:
            return Section(self.call(name, path=path, query=query, body=body))
        except (ForbiddenError, NotFoundError, TransientError) as exc:
            return Section(missing=exc.message)

    def listed(self, name: str, *, most: int, query: Mapping[str, Any] | None = None) -> Listed:
        """Return the first visible items of a list, page by page. Raises as `call`."""
        items: list[Any] = []
        token: str | None = None
        for _ in range(_PAGES_MAX):
            size = {"page_size": PAGE_SIZE, **({} if token is None else {"page_token": token})}
            page = self.call(name, query={**(query or {}), **size})
            items += page["items"]
            token = page["next_page_token"]
            if token is None or len(items) >= most:
                break
        return Listed(items[:most], token is not None or len(items) > most)

    def found(self, name: str, items: str, *, query: Mapping[str, Any]) -> tuple[list[Any], str | None]:
        """Return the first page of a list with a match, and the cursor after it. Raises as `call`.

        Lists that filter after reading return pages that are short or empty and still have a cursor.
        """
        given = dict(query)
        for _ in range(_PAGES_MAX):
            page = self.call(name, query=given)
            if page[items] or page["cursor"] is None:
                break
            given["cursor"] = page["cursor"]
        return page[items], page["cursor"]


def _decoded(value: object) -> Any:  # noqa: ANN401 - any JSON value
    """Decode a user's value, which answers hold as raw JSON."""
    if isinstance(value, msgspec.Raw):
        return msgspec.json.decode(value)
    if value is msgspec.UNSET:
        return None
    raise NotImplementedError(f"{type(value)}: not a part of an answer")


def convert(query: Mapping[str, Any], kind: type[msgspec.Struct]) -> Any:  # noqa: ANN401 - an instance of `kind`
    """Convert query parameters to the struct of an operation. Raises `msgspec.ValidationError`."""
    return typed_decode.convert(dict(query), kind, strict=False)


def twin(path: str, query: Mapping[str, Any] | None = None) -> str:
    """Return the API URL of a page's JSON twin."""
    return f"{PREFIX}{path}" + (f"?{urlencode(query, doseq=True)}" if query else "")


def segment(text: str) -> str:
    """Quote a text as one path segment."""
    return quote(text, safe="")
