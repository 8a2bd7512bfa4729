"""OpenAPI documents of routes and commands, with schemas from the annotations of their functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from headgate.durable.http.commands import Command, RestEndpoint, RpcEndpoint
from headgate.durable.http.inputs import RestInput, annotations_of
from headgate.durable.http.messages import InputProblem
from headgate.durable.http.paths import SegmentKind
from headgate.durable.http.routes import Route
from headgate.errors import DefinitionError

if TYPE_CHECKING:
    from headgate.durable.http.router import Router

Document = dict[str, Any]
SchemaOf = Callable[[Any], Document]

VERSION: Final = "3.1.0"
_COMPONENTS: Final = "#/components/schemas/"
# No class can have this name, so that it never clashes with a user's type.
_PROBLEM: Final = "headgate-problem"
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})
_STRING: Final = {"type": "string"}
PROBLEM_SCHEMA: Final[Document] = {
    "title": "Problem",
    "description": "What went wrong. `code` is safe to match on.",
    "type": "object",
    "properties": {
        "type": _STRING,
        "title": _STRING,
        "status": {"type": "integer"},
        "code": _STRING,
        "detail": _STRING,
        "correlation_id": {"anyOf": [_STRING, {"type": "null"}]},
        "errors": {"type": "array", "items": msgspec.json.schema_components([InputProblem])[1]["InputProblem"]},
        "data": {},
    },
    "required": ["type", "title", "status", "code", "detail", "correlation_id"],
}


class Description(NamedTuple):
    """The OpenAPI part of some routes: their operations by path and method, and the schemas these refer to."""

    paths: dict[str, dict[str, Document]]
    schemas: dict[str, Document]


def openapi(router: Router, title: str, version: str) -> Document:
    """Return the OpenAPI document of all routes and commands of a router."""
    return document([describe(router.table)], title, version)


def document(parts: Iterable[Description], title: str, version: str) -> Document:
    """Return the OpenAPI document of several parts. Raises `DefinitionError` if two schemas have the same name."""
    paths: dict[str, dict[str, Document]] = {}
    schemas: dict[str, Document] = {}
    for part in parts:
        for path, operations in part.paths.items():
            paths.setdefault(path, {}).update(operations)
        for name, schema in part.schemas.items():
            if schemas.setdefault(name, schema) != schema:
                raise DefinitionError(f"OpenAPI schema {name!r}: two types have this name; rename one of them")
    info = {"title": title, "version": version}
    return {"openapi": VERSION, "info": info, "paths": paths, "components": {"schemas": schemas}}


def describe(routes: Iterable[Route], *, prefix: str = "") -> Description:
    """Return the OpenAPI part of `routes`. All its names have `prefix`, so that documents can be merged."""
    all_routes = list(routes)
    types: list[Any] = []

    def collect(kind: Any) -> Document:  # noqa: ANN401 - an annotation
        types.append(kind)
        return {}

    # Two passes: schema names are unique only if all types are known before the first is described.
    for _ in _operations(all_routes, prefix, collect):
        pass
    schemas, components = msgspec.json.schema_components(types, ref_template=f"{_COMPONENTS}{prefix}{{name}}")
    in_order = iter(schemas)
    paths: dict[str, dict[str, Document]] = {}
    for route, operation in zip(all_routes, _operations(all_routes, prefix, lambda _: next(in_order)), strict=True):
        paths.setdefault(route.template.documented, {})[route.method.lower()] = operation
    named = {f"{prefix}{name}": schema for name, schema in components.items()}
    return Description(paths, {**named, f"{prefix}{_PROBLEM}": PROBLEM_SCHEMA})


def _operations(routes: Iterable[Route], prefix: str, schema_of: SchemaOf) -> Iterator[Document]:
    taken: set[str] = set()
    for route in routes:
        operation: Document = {"operationId": prefix + _operation_id(route, taken)}
        if route.summary:
            operation["summary"] = route.summary
        if route.description:
            operation["description"] = route.description
        operation |= _exchange(route, schema_of)
        problem = {"application/problem+json": {"schema": {"$ref": f"{_COMPONENTS}{prefix}{_PROBLEM}"}}}
        operation["responses"]["default"] = {"description": "What went wrong", "content": problem}
        yield operation


def _operation_id(route: Route, taken: set[str]) -> str:
    if isinstance(route.endpoint, RpcEndpoint):
        base = route.name
    else:
        base = "_".join([route.method.lower(), *re.findall(r"\w+", route.template.documented)])
    number = 1
    while (identifier := base if number == 1 else f"{base}_{number}") in taken:
        number += 1
    taken.add(identifier)
    return identifier


def _exchange(route: Route, schema_of: SchemaOf) -> Document:
    """Return the parameters, the request body and the success response."""
    match route.endpoint:
        case RpcEndpoint(command=command):
            return _rpc_exchange(command, schema_of)
        case RestEndpoint(command=command, input=rest_input):
            return {**_rest_input(rest_input, schema_of), "responses": _output(command, command.status, schema_of)}
    exchange: Document = {"parameters": _path_parameters(route)} if route.template.names else {}
    if route.method in _WITH_BODY:
        exchange["requestBody"] = {"content": {"*/*": {"schema": {}}}}
    return {**exchange, "responses": _handler_output(route, schema_of)}


def _rpc_exchange(command: Command, schema_of: SchemaOf) -> Document:
    exchange: Document = {}
    if not command.input.is_empty:
        exchange["requestBody"] = _json_body(schema_of(command.input.type), is_required=not command.input.is_optional)
    return {**exchange, "responses": _output(command, HTTPStatus.OK, schema_of)}


def _rest_input(rest_input: RestInput, schema_of: SchemaOf) -> Document:
    parameters = [
        {
            "name": each.sent_as,
            "in": each.source,
            "required": each.field.required or each.source == "path",
            "schema": schema_of(each.field.type),
        }
        for each in rest_input.bindings
        if each.source != "body"
    ]
    exchange: Document = {"parameters": parameters} if parameters else {}
    if not rest_input.uses_body:
        return exchange
    members = [each for each in rest_input.bindings if each.source == "body"]
    if rest_input.input.is_open or (not parameters and all(each.sent_as == each.field.name for each in members)):
        schema = schema_of(rest_input.input.as_object)
    else:
        schema = {
            "type": "object",
            "properties": {each.sent_as: schema_of(each.field.type) for each in members},
            "required": [each.sent_as for each in members if each.field.required],
        }
    exchange["requestBody"] = _json_body(schema, is_required=any(each.field.required for each in members))
    return exchange


def _path_parameters(route: Route) -> list[Document]:
    return [
        {
            "name": each.text,
            "in": "path",
            "required": True,
            "schema": _STRING,
            **({"description": "All the rest of the path"} if each.kind is SegmentKind.TAIL else {}),
        }
        for each in route.template.segments
        if each.kind is not SegmentKind.TEXT
    ]


def _output(command: Command, status: int, schema_of: SchemaOf) -> Document:
    if command.has_output:
        return _success(status, {"application/json": {"schema": schema_of(command.output)}})
    return _success(HTTPStatus.NO_CONTENT if status == HTTPStatus.OK else status)


def _handler_output(route: Route, schema_of: SchemaOf) -> Document:
    output = annotations_of(route.handler).get("return", Any)
    if output is type(None) or output is None:
        return _success(HTTPStatus.NO_CONTENT)
    if output is str:
        return _success(HTTPStatus.OK, {"text/plain": {"schema": _STRING}})
    if output is bytes:
        return _success(HTTPStatus.OK, {"application/octet-stream": {"schema": {}}})
    if output is Any or not _has_schema(output):
        return _success(HTTPStatus.OK, {"*/*": {"schema": {}}})
    return _success(HTTPStatus.OK, {"application/json": {"schema": schema_of(output)}})


def _has_schema(kind: Any) -> bool:  # noqa: ANN401 - an annotation
    try:
        msgspec.json.schema_components([kind])
    except (TypeError, ValueError, NameError):
        # For example a Response, which has any body.
        return False
    return True


def _success(status: int, content: Document | None = None) -> Document:
    answer: Document = {"description": HTTPStatus(status).phrase}
    return {str(int(status)): answer if content is None else {**answer, "content": content}}


def _json_body(schema: Document, *, is_required: bool) -> Document:
    return {"required": is_required, "content": {"application/json": {"schema": schema}}}
