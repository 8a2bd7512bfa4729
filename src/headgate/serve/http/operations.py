"""API operations: declarative routes with typed path, query and body, matched on the undecoded path.

The web framework matches decoded paths, where the slash in an id such as `orders%2F7` ends a segment. It therefore
routes everything below the first path segments to one handler, which matches here, and sees the declared paths only
for the OpenAPI document. Bodies and responses are msgspec structs; user values in them stay raw JSON.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Final, Generic, Protocol, TypeVar
from urllib.parse import parse_qsl

import msgspec
import msgspec.inspect
from litestar import Request, Response
from litestar.enums import HttpMethod
from litestar.types import ControllerRouterHandler

from headgate import typed_decode
from headgate.auth.principals import LOCAL, Principal, require
from headgate.auth.roles import Permission
from headgate.auth.rules import Reach, Rule
from headgate.durable.http.messages import HttpError
from headgate.durable.http.openapi import Description
from headgate.durable.http.paths import PathTemplate, PathTree, split_path
from headgate.errors import InvalidPayloadError, NotFoundError, UnauthenticatedError
from headgate.serve.http.framework import CATCH_ALL, DescribedHandler, raw_path
from headgate.serve.http.openapi_operations import describe_operations
from headgate.serve.http.origin_guard import is_browser
from headgate.serve.http.problem import Problem, response
from headgate.serve.runtime.thread_pool import WorkPool

PREFIX: Final = "/api/v1"
JSON: Final = "application/json"
_ANY_MEDIA: Final = "*/*"
QUERY_ARGUMENTS_MAX: Final = 100
_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
# The parameter of a path that names a dataset.
_DATASET: Final = "dataset_urn"
_DATE: Final = re.compile(r"[0-9]{4}-")
_JSON_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

B = TypeVar("B")
Q = TypeVar("Q", bound=msgspec.Struct)


class NoQuery(msgspec.Struct, forbid_unknown_fields=True):
    """An operation without query parameters."""


@dataclass(frozen=True)
class Call(Generic[B, Q]):
    """One request to an operation, with parsed path, query and body."""

    path: Mapping[str, str]
    query: Q
    body: B
    headers: Mapping[str, str]
    # The raw body, for operations that parse it themselves.
    content: bytes
    principal: Principal = LOCAL


@dataclass(frozen=True)
class Answer:
    """The response of an operation: a struct encoded as JSON, or no body."""

    body: object = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self) -> Response[bytes]:
        content = b"" if self.body is None else msgspec.json.encode(self.body)
        return Response(content, status_code=self.status, media_type=JSON, headers=dict(self.headers))


Result = Answer | Response[Any]


@dataclass(frozen=True)
class Operation:
    """One API operation. `async def` handlers run on the event loop, others in the thread pool.

    `answers` are the response structs by status; None is a response without a body, and a tuple one of several.
    """

    method: str
    path: str
    summary: str
    run: Callable[[Call[Any, Any]], Result | Awaitable[Result]]
    answers: Mapping[int, Any]
    query: type[msgspec.Struct] = NoQuery
    body: type[msgspec.Struct] | None = None
    # Other media types of the body, for the document; the operation parses `content` itself.
    body_forms: Mapping[str, Any] = field(default_factory=dict)
    # For the document: a longer description, and request headers with their meaning.
    description: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    # The media type of answers, or several of which the request selects one.
    answer_media: str | tuple[str, ...] = JSON
    # With `body_forms`: whether the body may be empty.
    is_body_optional: bool = False
    # Authorization rule; by default `operation_routes` fills in the one of the access policy for reads or writes.
    rule: Rule | None = None
    # For an operation without a rule: authenticates by a token for the resource of the path, in a header. Returns the
    # principal of the token, or raises `UnauthenticatedError`.
    admit: Callable[[Mapping[str, str], Mapping[str, str]], Principal] | None = None
    # For an operation without a rule: authenticates by a signature over the body. Returns the principal that the body
    # names, or raises `UnauthenticatedError`.
    verify: Callable[[Mapping[str, str], Mapping[str, str], bytes], Principal] | None = None
    # Whether it supports Idempotency-Key.
    repeatable: bool = False

    prefix: str = PREFIX

    @functools.cached_property
    def template(self) -> PathTemplate:
        """The path with prefix."""
        return PathTemplate.parse(self.prefix + self.path)

    @property
    def words(self) -> list[str]:
        """The segments of the path that are text."""
        return [each for each in self.path.split("/")[1:] if not each.startswith("{")]


class IdempotencyRecords(Protocol):
    """Stores responses by idempotency key."""

    def run_once(self, scope: str, key: str, content: bytes, run: Callable[[], Answer]) -> Answer:
        """Return the stored response, or run the request and store its response."""


class Auditing(Protocol):
    """Adds audit entries to operations."""

    def audited(self, operations: Sequence[Operation]) -> list[Operation]:
        """Return the operations with auditing around the handlers of those that change something."""


@dataclass(frozen=True)
class AccessPolicy:
    """Default permissions of a group of operations."""

    reads: Permission
    writes: Permission
    reach: Reach = Reach.NONE

    def with_rule(self, operation: Operation) -> Operation:
        """Return the operation with its own rule, or with the default. One that admits by token has none."""
        if operation.rule is not None or operation.admit is not None or operation.verify is not None:
            return operation
        permission = self.reads if operation.method == "GET" else self.writes
        return replace(operation, rule=Rule(permission, self.reach))


def operation_routes(
    operations: Sequence[Operation],
    pool: WorkPool,
    policy: AccessPolicy,
    *,
    namespace: str = "",
    auditing: Auditing | None = None,
    idempotency: IdempotencyRecords | None = None,
    resolve_dataset: Callable[[str], str] | None = None,
    path_types: Mapping[str, Any] | None = None,
) -> list[ControllerRouterHandler]:
    """Return the route handler of these operations. No other handler may use their first path segments.

    `namespace` prefixes their schema names in the OpenAPI document, where path parameters have `path_types` by name.
    `auditing` adds audit entries. `idempotency` stores responses of repeatable operations. `resolve_dataset` maps a
    dataset name in a path to the registered one, before authorization.
    """
    operations = [policy.with_rule(each) for each in operations]
    if auditing is not None:
        operations = auditing.audited(operations)
    dispatcher = _Dispatcher(operations, pool, idempotency, resolve_dataset)

    # One annotated function for all operations: the framework reads its annotations.
    async def dispatch(request: Request[Any, Any, Any]) -> Response[Any]:
        return await dispatcher.answer(request)

    paths = [f"{PREFIX}/{word}{rest}" for word in _first_segments(operations) for rest in ("", f"/{CATCH_ALL}")]
    handler = OperationHandler(paths, operations, lambda: describe_operations(operations, namespace, path_types or {}))
    return [handler(dispatch)]


class OperationHandler(DescribedHandler):
    """Serves all requests below the first path segments; the dispatcher matches the rest.

    Each of its operations has its rule, or admits callers by a token.
    """

    def __init__(
        self, paths: Sequence[str], operations: Sequence[Operation], describe: Callable[[], Description]
    ) -> None:
        methods = [HttpMethod(method) for method in _METHODS]
        super().__init__(paths, describe=describe, http_method=methods, status_code=HTTPStatus.OK)
        self.operations = operations


class _Dispatcher:
    """Matches a request to an operation, authorizes and runs it."""

    def __init__(
        self,
        operations: Sequence[Operation],
        pool: WorkPool,
        idempotency: IdempotencyRecords | None,
        resolve_dataset: Callable[[str], str] | None,
    ) -> None:
        self._pool = pool
        self._resolve_dataset = resolve_dataset
        self._idempotency = idempotency
        self._tree: PathTree[dict[str, Operation]] = PathTree()
        for operation in operations:
            self._tree.at(operation.template, {})[operation.method] = operation

    async def answer(self, request: Request[Any, Any, Any]) -> Response[Any]:
        """Return the response. Raises errors of the operation, and `HeadgateError` if no operation matches."""
        path_sent = raw_path(request.scope)
        # The route label of the metrics: the framework's own match is a catch-all.
        request.scope["path_template"] = ""
        found = self._find(path_sent)
        if request.method not in found:
            if request.method == "OPTIONS":
                return _options(found)
            methods = ", ".join(sorted(found))
            detail = f"{path_sent}: {request.method} is not supported; use {methods}"
            return response(Problem.of(405, "method_not_allowed", detail), {"allow": methods})
        operation, path = found[request.method]
        request.scope["path_template"] = operation.template.documented
        principal = principal_of(request.scope)
        # Before the body is read: unauthorized callers get no validation errors.
        if operation.rule is not None:
            require(principal, operation.rule.permission)
        else:
            principal = await self._admitted(operation, path, request)
        content = await request.body()
        if is_browser(request.scope) and not _is_declared(operation, request.headers.get("content-type", ""), content):
            names = " or ".join(_media_types(operation))
            detail = f"{path_sent}: a web page must send the body as {names}"
            return response(Problem.of(415, "unsupported_media_type", detail), {"accept": names})
        call = Call(
            path=path,
            query=_query(request.scope["query_string"], operation.query),
            body=None if operation.body is None else _body(content, operation.body),
            headers=request.headers,
            content=content,
            principal=LOCAL,
        )
        if inspect.iscoroutinefunction(operation.run):
            result: Result | Awaitable[Result] = operation.run(_authorized(operation, call, principal))
        else:
            result = await self._pool.run(lambda: self._run(operation, call, principal))
        answer = await result if isinstance(result, Awaitable) else result
        return answer.response() if isinstance(answer, Answer) else answer

    async def _admitted(
        self, operation: Operation, path: Mapping[str, str], request: Request[Any, Any, Any]
    ) -> Principal:
        """Return the principal of the request's token. Raises `UnauthenticatedError` and `RateLimitedError`."""
        admit, verify = operation.admit, operation.verify
        assert admit or verify, f"{operation.method} {operation.path} has neither a rule, a token nor a signature"
        content = b"" if verify is None else await request.body()
        try:
            if verify is not None:
                return await self._pool.run(lambda: verify(path, request.headers, content))
            assert admit is not None
            return await self._pool.run(lambda: admit(path, request.headers))
        except UnauthenticatedError:
            # Counted as a failed login; beyond the limit this raises.
            record: Any = request.scope.get("on_failed_login")
            if record is not None:
                record()
            raise

    def _run(
        self, operation: Operation, call: Call[Any, Any], principal: Principal | None
    ) -> Result | Awaitable[Result]:
        dataset = call.path.get(_DATASET)
        if self._resolve_dataset is not None and dataset is not None:
            # Before authorization, which must apply to the dataset itself, not to an alias.
            call = replace(call, path={**call.path, _DATASET: self._resolve_dataset(dataset)})
        call = _authorized(operation, call, principal)
        key = call.headers.get("idempotency-key")
        if self._idempotency is None or not operation.repeatable or key is None:
            return operation.run(call)
        caller = call.principal.key_id or call.principal.name
        scope = f"{caller}#{operation.method} {operation.template.documented} {sorted(call.path.items())}"
        return self._idempotency.run_once(scope, key, call.content, lambda: _answer(operation.run(call)))

    def _find(self, path: str) -> dict[str, tuple[Operation, dict[str, str]]]:
        """Return the operations at a path, by method. Raises `NotFoundError` if there are none."""
        try:
            segments = split_path(path)
        except HttpError as exc:
            raise InvalidPayloadError(f"path: {exc.message}") from exc
        found: dict[str, tuple[Operation, dict[str, str]]] = {}
        for by_method, values in self._tree.find(segments):
            for method, operation in by_method.items():
                # The most specific match comes first: an execution may have the id "bulk".
                found.setdefault(method, (operation, values))
        if not found:
            raise NotFoundError(f"{path}: not found; / lists the API, and a slash within an id is written %2F")
        return found


def _authorized(operation: Operation, call: Call[Any, Any], principal: Principal | None) -> Call[Any, Any]:
    """Authorize a call, unless its token has admitted it. Raises `UnauthenticatedError` or `ForbiddenError`."""
    rule = operation.rule
    if rule is None:
        assert principal is not None, "its token was verified"
        return replace(call, principal=principal)
    request = {"path": call.path, "query": call.query, "body": call.body}
    return replace(call, principal=rule.admit(principal, request))


def _options(found: Mapping[str, tuple[Operation, Any]]) -> Response[bytes]:
    """Return the methods of the most specific path, as the OpenAPI document has them."""
    best = next(iter(found.values()))[0].path
    methods = sorted(["OPTIONS", *(method for method, (operation, _) in found.items() if operation.path == best)])
    return Response(b"", status_code=HTTPStatus.NO_CONTENT, media_type=JSON, headers={"allow": ", ".join(methods)})


def principal_of(scope: Any) -> Principal | None:  # noqa: ANN401 - of any kind of connection
    """Return the authenticated caller; without authentication middleware, a local program."""
    principal: Principal | None = scope.get("principal", LOCAL)
    return principal


def _answer(result: Result | Awaitable[Result]) -> Answer:
    assert isinstance(result, Answer)
    return result


def _media_types(operation: Operation) -> list[str]:
    """Return the declared media types of the body; JSON if the operation parses any body itself."""
    return [each for each in operation.body_forms if each != _ANY_MEDIA] or [JSON]


def _is_declared(operation: Operation, sent: str, content: bytes) -> bool:
    """Whether a browser sent a declared media type, which no form and no simple request of a page can have."""
    media = sent.partition(";")[0].strip().lower()
    if not media:
        return not content
    return media == JSON or media in _media_types(operation)


def _first_segments(operations: Sequence[Operation]) -> list[str]:
    """Return the distinct first path segments, below which the framework routes to the handler."""
    return list(dict.fromkeys(each.path.split("/")[1] for each in operations))


def _query(raw: bytes, kind: type[Q]) -> Q:
    try:
        pairs = parse_qsl(raw.decode(), keep_blank_values=True, errors="strict", max_num_fields=QUERY_ARGUMENTS_MAX)
    except ValueError as exc:
        raise InvalidPayloadError(f"query: not UTF-8, or more than {QUERY_ARGUMENTS_MAX} arguments") from exc
    types = _field_types(kind)
    values: dict[str, Any] = {}
    for name, value in pairs:
        types_sent = types.get(name, ())
        if msgspec.inspect.ListType in types_sent:
            values.setdefault(name, []).append(value)
        elif name in values:
            raise InvalidPayloadError(f"query: {name} is given twice")
        elif msgspec.inspect.DateTimeType in types_sent and not _DATE.match(value):
            # Lax conversion would read a number as seconds since 1970, and "null" as None.
            raise InvalidPayloadError(f"query: {name} {value[:40]!r}: write a time such as 2026-01-15T10:00:00Z")
        elif msgspec.inspect.StrType not in types_sent and value.lower() == "null":
            raise InvalidPayloadError(f"query: {name} is null; omit it")
        else:
            values[name] = value
    try:
        return typed_decode.convert(values, kind, strict=False)
    except msgspec.ValidationError as exc:
        raise InvalidPayloadError(f"query: {exc}") from exc


@functools.cache
def _field_types(kind: type[msgspec.Struct]) -> dict[str, frozenset[type[msgspec.inspect.Type]]]:
    """Return the types of each parameter, by its name in the query."""
    found = {}
    for each in msgspec.structs.fields(kind):
        info = _unwrapped(msgspec.inspect.type_info(each.type))
        members = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
        found[each.encode_name] = frozenset(type(_unwrapped(member)) for member in members)
    return found


def _unwrapped(info: msgspec.inspect.Type) -> msgspec.inspect.Type:
    return info.type if isinstance(info, msgspec.inspect.Metadata) else info


def _body(content: bytes, kind: type[B]) -> B:
    try:
        return typed_decode.from_json(content.strip() or b"{}", kind)
    except _JSON_ERRORS as exc:
        raise InvalidPayloadError(f"body: {exc}") from exc


def json_object(content: bytes) -> dict[str, Any]:
    """Parse a body without a declared struct; an empty body is an empty object. Raises `InvalidPayloadError`."""
    return _body(content, dict[str, Any])
