"""Offloading: the port through which the dispatcher passes calls to another process on the same store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from headgate.auth.principals import Principal
from headgate.serve.rpc.codec import Codec
from headgate.serve.rpc.methods import Method, RpcCall


class Offload(Protocol):
    """A process that answers calls. All methods run on the event loop."""

    @property
    def is_ready(self) -> bool:
        """Whether the process accepts calls now."""

    def accepts(self, content_bytes: int) -> bool:
        """Whether a call of this size may be passed on now. May start the process for later calls."""

    def submit(
        self,
        method: Method,
        content: bytes,
        codec: Codec,
        call: RpcCall,
        principal: Principal,
        name: str,
        on_result: Callable[[bytes | Exception], None],
    ) -> None:
        """Pass a call on; `on_result` gets the encoded answer, an `RpcFailure` or an `IntakeEndedError`."""

    def call(
        self, method: Method, content: bytes, codec: Codec, call: RpcCall, principal: Principal, name: str
    ) -> asyncio.Future[bytes]:
        """Pass a call on, and return a future of the encoded answer or the failure."""
