"""Pending futures: workflow code awaits the end of a command with them, and cancels it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from headgate.durable.replay.deterministic_loop import DurableFuture

if TYPE_CHECKING:
    from headgate.durable.replay.interpreter import Interpreter


class PendingFuture(DurableFuture[Any]):
    """The future of an activity, a child or a sent signal. Cancelling it issues a command."""

    __slots__ = ("_interpreter", "decode", "seq", "what")

    def __init__(self, interpreter: Interpreter, seq: int, what: str, decode: Callable[[Raw], Any] | None) -> None:
        super().__init__(interpreter.loop)
        self._interpreter = interpreter
        self.seq = seq
        self.what = what
        self.decode = decode

    def cancel(self, msg: Any | None = None) -> bool:  # noqa: ANN401 - asyncio's signature
        if not super().cancel(msg):
            return False
        self._interpreter.abandon(self.seq)
        return True
