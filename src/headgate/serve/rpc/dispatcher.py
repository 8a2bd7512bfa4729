"""RPC dispatcher: deadline, authorization, thread, span, metrics and log line of every call, on every protocol."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import nullcontext
from typing import Final, NamedTuple, TypeVar

import structlog
from google.protobuf.message import Message
from prometheus_client import CollectorRegistry

from headgate.auth.principals import LOCAL, Principal, require
from headgate.clock import Clock
from headgate.errors import DeadlineExceededError, HeadgateError, TransientError
from headgate.ids import IdMaker
from headgate.serve.metrics import ApiMeters
from headgate.serve.rpc.codec import Codec
from headgate.serve.rpc.errors import RpcFailure, failure, internal_error
from headgate.serve.rpc.methods import Method, RpcCall
from headgate.serve.rpc.offload import Offload
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.store.deadlines import deadline_within
from headgate.telemetry import Tracing, correlated, is_correlation_id

CORRELATION: Final = "x-correlation-id"
CREDENTIALS: Final = "authorization"
OK: Final = "OK"
_SERVER_FAULTS: Final = frozenset({"INTERNAL", "UNKNOWN", "DATA_LOSS"})
T = TypeVar("T")
_log = structlog.get_logger(__name__)
# Checked before a log event is built: successful calls are logged at debug level only.
_levels = logging.getLogger(__name__)


class CallChecks(NamedTuple):
    """Checks of the server that come before a call, and the client address for the log."""

    # Raises `NotReadyError` while the server does not serve.
    check_ready: Callable[[], None] = lambda: None
    # Counts a write; raises `RateLimitedError`.
    check_write: Callable[[RpcCall, Principal], None] = lambda _call, _principal: None
    client_address: Callable[[RpcCall], str] = lambda call: call.peer


class Dispatcher:
    """Answers calls of declared methods."""

    def __init__(  # noqa: PLR0913 - one argument for each part of a call
        self,
        methods: Sequence[Method],
        pool: WorkPool,
        *,
        clock: Clock,
        tracing: Tracing,
        registry: CollectorRegistry,
        identify: Callable[[RpcCall], Principal | None] = lambda _call: LOCAL,
        remember: Callable[[RpcCall], Principal | None] = lambda _call: None,
        intake: Offload | None = None,
        bulk: WorkPool | None = None,
        checks: CallChecks | None = None,
    ) -> None:
        """Authenticate calls with `identify`, which returns None for an anonymous caller; the method's rule authorizes.

        With credentials `identify` may block, so it runs in the pool, after the cache lookup `remember` missed. Calls
        that `intake` accepts are answered there. With `bulk`, batch methods run in that pool instead of `pool`.
        """
        self.methods = {method.path: method for method in methods}
        # Methods for the fast path by URL: answered inline, or passed to the intake.
        direct = [each for each in methods if each.is_direct or (intake is not None and each.runs_in_intake)]
        self.fast_methods = {} if tracing.is_on else {each.path.encode(): each for each in direct}
        self.clock = clock
        self._pool = pool
        self._bulk = pool if bulk is None else bulk
        checks = CallChecks() if checks is None else checks
        self._check_ready, self._check_write, self._client_address = checks
        self._tracing = tracing
        self._identify = identify
        self._remember = remember
        self._intake = intake
        # Correlation ids of calls that bring none: a prefix of this process, and a counter.
        self._stem = f"req_{IdMaker(clock).ulid()}"
        self._numbers = itertools.count(1)
        self.meters = ApiMeters(registry)

    def correlation(self, given: str | None) -> str:
        """Return the caller's correlation id if it is well-formed, else a new one."""
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
                self._check_ready()
                call.check_deadline()
                encoded = await self._answer(method, content, codec, call, name)
                status = OK
            except Exception as exc:
                failed = self._failure(method, exc)
                status = failed.status
                raise failed from exc
            finally:
                span.set_attribute("status", status)
                self.record(api, method, status, self.clock.monotonic() - started_at, call)
        return encoded

    async def check_caller(self, method: Method, call: RpcCall) -> None:
        """Authenticate a call before its message is read. Raises `RpcFailure`, and nothing else."""
        try:
            self._check_ready()
            require(await self._caller(call), method.rule.permission)
        except Exception as exc:
            raise self._failure(method, exc) from exc

    def answer_inline(
        self, api: str, method: Method, content: bytes, codec: Codec, call: RpcCall, name: str
    ) -> bytes | None:
        """Answer a call without waiting, or return None if `unary` must answer it.

        Raises `RpcFailure`, and nothing else. Makes no span: with tracing on, `unary` answers.
        """
        started_at = self.clock.monotonic()
        with correlated(name):
            try:
                self._check_ready()
                call.check_deadline()
                request = codec.decode(method.request, content)
                principal = self._known_caller(call)
                if principal is None and CREDENTIALS in call.headers:
                    return None
                call.principal = method.rule.admit(principal, request)
                answer = _inline_answer(method, request, call)
                if answer is None:
                    return None
                encoded = codec.encode(answer)
            except Exception as exc:
                failed = self._failure(method, exc)
                self.record(api, method, failed.status, self.clock.monotonic() - started_at, call)
                raise failed from exc
            self.record(api, method, OK, self.clock.monotonic() - started_at, call)
        return encoded

    def offload(
        self,
        api: str,
        method: Method,
        content: bytes,
        codec: Codec,
        call: RpcCall,
        name: str,
        defer: Callable[[], Callable[[bytes | RpcFailure], None]],
    ) -> bool:
        """Pass a call to the intake, and return whether it is ready to take it.

        If so, `defer` provides the callback for the answer or failure. Makes no span: with tracing on, `unary` answers.
        """
        started_at = self.clock.monotonic()
        intake = self._intake
        if intake is None or not intake.is_ready:
            return False
        try:
            self._check_ready()
            call.check_deadline()
            principal = self._known_caller(call)
            if principal is None:
                return False
            self._count_write(method, call, principal)
        except HeadgateError:
            # `unary` raises the same error.
            return False
        on_answer: Callable[[bytes | RpcFailure], None] | None = defer()
        limit: asyncio.TimerHandle | None = None

        def on_result(outcome: bytes | Exception) -> None:
            nonlocal on_answer
            if limit is not None:
                limit.cancel()
            # None: the deadline was reported already.
            if on_answer is None:
                return
            report, on_answer = on_answer, None
            with correlated(name):
                answer = outcome if isinstance(outcome, bytes) else self._failure(method, outcome)
                status = OK if isinstance(answer, bytes) else answer.status
                self.record(api, method, status, self.clock.monotonic() - started_at, call)
            report(answer)

        if call.deadline_at is not None:
            seconds = call.deadline_at - started_at
            limit = asyncio.get_running_loop().call_later(seconds, lambda: on_result(_late()))
        intake.submit(method, content, codec, call, principal, name, on_result)
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
                self._check_ready()
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
                self.record(api, method, status, self.clock.monotonic() - started_at, call)

    def _known_caller(self, call: RpcCall) -> Principal | None:
        """Return the caller if that needs no blocking lookup."""
        known = self._remember(call) if CREDENTIALS in call.headers else self._identify(call)
        if known is not None:
            call.caller = known.name
        return known

    async def _caller(self, call: RpcCall) -> Principal | None:
        known = self._known_caller(call)
        if known is not None or CREDENTIALS not in call.headers:
            return known
        found = await self._pool.run(lambda: self._identify(call))
        call.caller = None if found is None else found.name
        return found

    async def _answer(self, method: Method, content: bytes, codec: Codec, call: RpcCall, name: str) -> bytes:
        intake = self._intake
        if intake is not None and method.runs_in_intake and intake.accepts(len(content)):
            principal = await self._caller(call)
            # Checked again: the process may have ended during authentication.
            if principal is not None and intake.is_ready:
                self._count_write(method, call, principal)
                return await self._in_time(call, intake.call(method, content, codec, call, principal, name))
        request = codec.decode(method.request, content)
        call.principal = method.rule.admit(await self._caller(call), request)
        self._count_write(method, call, call.principal)
        answer = _inline_answer(method, request, call)
        if answer is None:
            answer = await self._in_time(call, self._start(method, request, call))
        return codec.encode(answer)

    def _count_write(self, method: Method, call: RpcCall, principal: Principal) -> None:
        """Count a write. Raises `RateLimitedError`."""
        if method.has_side_effects:
            self._check_write(call, principal)

    async def _in_time(self, call: RpcCall, work: Awaitable[T]) -> T:
        if call.deadline_at is None:
            return await work
        try:
            async with asyncio.timeout(call.remaining_seconds()) as limit:
                return await work
        except TimeoutError as exc:
            if not limit.expired():
                raise
            raise _late() from exc

    def _start(self, method: Method, request: Message, call: RpcCall) -> Awaitable[Message]:
        if method.is_async:
            answer_later: Awaitable[Message] = method.handler(request, call)
            return answer_later

        def work() -> Message:
            # The deadline may have passed in the pool's queue.
            call.check_deadline()
            remaining_seconds = call.remaining_seconds()
            bounded = nullcontext() if remaining_seconds is None else deadline_within(remaining_seconds, self.clock)
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
        return internal_error()

    def record(self, api: str, method: Method, status: str, seconds: float, call: RpcCall | None = None) -> None:
        """Record a call in metrics and log; None: a call whose headers are invalid."""
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
                caller=None if call is None else call.caller,
                client=None if call is None else self._client_address(call),
            )


def _inline_answer(method: Method, request: Message, call: RpcCall) -> Message | None:
    """Return the answer of a method that needs no waiting, or None."""
    if method.inline:
        answer: Message = method.handler(request, call)
        return answer
    return None if method.fast is None else method.fast(request, call)


def _late() -> DeadlineExceededError:
    return DeadlineExceededError(
        "the caller's deadline passed before the answer was ready; the operation may still complete"
    )


async def _close(answers: AsyncIterator[Message] | None) -> None:
    """Close a generator now rather than at garbage collection: it may hold scarce resources."""
    close = getattr(answers, "aclose", None)
    if close is not None:
        await close()
