"""What surrounds every RPC, whichever protocol it came over: deadline, admission, thread, span, count and log line."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import nullcontext
from typing import Final, TypeVar

import structlog
from google.protobuf.message import Message
from prometheus_client import CollectorRegistry

from headgate.auth.principals import LOCAL, Principal
from headgate.clock import Clock
from headgate.errors import DeadlineExceededError, HeadgateError, TransientError
from headgate.ids import IdMaker
from headgate.serve.intake.client import Intake
from headgate.serve.metrics import ApiMeters
from headgate.serve.rpc.codec import Codec
from headgate.serve.rpc.errors import RpcFailure, bug, failure
from headgate.serve.rpc.methods import Method, RpcCall
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.store.deadlines import due_within
from headgate.telemetry import Tracing, correlated, is_correlation_id

CORRELATION: Final = "x-correlation-id"
CREDENTIALS: Final = "authorization"
OK: Final = "OK"
_SERVER_FAULTS: Final = frozenset({"INTERNAL", "UNKNOWN", "DATA_LOSS"})
T = TypeVar("T")
_log = structlog.get_logger(__name__)
# Asked before a line is made: a line for each of thousands of calls a second is for those who look for something.
_levels = logging.getLogger(__name__)


class Dispatcher:
    """Answers calls of declared methods."""

    def __init__(
        self,
        methods: Sequence[Method],
        pool: WorkPool,
        *,
        clock: Clock,
        tracing: Tracing,
        registry: CollectorRegistry,
        identify: Callable[[RpcCall], Principal | None] = lambda _call: LOCAL,
        remember: Callable[[RpcCall], Principal | None] = lambda _call: None,
        intake: Intake | None = None,
        bulk: WorkPool | None = None,
    ) -> None:
        """Let `identify` say who calls, or None if it does not know; each method's rule says whether they may.

        It may ask others about credentials, and is asked in a thread of the pool if there are some. `remember` comes
        first and answers at once: None if it would have to ask. What `intake` takes is not answered here. With `bulk`,
        methods that carry hundreds of values run there and not in `pool`.
        """
        self.methods = {method.path: method for method in methods}
        # What may be answered without waiting or handed over, by address.
        direct = [each for each in methods if each.is_direct or (intake is not None and each.is_taken_in)]
        self.direct = {} if tracing.is_on else {each.path.encode(): each for each in direct}
        self.clock = clock
        self._pool = pool
        self._bulk = pool if bulk is None else bulk
        self._tracing = tracing
        self._identify = identify
        self._remember = remember
        self._intake = intake
        # Of a call whose caller gives it no id: which process answers it, and how many before it.
        self._stem = f"req_{IdMaker(clock).ulid()}"
        self._numbers = itertools.count(1)
        self.meters = ApiMeters(registry)

    def correlation(self, given: str | None) -> str:
        """Return the caller's id for this call if it has a harmless one, else a new one."""
        return given if given is not None and is_correlation_id(given) else f"{self._stem}-{next(self._numbers):x}"

    async def unary(self, api: str, method: Method, content: bytes, codec: Codec, call: RpcCall, name: str) -> bytes:
        """Return the encoded answer to a call, correlated by `name`. Raises `RpcFailure`, and nothing else."""
        started_at = self.clock.monotonic()
        status = "CANCELLED"
        with (
            correlated(name),
            self._tracing.span("rpc.request", parent=call.headers, method=method.label, api=api) as span,
        ):
            try:
                call.check_deadline()
                encoded = await self._answered(method, content, codec, call, name)
                status = OK
            except Exception as exc:
                failed = self._failure(method, exc)
                status = failed.status
                raise failed from exc
            finally:
                span.set_attribute("status", status)
                self.record(api, method, status, self.clock.monotonic() - started_at)
        return encoded

    def at_once(self, api: str, method: Method, content: bytes, codec: Codec, call: RpcCall, name: str) -> bytes | None:
        """Return what `unary` does if that takes no waiting, or None for what is to be asked of `unary`.

        Raises `RpcFailure`, and nothing else. It makes no span: who traces asks `unary`.
        """
        started_at = self.clock.monotonic()
        with correlated(name):
            try:
                call.check_deadline()
                request = codec.decode(method.request, content)
                principal = self._known_caller(call)
                if principal is None and CREDENTIALS in call.headers:
                    return None
                call.principal = method.rule.admit(principal, request)
                answer = _at_hand(method, request, call)
                if answer is None:
                    return None
                encoded = codec.encode(answer)
            except Exception as exc:
                failed = self._failure(method, exc)
                self.record(api, method, failed.status, self.clock.monotonic() - started_at)
                raise failed from exc
            self.record(api, method, OK, self.clock.monotonic() - started_at)
        return encoded

    def hand_over(
        self,
        api: str,
        method: Method,
        content: bytes,
        codec: Codec,
        call: RpcCall,
        name: str,
        later: Callable[[], Callable[[bytes | RpcFailure], None]],
    ) -> bool:
        """Have the intake answer a call, if it takes calls now, and say whether it does.

        If so, `later` is asked whom to tell what `unary` would return or raise. It makes no span: who traces asks
        `unary`.
        """
        started_at = self.clock.monotonic()
        intake = self._intake
        if intake is None or not intake.is_ready:
            return False
        try:
            call.check_deadline()
            principal = self._known_caller(call)
        except HeadgateError:
            # `unary` says the same, and why.
            return False
        if principal is None:
            return False
        answered: Callable[[bytes | RpcFailure], None] | None = later()
        limit: asyncio.TimerHandle | None = None

        def told(outcome: bytes | Exception) -> None:
            nonlocal answered
            if limit is not None:
                limit.cancel()
            # None: it was told already that the time was up.
            if answered is None:
                return
            tell, answered = answered, None
            with correlated(name):
                known = outcome if isinstance(outcome, bytes) else self._failure(method, outcome)
                status = OK if isinstance(known, bytes) else known.status
                self.record(api, method, status, self.clock.monotonic() - started_at)
            tell(known)

        if call.deadline_at is not None:
            seconds = call.deadline_at - started_at
            limit = asyncio.get_running_loop().call_later(seconds, lambda: told(_late()))
        intake.ask(method, content, codec, call, principal, name, told)
        return True

    async def stream(
        self, api: str, method: Method, content: bytes, codec: Codec, call: RpcCall, name: str
    ) -> AsyncGenerator[bytes]:
        """Yield the encoded answers to a call. Raises `RpcFailure`, and nothing else."""
        started_at = self.clock.monotonic()
        status = "CANCELLED"
        answers: AsyncIterator[Message] | None = None
        try:
            with correlated(name):
                call.check_deadline()
                request = codec.decode(method.request, content)
                call.principal = method.rule.admit(await self._caller(call), request)
                answers = method.handler(request, call)
            while (answer := await self._next(answers, call, name)) is not None:
                yield codec.encode(answer)
            status = OK
        except Exception as exc:
            with correlated(name):
                failed = self._failure(method, exc)
            status = failed.status
            raise failed from exc
        finally:
            await _close(answers)
            with correlated(name):
                self.record(api, method, status, self.clock.monotonic() - started_at)

    def _known_caller(self, call: RpcCall) -> Principal | None:
        """Return who calls as far as that is known without asking anyone."""
        return self._remember(call) if CREDENTIALS in call.headers else self._identify(call)

    async def _caller(self, call: RpcCall) -> Principal | None:
        known = self._known_caller(call)
        if known is not None or CREDENTIALS not in call.headers:
            return known
        return await self._pool.run(lambda: self._identify(call))

    async def _answered(self, method: Method, content: bytes, codec: Codec, call: RpcCall, name: str) -> bytes:
        intake = self._intake
        if intake is not None and method.is_taken_in and intake.takes(len(content)):
            principal = await self._caller(call)
            # Asked again: it may have ended while who calls was found out.
            if principal is not None and intake.is_ready:
                begun = intake.asked(method, content, codec, call, principal, name)
                return await self._in_time(call, begun)
        request = codec.decode(method.request, content)
        call.principal = method.rule.admit(await self._caller(call), request)
        answer = _at_hand(method, request, call)
        if answer is None:
            answer = await self._in_time(call, self._begun(method, request, call))
        return codec.encode(answer)

    async def _in_time(self, call: RpcCall, begun: Awaitable[T]) -> T:
        if call.deadline_at is None:
            return await begun
        try:
            async with asyncio.timeout(call.remaining_seconds()) as limit:
                return await begun
        except TimeoutError as exc:
            if not limit.expired():
                raise
            raise _late() from exc

    def _begun(self, method: Method, request: Message, call: RpcCall) -> Awaitable[Message]:
        if method.is_awaited:
            begun: Awaitable[Message] = method.handler(request, call)
            return begun

        def work() -> Message:
            # It may have waited for its turn until nobody wanted the answer any more.
            call.check_deadline()
            remaining_seconds = call.remaining_seconds()
            bounded = nullcontext() if remaining_seconds is None else due_within(remaining_seconds, self.clock)
            with bounded:
                answer: Message = method.handler(request, call)
            return answer

        return (self._bulk if method.is_bulk else self._pool).run(work)

    async def _next(self, answers: AsyncIterator[Message], call: RpcCall, name: str) -> Message | None:
        with correlated(name):
            try:
                async with asyncio.timeout(call.remaining_seconds()) as limit:
                    return await anext(answers, None)
            except TimeoutError as exc:
                if not limit.expired():
                    raise
                raise _late() from exc

    def _failure(self, method: Method, error: BaseException) -> RpcFailure:
        if isinstance(error, RpcFailure):
            return error
        if isinstance(error, HeadgateError):
            failed = failure(error, method.request)
            if failed.status in _SERVER_FAULTS and not isinstance(error, TransientError):
                _log.error("call failed", action="rpc.request", method=method.label, code=error.code, exc_info=error)
            return failed
        _log.error("call failed", action="rpc.request", method=method.label, exc_info=error)
        return bug()

    def record(self, api: str, method: Method, status: str, seconds: float) -> None:
        """Count a call that was answered with `status`, and write its line in the log."""
        self.meters.record(api, method.label, status, seconds)
        if status != OK or _levels.isEnabledFor(logging.DEBUG):
            write = _log.debug if status == OK else _log.info
            write(
                "call",
                action="rpc.request",
                api=api,
                method=method.label,
                status=status,
                milliseconds=round(seconds * 1000, 1),
            )


def _at_hand(method: Method, request: Message, call: RpcCall) -> Message | None:
    """Return the answer of what needs no waiting, or None."""
    if method.inline:
        answer: Message = method.handler(request, call)
        return answer
    return None if method.quick is None else method.quick(request, call)


def _late() -> DeadlineExceededError:
    return DeadlineExceededError(
        "the caller's deadline passed before there was an answer; what was begun may still be finished"
    )


async def _close(answers: AsyncIterator[Message] | None) -> None:
    """End a generator now rather than when it is collected: what it holds may be scarce."""
    close = getattr(answers, "aclose", None)
    if close is not None:
        await close()
