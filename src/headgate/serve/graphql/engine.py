"""GraphQL engine: parses, measures, validates and executes documents, in a thread of the pool.

Validated documents are cached; the cost is computed per request, because it depends on the variables.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from inspect import CORO_CREATED, getcoroutinestate, isawaitable, iscoroutine
from typing import Any, Final, TypeGuard

import msgspec
from graphql import (
    DocumentNode,
    ExecutionResult,
    GraphQLError,
    OperationDefinitionNode,
    OperationType,
    execute,
    get_operation_ast,
    parse,
    validate,
)
from msgspec import Struct

from headgate.auth.principals import Principal
from headgate.errors import HeadgateError, QueryLimitError
from headgate.health.service import HealthService
from headgate.serve.graphql.errors import shaped
from headgate.serve.graphql.limits import Limits, check_limits
from headgate.serve.graphql.loaders import Context
from headgate.serve.graphql.schema import build_schema

DOCUMENTS_MAX: Final = 256
# Twice the depth of an allowed query: braces and parentheses around every field.
NESTING_MAX: Final = 200
_OPENING: Final = frozenset("{[(")
_CLOSING: Final = frozenset("}])")
_MARKS: Final = re.compile(r'"""(?:\\"""|.)*?"""|"(?:\\.|[^"\\\n])*"|#[^\n]*|[{}\[\]()]', re.DOTALL)
# Validation stops after this many errors.
ERRORS_MAX: Final = 10


class GraphqlRequest(Struct, frozen=True):
    """A request: document, operation name and variables."""

    query: str
    variables: Mapping[str, Any] = {}
    operation_name: str | None = None


class Body(Struct):
    """Request body. Unknown members are ignored: some clients send their own."""

    query: str
    variables: dict[str, Any] | None = None
    operation_name: str | None = msgspec.field(default=None, name="operationName")
    extensions: dict[str, Any] | None = None

    def request(self) -> GraphqlRequest:
        return GraphqlRequest(self.query, self.variables or {}, self.operation_name or None)


class Prepared(Struct, frozen=True):
    """A document that may be executed."""

    asked: GraphqlRequest
    document: DocumentNode
    operation: OperationDefinitionNode

    @property
    def is_subscription(self) -> bool:
        return self.operation.operation is OperationType.SUBSCRIPTION


class Refusal(Exception):
    """A document that is not executed, and the errors."""

    def __init__(self, errors: Sequence[GraphQLError | HeadgateError]) -> None:
        super().__init__(str(errors[0]))
        self.errors = errors


class Outcome(Struct, frozen=True):
    """A response. `is_refused`: nothing was executed, and the response has no data member."""

    content: dict[str, Any]
    is_refused: bool = False


class Engine:
    """Executes documents on one health service. Thread-safe."""

    def __init__(self, health: HealthService, limits: Limits) -> None:
        self.schema = build_schema()
        self.limits = limits
        self._health = health
        self._lock = threading.Lock()
        self._documents: OrderedDict[str, DocumentNode] = OrderedDict()

    def prepare(self, asked: GraphqlRequest) -> Prepared:
        """Return the document to execute. Raises `Refusal`."""
        known = self._known(asked.query)
        document = self._parsed(asked.query) if known is None else known
        operation = get_operation_ast(document, asked.operation_name)
        if operation is None:
            raise Refusal([_no_operation(document, asked.operation_name)])
        try:
            # Before validation, which is slow for malicious documents.
            check_limits(self.schema, document, operation, asked.variables, self.limits)
        except QueryLimitError as exc:
            raise Refusal([exc]) from exc
        if known is None:
            errors = validate(self.schema, document, max_errors=ERRORS_MAX)
            if errors:
                raise Refusal(errors)
            self._remember(asked.query, document)
        return Prepared(asked, document, operation)

    def execute(self, prepared: Prepared, principal: Principal, ends_at: float, root: object = None) -> Outcome:
        """Execute a document and return the response. `root` is the event batch of a subscription."""

        started: list[Coroutine[Any, Any, Any]] = []

        def is_noted(value: Any) -> TypeGuard[Awaitable[Any]]:  # noqa: ANN401 - a resolver's result
            if iscoroutine(value):
                started.append(value)
                return True
            return isawaitable(value)

        async def run() -> ExecutionResult:
            result = execute(
                self.schema,
                prepared.document,
                root_value=root,
                context_value=Context(self._health, principal, ends_at),
                variable_values=dict(prepared.asked.variables),
                operation_name=prepared.asked.operation_name,
                is_awaitable=is_noted,
            )
            return await result if isawaitable(result) else result

        # Its own event loop: loaders may block it without delaying other requests.
        try:
            with asyncio.Runner() as runner:
                return outcome_of(runner.run(run()))
        finally:
            # If a field fails at once, graphql-core drops sibling coroutines that it has not awaited yet.
            for each in started:
                if getcoroutinestate(each) == CORO_CREATED:
                    each.close()

    def _parsed(self, query: str) -> DocumentNode:
        if len(query.encode("utf-8", "surrogatepass")) > self.limits.bytes_max:
            raise Refusal([QueryLimitError(f"the query is longer than {self.limits.bytes_max:,} bytes; send less")])
        if _nesting(query) > NESTING_MAX:
            # The parser recurses as deep as the query, and would overflow the stack.
            too_deep = QueryLimitError(f"the query is nested too deeply: nest at most {self.limits.depth_max} fields")
            raise Refusal([too_deep])
        try:
            return parse(query, max_tokens=self.limits.tokens_max)
        except GraphQLError as exc:
            if "Parsing aborted" in exc.message:
                many = QueryLimitError(f"the query has more than {self.limits.tokens_max:,} tokens; send less")
                raise Refusal([many]) from exc
            raise Refusal([exc]) from exc

    def _known(self, query: str) -> DocumentNode | None:
        with self._lock:
            if query in self._documents:
                self._documents.move_to_end(query)
            return self._documents.get(query)

    def _remember(self, query: str, document: DocumentNode) -> None:
        with self._lock:
            self._documents[query] = document
            while len(self._documents) > DOCUMENTS_MAX:
                self._documents.popitem(last=False)


def _nesting(query: str) -> int:
    """Return the maximum bracket nesting, without those in strings and comments."""
    deepest = depth = 0
    for mark in _MARKS.findall(query):
        if mark in _OPENING:
            depth += 1
            deepest = max(deepest, depth)
        elif mark in _CLOSING:
            depth -= 1
    return deepest


def outcome_of(result: ExecutionResult) -> Outcome:
    """Return the response of an execution result."""
    errors = [shaped(each) for each in result.errors or ()]
    # Refused before execution, for example for invalid variables: the response has no data member.
    is_refused = result.data is None and bool(errors) and all(each.path is None for each in result.errors or ())
    content: dict[str, Any] = {} if is_refused else {"data": result.data}
    return Outcome({**content, "errors": errors} if errors else content, is_refused)


def refused(refusal: Refusal) -> Outcome:
    """Return the response to a refused document."""
    return Outcome({"errors": [shaped(each) for each in refusal.errors]}, is_refused=True)


def _no_operation(document: DocumentNode, name: str | None) -> GraphQLError:
    names = [
        each.name.value if each.name is not None else "(without a name)"
        for each in document.definitions
        if isinstance(each, OperationDefinitionNode)
    ]
    if not names:
        return GraphQLError("the document has no operation; start it with '{' or 'query'")
    if name is None:
        return GraphQLError(
            f"the document has several operations; set operationName to one of: {', '.join(names[:10])}"
        )
    return GraphQLError(f"operationName {name[:60]!r}: not found; the document has {', '.join(names[:10])}")
