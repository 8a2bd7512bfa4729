"""Local requests: which requests a serving process answers itself: those about health, whose state is in the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from litestar.enums import ScopeType
from litestar.types import ASGIApp, ControllerRouterHandler, Receive, Scope, Send

from headgate.durable.http.messages import HttpError
from headgate.durable.http.paths import PathTree, split_path
from headgate.serve.graphql.routes import PATH as GRAPHQL
from headgate.serve.http.fast_path import Deferred, FastPathApp, FullResponse, RawPairs
from headgate.serve.http.framework import raw_path
from headgate.serve.http.operations import OperationHandler


class LocalRequests:
    """The requests that the routes and RPC methods of a serving process answer."""

    def __init__(self, routes: Sequence[ControllerRouterHandler], rpc_paths: Iterable[str]) -> None:
        self._paths = frozenset({GRAPHQL, *rpc_paths})
        self._tree: PathTree[set[str]] = PathTree()
        for route in routes:
            if isinstance(route, OperationHandler):
                for operation in route.operations:
                    self._tree.at(operation.template, set()).add(operation.method)

    def includes(self, scope: Any) -> bool:  # noqa: ANN401 - an ASGI scope
        """Whether a request is local. One that is unknown here, the first process answers or refuses."""
        if scope["path"] in self._paths:
            return True
        try:
            segments = split_path(raw_path(scope))
        except HttpError:
            return False
        return any(scope["method"] in methods for methods, _ in self._tree.find(segments))


class SplitApplication(FastPathApp):
    """ASGI application that answers local requests, and forwards all others to the first process."""

    def __init__(self, local: ASGIApp, requests: LocalRequests, forwarder: ASGIApp) -> None:
        self._local = local
        # Without RPCs nothing is answered directly.
        self._fast = local if isinstance(local, FastPathApp) else None
        self._requests = requests
        self._forwarder = forwarder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP or self._requests.includes(scope):
            await self._local(scope, receive, send)
        else:
            await self._forwarder(scope, receive, send)

    def length_digits_max(self, url: bytes) -> int:
        return 0 if self._fast is None else self._fast.length_digits_max(url)

    def parsed_head(self, url: bytes, headers: RawPairs) -> object | None:
        return None if self._fast is None else self._fast.parsed_head(url, headers)

    def answer_fast(
        self,
        parsed_head: Any,  # noqa: ANN401 - the result of `parsed_head`
        peer: str,
        body: bytes,
        defer: Callable[[], Callable[[FullResponse], None]],
    ) -> FullResponse | Deferred | None:
        return None if self._fast is None else self._fast.answer_fast(parsed_head, peer, body, defer)
