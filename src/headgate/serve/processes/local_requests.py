"""Local requests: which requests a serving process answers itself: those about health, whose state is in the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from litestar.enums import ScopeType
from litestar.types import ASGIApp, ControllerRouterHandler, Receive, Scope, Send

from headgate.durable.http.messages import HttpError
from headgate.durable.http.paths import PathTree, split_path
from headgate.serve.graphql.routes import PATH as GRAPHQL
from headgate.serve.http.fast_path import Deferred, FastPathApp, FullResponse, RawPairs
from headgate.serve.http.framework import raw_path
from headgate.serve.http.operations import OperationHandler
from headgate.serve.rpc.connect import Connect
from headgate.serve.rpc.dispatcher import Dispatcher


class SplitApplication(FastPathApp):
    """ASGI application that answers with `local` what it can, and forwards the rest to the first process."""

    def __init__(
        self, local: Connect, routes: Sequence[ControllerRouterHandler], rpcs: Dispatcher, forwarder: ASGIApp
    ) -> None:
        self._local = local
        self._forwarder = forwarder
        self._methods = frozenset(rpcs.methods)
        self._tree: PathTree[set[str]] = PathTree()
        for route in routes:
            if isinstance(route, OperationHandler):
                for operation in route.operations:
                    self._tree.at(operation.template, set()).add(operation.method)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP or self.is_local(scope):
            await self._local(scope, receive, send)
        else:
            await self._forwarder(scope, receive, send)

    def is_local(self, scope: Any) -> bool:  # noqa: ANN401 - an ASGI scope
        """Whether this process answers a request. One that it does not know, the first process answers or refuses."""
        path: str = scope["path"]
        if path == GRAPHQL or path in self._methods:
            return True
        try:
            segments = split_path(raw_path(scope))
        except HttpError:
            return False
        return any(scope["method"] in methods for methods, _ in self._tree.find(segments))

    def length_digits_max(self, url: bytes) -> int:
        return self._local.length_digits_max(url)

    def parsed_head(self, url: bytes, headers: RawPairs) -> object | None:
        return self._local.parsed_head(url, headers)

    def answer_fast(
        self,
        parsed_head: Any,  # noqa: ANN401 - the result of `parsed_head`
        peer: str,
        body: bytes,
        defer: Callable[[], Callable[[FullResponse], None]],
    ) -> FullResponse | Deferred | None:
        return self._local.answer_fast(parsed_head, peer, body, defer)
