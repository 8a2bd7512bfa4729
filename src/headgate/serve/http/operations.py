"""Operations of the API: declared with their types, found by the path as it was sent, told in the server's document.

The web framework matches paths after decoding them, when the slash in an id such as `orders%2F7` looks like the end
of a segment. It is therefore given everything below the first words of the declared paths, and those paths only for
its document; whatever comes in is matched here. Bodies and answers are msgspec structs, and users' values in them stay
raw JSON.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Final, Generic, Protocol, TypeVar
from urllib.parse import parse_qsl, quote

import msgspec
from litestar import Request, Response
from litestar.enums import HttpMethod
from litestar.handlers import HTTPRouteHandler
from litestar.types import ControllerRouterHandler

from headgate import typed_decode
from headgate.auth.principals import LOCAL, Principal, require
from headgate.auth.roles import Permission
from headgate.auth.rules import Reach, Rule
from headgate.durable.http.messages import HttpError
from headgate.durable.http.paths import Kind, PathTemplate, PathTree, split_path
from headgate.errors import InvalidPayloadError, NotFoundError
from headgate.serve.http.openapi_operations import OperationDocuments
from headgate.serve.http.problem import Problem, response
from headgate.serve.runtime.thread_pool import WorkPool

PREFIX: Final = "/api/v1"
JSON: Final = "application/json"
QUERY_ARGUMENTS_MAX: Final = 100
_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")
# No parameter of an operation can have this name.
_ANYTHING: Final = "{-:path}"
# The parameter of a path that names a dataset.
_DATASET: Final = "dataset_urn"
_JSON_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

B = TypeVar("B")
Q = TypeVar("Q")


class NoQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The query of an operation that has none."""


@dataclass(frozen=True)
class Call(Generic[B, Q]):
    """One request for an operation: its path, query and body as they were declared."""

    path: Mapping[str, str]
    query: Q
    body: B
    headers: Mapping[str, str]
    # As it was sent, for what is not declared as one struct.
    content: bytes
    principal: Principal = LOCAL


@dataclass(frozen=True)
class Answer:
    """What an operation answers: a struct as JSON, or nothing."""

    body: object = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self) -> Response[bytes]:
        """Return it as an answer of the web framework."""
        content = b"" if self.body is None else msgspec.json.encode(self.body)
        return Response(content, status_code=self.status, media_type=JSON, headers=dict(self.headers))


Result = Answer | Response[Any]


@dataclass(frozen=True)
class Operation:
    """One thing that can be asked. What does not wait runs in a thread of the pool; `async def` runs on the loop.

    `answers` are the structs of each status; None is an answer without a body.
    """

    method: str
    path: str
    summary: str
    run: Callable[[Call[Any, Any]], Result | Awaitable[Result]]
    answers: Mapping[int, Any]
    query: type[msgspec.Struct] = NoQuery
    body: type[msgspec.Struct] | None = None
    # Other forms in which the body is accepted, for the document alone; the operation reads `content` itself.
    body_forms: Mapping[str, Any] = field(default_factory=dict)
    # What there is to say beyond the summary, and the headers that it reads with what each means, for the document.
    description: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    answer_media: str = JSON
    # Who may ask it. Where none is given, that of its part for reading or for writing.
    rule: Rule | None = None
    # Whether it may be sent again under an Idempotency-Key, and is then answered as the first time.
    repeatable: bool = False

    @functools.cached_property
    def template(self) -> PathTemplate:
        """The whole path."""
        return PathTemplate.parse(PREFIX + self.path)


class IdempotencyRecords(Protocol):
    """Remembers answers by the key of their request."""

    def once(self, scope: str, key: str, content: bytes, run: Callable[[], Answer]) -> Answer:
        """Return what was answered to this before, or run it and remember that."""


@dataclass(frozen=True)
class AccessPolicy:
    """What someone needs to read and to change what belongs together."""

    reads: Permission
    writes: Permission
    reach: Reach = Reach.NONE

    def rule(self, operation: Operation) -> Rule:
        """Return the rule of an operation: its own, or that of the part."""
        if operation.rule is not None:
            return operation.rule
        return Rule(self.reads if operation.method == "GET" else self.writes, self.reach)


def operation_routes(
    operations: Sequence[Operation],
    pool: WorkPool,
    part: AccessPolicy,
    *,
    namespace: str = "",
    answered: IdempotencyRecords | None = None,
    registered: Callable[[str], str] | None = None,
) -> list[ControllerRouterHandler]:
    """Return what serves these operations. Their first words below the prefix belong to them alone.

    In the server's document their schemas have names that begin with `namespace`: others may use the same words.
    `answered` remembers what was answered to what may be repeated. `registered` says by which name the dataset goes
    that a path names, and is asked before anything is decided.
    """
    dispatcher = _Dispatcher(operations, pool, part, answered, registered)

    # The framework reads the annotations of a function, and this is the one for all.
    async def dispatch(request: Request[Any, Any, Any]) -> Response[Any]:
        return await dispatcher.answer(request)

    below = [f"{PREFIX}/{word}{rest}" for word in _first_words(operations) for rest in ("", f"/{_ANYTHING}")]
    return [OperationHandler(below, operations, namespace)(dispatch)]


class OperationHandler(HTTPRouteHandler):
    """Serves operations, whatever their paths: what comes in below their first words is matched by their dispatcher."""

    def __init__(self, paths: Sequence[str], operations: Sequence[Operation], namespace: str) -> None:
        methods = [HttpMethod(method) for method in _METHODS]
        super().__init__(paths, http_method=methods, status_code=HTTPStatus.OK, include_in_schema=False)
        self.operations = operations
        self._namespace = namespace

    def documented(self) -> list[HTTPRouteHandler]:
        """Return one handler for each operation, at its declared path, for the framework's document alone."""
        documents = OperationDocuments(self.operations, self._namespace)
        return [documents.handler(_framework_path(each.template), each)(self.fn) for each in self.operations]


class _Dispatcher:
    """Answers a request with the operation at its path."""

    def __init__(
        self,
        operations: Sequence[Operation],
        pool: WorkPool,
        part: AccessPolicy,
        answered: IdempotencyRecords | None,
        registered: Callable[[str], str] | None,
    ) -> None:
        self._pool = pool
        self._registered = registered
        self._part = part
        self._answered = answered
        self._tree: PathTree[dict[str, Operation]] = PathTree()
        for operation in operations:
            self._tree.at(operation.template, {})[operation.method] = operation

    async def answer(self, request: Request[Any, Any, Any]) -> Response[Any]:
        """Return the answer. Raises what the operation raises, and a `HeadgateError` if it cannot be called."""
        raw_path = _raw_path(request)
        # What the metrics call the route: the framework matched another, or none.
        request.scope["path_template"] = ""
        found = self._find(raw_path)
        if request.method not in found:
            methods = ", ".join(sorted(found))
            detail = f"{raw_path}: {request.method} is not supported; use {methods}"
            return response(Problem.of(405, "method_not_allowed", detail), {"allow": methods})
        operation, path = found[request.method]
        request.scope["path_template"] = operation.template.documented
        rule, principal = self._part.rule(operation), principal_of(request.scope)
        # Before its body is read: who may not do this at all is not told what is wrong with it.
        require(principal, rule.permission)
        content = await request.body()
        call = Call(
            path=path,
            query=_query(request.scope["query_string"], operation.query),
            body=None if operation.body is None else _body(content, operation.body),
            headers=request.headers,
            content=content,
            principal=LOCAL,
        )
        if inspect.iscoroutinefunction(operation.run):
            made: Result | Awaitable[Result] = operation.run(_admitted(call, rule, principal))
        else:
            made = await self._pool.run(lambda: self._run(operation, call, rule, principal))
        answer = await made if isinstance(made, Awaitable) else made
        return answer.response() if isinstance(answer, Answer) else answer

    def _run(
        self, operation: Operation, call: Call[Any, Any], rule: Rule, principal: Principal | None
    ) -> Result | Awaitable[Result]:
        named = call.path.get(_DATASET)
        if self._registered is not None and named is not None:
            # Before the rule: it is about the dataset that is acted on, whatever the caller calls it.
            call = replace(call, path={**call.path, _DATASET: self._registered(named)})
        call = _admitted(call, rule, principal)
        key = call.headers.get("idempotency-key")
        if self._answered is None or not operation.repeatable or key is None:
            return operation.run(call)
        caller = call.principal.key_id or call.principal.name
        scope = f"{caller}#{operation.method} {operation.template.documented} {sorted(call.path.items())}"
        return self._answered.once(scope, key, call.content, lambda: _answer(operation.run(call)))

    def _find(self, raw_path: str) -> dict[str, tuple[Operation, dict[str, str]]]:
        """Return what can be done at a path, by method. Raises `NotFoundError` if that is nothing."""
        try:
            segments = split_path(raw_path)
        except HttpError as exc:
            raise InvalidPayloadError(f"path: {exc.message}") from exc
        found: dict[str, tuple[Operation, dict[str, str]]] = {}
        for by_method, values in self._tree.find(segments):
            for method, operation in by_method.items():
                # The best comes first: an execution may have the id "bulk", and be asked for.
                found.setdefault(method, (operation, values))
        if not found:
            raise NotFoundError(
                f"{raw_path}: there is nothing here; / lists what there is, and a slash within an id is written %2F"
            )
        return found


def _admitted(call: Call[Any, Any], rule: Rule, principal: Principal | None) -> Call[Any, Any]:
    """Return a call of someone who may make it. Raises `UnauthenticatedError` or `ForbiddenError`."""
    asked = {"path": call.path, "query": call.query, "body": call.body}
    return replace(call, principal=rule.admit(principal, asked))


def principal_of(scope: Any) -> Principal | None:  # noqa: ANN401 - of any kind of connection
    """Return who calls: whom the server has recognised, or a local program where it does not ask."""
    principal: Principal | None = scope.get("principal", LOCAL)
    return principal


def _answer(result: Result | Awaitable[Result]) -> Answer:
    assert isinstance(result, Answer)
    return result


def _first_words(operations: Sequence[Operation]) -> list[str]:
    """Return what the paths begin with: the framework looks below these words, and nowhere else."""
    return list(dict.fromkeys(each.path.split("/")[1] for each in operations))


def _raw_path(request: Request[Any, Any, Any]) -> str:
    """Return the path as it was sent; a server that does not tell leaves us the decoded one."""
    raw = request.scope.get("raw_path")
    return raw.decode("latin-1") if raw else quote(request.scope["path"])


def _query(raw: bytes, kind: type[Q]) -> Q:
    try:
        pairs = parse_qsl(raw.decode(), keep_blank_values=True, errors="strict", max_num_fields=QUERY_ARGUMENTS_MAX)
    except ValueError as exc:
        raise InvalidPayloadError(f"query: not UTF-8, or more than {QUERY_ARGUMENTS_MAX} arguments") from exc
    many = {each.name for each in msgspec.structs.fields(kind) if _is_list(each.type)}  # type: ignore[arg-type]
    given: dict[str, Any] = {}
    for name, value in pairs:
        if name in many:
            given.setdefault(name, []).append(value)
        elif name in given:
            raise InvalidPayloadError(f"query: {name} is given twice")
        else:
            given[name] = value
    try:
        return typed_decode.convert(given, kind, strict=False)
    except msgspec.ValidationError as exc:
        raise InvalidPayloadError(f"query: {exc}") from exc


def _is_list(kind: object) -> bool:
    return getattr(kind, "__origin__", None) is list


def _body(content: bytes, kind: type[B]) -> B:
    try:
        return typed_decode.from_json(content.strip() or b"{}", kind)
    except _JSON_ERRORS as exc:
        raise InvalidPayloadError(f"body: {exc}") from exc


def json_object(content: bytes) -> dict[str, Any]:
    """Return a body that is not declared as one struct; nothing is an empty object. Raises `InvalidPayloadError`."""
    return _body(content, dict[str, Any])


def _framework_path(template: PathTemplate) -> str:
    return "".join(
        f"/{{{each.text}:str}}" if each.kind is Kind.PARAMETER else f"/{each.text}" for each in template.segments
    )
