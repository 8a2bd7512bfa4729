"""Every method behaves alike over gRPC and Connect: errors, deadlines, limits, streams, rights, counts."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
from google.rpc import status_pb2  # type: ignore[import-untyped]  # not marked as typed
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo  # type: ignore[import-untyped]
from grpc_health.v1 import health_pb2  # type: ignore[import-untyped]  # it has no stubs
from grpc_reflection.v1alpha import reflection_pb2  # type: ignore[import-untyped]  # it has no stubs
from prometheus_client import CollectorRegistry

from headgate.auth.principals import CredentialKind, Principal
from headgate.auth.roles import Permission, Role
from headgate.auth.rules import named
from headgate.clock import SystemClock
from headgate.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptionError,
    DatasetNotFoundError,
    DeadlineExceededError,
    DefinitionError,
    ForbiddenError,
    HeadgateError,
    IllegalTransitionError,
    InvalidPayloadError,
    NotReadyError,
    PreconditionFailedError,
    ServerBusyError,
    StoreFullError,
    StoreIOError,
    ThrottledError,
    TransientError,
    UnauthenticatedError,
    VersionConflictError,
)
from headgate.serve.rpc.codec import Binary
from headgate.serve.rpc.dispatcher import CallChecks, Dispatcher
from headgate.serve.rpc.methods import MESSAGE_BYTES_MAX, Method, MethodRegistry, RpcCall
from headgate.serve.rpc.statestore import proto as pb
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.settings import LimitSettings
from headgate.store import deadlines
from headgate.telemetry import Tracing
from tests.integration.serve.rpc_ports import ANYONE, PACKAGE, Ports, declared, talk

GET = "SignalStateService/GetSignalState"
WATCH = "SignalStateService/Watch"
REQUEST = pb.GetSignalStateRequest(dataset_urn="urn:dp:orders:created", signal_type="FRESHNESS").SerializeToString()


def answering(request: pb.GetSignalStateRequest, _call: RpcCall) -> pb.SignalState:
    return pb.SignalState(dataset_urn=request.dataset_urn, version=7)


def raising(error: BaseException) -> Any:
    def handler(_request: object, _call: RpcCall) -> pb.SignalState:
        raise error

    return handler


async def refused(ports: Ports, path: str = GET, content: bytes = REQUEST, **more: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ports.grpc(path, content, **more)
    return caught.value


def trailers(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    return dict(error.trailing_metadata() or ())


@pytest.mark.parametrize("name", ["GetSignalState", "GetSignalState_inline"])
@pytest.mark.parametrize("protocol", ["grpc", "proto", "json"])
def test_call__over_each_protocol__is_answered(name: str, protocol: str) -> None:
    request = pb.GetSignalStateRequest(dataset_urn="urn:dp:orders:created")

    answer = talk(declared(**{name: answering}), lambda ports: ports.call(protocol, GET, request, pb.SignalState))

    assert (answer.dataset_urn, answer.version) == ("urn:dp:orders:created", 7)


@pytest.mark.parametrize(
    ("error", "http"),
    [
        (InvalidPayloadError("signal_type 'x': no"), 400),
        (DatasetNotFoundError("urn:dp:a: no such dataset"), 404),
        (UnauthenticatedError("who are you?"), 401),
        (ForbiddenError("no"), 403),
        (AlreadyExistsError("it exists"), 409),
        (VersionConflictError("it is at 4"), 409),
        (PreconditionFailedError("no"), 400),
        (IllegalTransitionError("no"), 400),
        (ConflictError("no"), 409),
        (ServerBusyError("busy"), 503),
        (ThrottledError("slower"), 429),
        (DeadlineExceededError("late"), 504),
        (StoreFullError("full"), 429),
        (CorruptionError("bad bytes"), 500),
        (StoreIOError("no"), 500),
    ],
    ids=lambda value: getattr(value, "code", None),
)
def test_error__of_ours__has_the_same_status_code_and_details_on_both(error: HeadgateError, http: int) -> None:
    async def scenario(ports: Ports) -> tuple[grpc.aio.AioRpcError, Any]:
        return await refused(ports), await ports.post(GET, REQUEST)

    failed, answer = talk(declared(GetSignalState=raising(error)), scenario)

    assert failed.code() is grpc.StatusCode[error.grpc_status]
    assert failed.details() == error.message
    assert trailers(failed)["headgate-code"] == error.code
    rich = status_pb2.Status.FromString(trailers(failed)["grpc-status-details-bin"])
    info = ErrorInfo()
    assert rich.details[0].Unpack(info)
    assert (info.reason, info.domain, rich.message) == (error.code.upper(), "headgate", error.message)
    found = answer.json()
    assert answer.status_code == http
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["headgate-code"] == error.code
    assert (found["code"], found["message"]) == (error.grpc_status.lower(), error.message)
    assert found["details"][0]["type"] == "google.rpc.ErrorInfo"
    assert ("retry-after" in answer.headers) == isinstance(error, TransientError)


def test_error__about_a_field__names_it() -> None:
    methods = declared(GetSignalState=raising(InvalidPayloadError("signal_type 'x': not one")))

    failed = talk(methods, refused)

    rich = status_pb2.Status.FromString(trailers(failed)["grpc-status-details-bin"])
    bad = BadRequest()
    assert any(each.Unpack(bad) for each in rich.details)
    assert [each.field for each in bad.field_violations] == ["signal_type"]


def test_error__about_what_is_no_field__names_none() -> None:
    failed = talk(declared(GetSignalState=raising(InvalidPayloadError("gossip is not accepted"))), refused)

    rich = status_pb2.Status.FromString(trailers(failed)["grpc-status-details-bin"])
    assert not any(each.Is(BadRequest.DESCRIPTOR) for each in rich.details)


def test_error__that_passes__says_when_to_come_back() -> None:
    error = ServerBusyError("busy")
    error.retry_after_seconds = 2.5

    failed = talk(declared(GetSignalState=raising(error)), refused)

    rich = status_pb2.Status.FromString(trailers(failed)["grpc-status-details-bin"])
    retry = RetryInfo()
    assert any(each.Unpack(retry) for each in rich.details)
    assert retry.retry_delay.ToMilliseconds() == 2500


def test_error__with_a_very_long_message__still_arrives() -> None:
    async def scenario(ports: Ports) -> tuple[grpc.aio.AioRpcError, Any]:
        return await refused(ports), await ports.post(GET, REQUEST)

    failed, answer = talk(
        declared(GetSignalState=raising(InvalidPayloadError("signal_type: " + "\N{SNOWMAN}" * 5000))), scenario
    )

    assert failed.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (failed.details() or "").startswith("signal_type: \N{SNOWMAN}")
    assert answer.json()["message"] == failed.details()


@pytest.mark.parametrize("name", ["GetSignalState", "GetSignalState_inline"])
def test_error__no_one_foresaw__is_internal_without_a_word_of_it(name: str) -> None:
    async def scenario(ports: Ports) -> tuple[grpc.aio.AioRpcError, Any]:
        return await refused(ports), await ports.post(GET, REQUEST)

    failed, answer = talk(declared(**{name: raising(ZeroDivisionError("secret"))}), scenario)

    assert failed.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in str(failed)
    assert "secret" not in answer.text
    assert answer.status_code == 500
    assert trailers(failed)["x-correlation-id"].startswith("req_")
    assert answer.headers["x-correlation-id"].startswith("req_")


def test_correlation__of_the_caller__comes_back() -> None:
    async def scenario(ports: Ports) -> tuple[Any, Any]:
        failed = await refused(ports, metadata=(("x-correlation-id", "mine-1"),))
        return trailers(failed)["x-correlation-id"], await ports.post(GET, REQUEST, x_correlation_id="mine-2")

    over_grpc, answer = talk(declared(GetSignalState=raising(ForbiddenError("no"))), scenario)

    assert over_grpc == "mine-1"
    assert answer.headers["x-correlation-id"] == "mine-2"


def test_deadline__passed_before_the_start__does_no_work() -> None:
    called: list[str] = []

    def handler(_request: object, _call: RpcCall) -> pb.SignalState:
        called.append("called")
        return pb.SignalState()

    answer = talk(
        declared(GetSignalState_inline=handler), lambda ports: ports.post(GET, REQUEST, connect_timeout_ms="0")
    )

    assert (answer.status_code, answer.json()["code"], called) == (504, "deadline_exceeded", [])


def test_deadline__passes_during_the_work__is_reported_at_once_and_known_to_the_handler() -> None:
    release = threading.Event()
    remaining: list[float | None] = []
    known_to_the_store: list[float | None] = []

    def handler(_request: object, call: RpcCall) -> pb.SignalState:
        remaining.append(call.remaining_seconds())
        known_to_the_store.append(deadlines.current_deadline())
        release.wait(20)
        return pb.SignalState()

    async def scenario(ports: Ports) -> tuple[grpc.aio.AioRpcError, Any, float]:
        began_at = time.monotonic()
        failed = await refused(ports, timeout=0.2)
        answer = await ports.post(GET, REQUEST, connect_timeout_ms="200")
        took = time.monotonic() - began_at
        release.set()
        return failed, answer, took

    failed, answer, took = talk(declared(GetSignalState=handler), scenario)

    assert failed.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert answer.json()["code"] == "deadline_exceeded"
    assert took < 5
    assert all(each is not None and 0 < each <= 0.2 for each in remaining)
    assert None not in known_to_the_store


def test_deadline__passes_in_the_queue__the_work_is_not_begun() -> None:
    begun: list[str] = []
    release = threading.Event()

    def handler(request: pb.GetSignalStateRequest, _call: RpcCall) -> pb.SignalState:
        begun.append(request.dataset_urn)
        release.wait(20)
        return pb.SignalState()

    async def scenario(ports: Ports) -> Any:
        blocked = [asyncio.create_task(ports.post(GET, REQUEST)) for _ in range(4)]
        while len(begun) < 4:
            await asyncio.sleep(0.005)
        late = pb.GetSignalStateRequest(dataset_urn="late").SerializeToString()
        answer = await ports.post(GET, late, connect_timeout_ms="50")
        release.set()
        await asyncio.gather(*blocked)
        return answer

    answer = talk(declared(GetSignalState=handler), scenario)

    assert answer.json()["code"] == "deadline_exceeded"
    assert "late" not in begun


@pytest.mark.parametrize("given", ["-1", "1.5", "soon", "12345678901", ""])
def test_deadline__that_is_not_one__is_refused(given: str) -> None:
    answer = talk(declared(GetSignalState=answering), lambda ports: ports.post(GET, REQUEST, connect_timeout_ms=given))

    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")


def test_message__not_of_the_type__is_the_callers_fault() -> None:
    async def scenario(ports: Ports) -> tuple[grpc.aio.AioRpcError, Any]:
        return await refused(ports, content=b"\xff\xff"), await ports.post(GET, b"\xff\xff")

    failed, answer = talk(declared(GetSignalState=answering), scenario)

    assert failed.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")


def test_message__up_to_the_limit__is_taken_and_a_larger_one_refused() -> None:
    fits = pb.GetSignalStateRequest(dataset_urn="x" * (MESSAGE_BYTES_MAX - 16)).SerializeToString()
    large = pb.GetSignalStateRequest(dataset_urn="x" * MESSAGE_BYTES_MAX).SerializeToString()

    async def scenario(ports: Ports) -> tuple[bytes, Any, grpc.aio.AioRpcError, Any]:
        over_grpc = await ports.grpc(GET, fits)
        over_http = await ports.post(GET, fits)
        return over_grpc, over_http, await refused(ports, content=large), await ports.post(GET, large)

    over_grpc, over_http, failed, answer = talk(
        declared(GetSignalState=lambda request, _call: pb.SignalState(version=len(request.dataset_urn))), scenario
    )

    assert pb.SignalState.FromString(over_grpc).version == MESSAGE_BYTES_MAX - 16
    assert pb.SignalState.FromString(over_http.content).version == MESSAGE_BYTES_MAX - 16
    assert failed.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert answer.json()["code"] == "resource_exhausted"


def test_method__not_declared__is_not_served() -> None:
    async def scenario(ports: Ports) -> tuple[grpc.aio.AioRpcError, Any]:
        return await refused(ports, "GateService/Check"), await ports.post("GateService/Check", b"")

    failed, answer = talk(declared(GetSignalState=answering), scenario)

    assert failed.code() is grpc.StatusCode.UNIMPLEMENTED
    assert answer.status_code == 404


def test_declaration__of_what_the_file_does_not_have__is_refused() -> None:
    rpcs = MethodRegistry(pb.DESCRIPTOR)
    rule = named(Permission.SIGNAL_READ)

    with pytest.raises(DefinitionError, match="not found in"):
        rpcs.unary("SignalStateService", "Nope", answering, rule=rule)
    with pytest.raises(DefinitionError, match="another kind"):
        rpcs.unary("SignalStateService", "Watch", answering, rule=rule)
    rpcs.unary("SignalStateService", "GetSignalState", answering, rule=rule)
    with pytest.raises(DefinitionError, match="twice"):
        rpcs.unary("SignalStateService", "GetSignalState", answering, rule=rule)


def test_caller__without_the_right__is_refused_on_both() -> None:
    nobody = Principal("lineage", frozenset({Role.LINEAGE_INGESTOR}), ("*",), CredentialKind.API_KEY)

    async def scenario(ports: Ports) -> tuple[grpc.aio.AioRpcError, Any]:
        return await refused(ports), await ports.post(GET, REQUEST)

    methods = declared(GetSignalState=answering)
    failed, answer = talk(methods, scenario, identify=lambda _call: nobody)
    unknown, unauthenticated = talk(methods, scenario, identify=lambda _call: None)

    assert failed.code() is grpc.StatusCode.PERMISSION_DENIED
    assert answer.status_code == 403
    assert unknown.code() is grpc.StatusCode.UNAUTHENTICATED
    assert unauthenticated.status_code == 401


def test_caller__is_reported_by_its_headers__on_both() -> None:
    seen: list[tuple[str | None, str]] = []

    def identify(call: RpcCall) -> Principal:
        seen.append((call.headers.get("authorization"), call.peer))
        return Principal("someone", frozenset({Role.VIEWER}), ("*",))

    async def scenario(ports: Ports) -> None:
        await ports.grpc(GET, REQUEST, metadata=(("authorization", "Bearer a"),))
        await ports.post(GET, REQUEST, authorization="Bearer b")

    talk(declared(GetSignalState=answering), scenario, identify=identify)

    assert [each for each, _ in seen] == ["Bearer a", "Bearer b"]
    assert all("127.0.0.1" in peer for _, peer in seen)


def test_caller__with_credentials__is_found_out_off_the_loop_unless_remembered() -> None:
    loops: list[bool] = []
    someone = Principal("someone", frozenset({Role.VIEWER}), ("*",))

    def identify(_call: RpcCall) -> Principal:
        loops.append(threading.current_thread() is threading.main_thread())
        return someone

    async def scenario(ports: Ports) -> None:
        for metadata in ((), (("authorization", "Bearer a"),), (("authorization", "known"),)):
            await ports.grpc(GET, REQUEST, metadata=metadata)

    talk(
        declared(GetSignalState_inline=answering),
        scenario,
        identify=identify,
        remember=lambda call: someone if call.headers["authorization"] == "known" else None,
    )

    assert loops == [True, False]


def test_headers__given_twice__are_both_seen() -> None:
    seen: list[str | None] = []

    def identify(call: RpcCall) -> None:
        seen.append(call.headers.get("authorization"))

    async def scenario(ports: Ports) -> None:
        twice = [("authorization", "Bearer a"), ("authorization", "Bearer b")]
        await refused(ports, metadata=tuple(twice))
        await ports.http.post(
            f"/{PACKAGE}.{GET}", content=REQUEST, headers=[("content-type", "application/proto"), *twice]
        )

    talk(declared(GetSignalState=answering), scenario, identify=identify)

    assert seen == ["Bearer a, Bearer b"] * 2


async def counting(request: pb.WatchSignalsRequest, _call: RpcCall) -> AsyncIterator[pb.SignalChange]:
    for number in range(3):
        yield pb.SignalChange(cursor=f"{request.cursor}{number}")


def test_stream__over_grpc__gives_each_answer_and_then_its_error() -> None:
    async def failing(request: pb.WatchSignalsRequest, call: RpcCall) -> AsyncIterator[pb.SignalChange]:
        async for each in counting(request, call):
            yield each
        raise ThrottledError("slower")

    async def scenario(ports: Ports) -> tuple[list[str], grpc.StatusCode]:
        method: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = ports.channel.unary_stream(f"/{PACKAGE}.{WATCH}")
        stream = method(pb.WatchSignalsRequest(cursor="c").SerializeToString())
        found = [pb.SignalChange.FromString(await stream.read()).cursor for _ in range(3)]  # type: ignore[arg-type]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
        return found, caught.value.code()

    assert talk(declared(Watch=failing), scenario) == (["c0", "c1", "c2"], grpc.StatusCode.RESOURCE_EXHAUSTED)


def test_stream__left_by_its_reader__ends_its_handler() -> None:
    ended = threading.Event()

    async def endless(_request: object, _call: RpcCall) -> AsyncIterator[pb.SignalChange]:
        try:
            yield pb.SignalChange(cursor="first")
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def scenario(ports: Ports) -> None:
        method: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = ports.channel.unary_stream(f"/{PACKAGE}.{WATCH}")
        stream = method(b"")
        await stream.read()
        stream.cancel()
        assert await asyncio.to_thread(ended.wait, 10)
        ended.clear()
        head = {"content-type": "application/connect+proto"}
        async with ports.http.stream("POST", f"/{PACKAGE}.{WATCH}", content=b"\0\0\0\0\0", headers=head) as answer:
            await anext(answer.aiter_bytes())
        assert await asyncio.to_thread(ended.wait, 10)

    talk(declared(Watch=endless), scenario)


def test_stream__past_its_deadline__ends() -> None:
    async def endless(_request: object, _call: RpcCall) -> AsyncIterator[pb.SignalChange]:
        yield pb.SignalChange(cursor="first")
        await asyncio.Event().wait()

    async def scenario(ports: Ports) -> Any:
        return await ports.post(WATCH, b"\0\0\0\0\0", "application/connect+proto", connect_timeout_ms="100")

    answer = talk(declared(Watch=endless), scenario)

    assert answer.status_code == 200
    assert b'"deadline_exceeded"' in answer.content


def test_counts__of_calls__are_by_protocol_method_and_status() -> None:
    registry = CollectorRegistry()
    pool = WorkPool(threads_max=1)
    (method,) = declared(GetSignalState_inline=raising(ForbiddenError("no")))
    dispatcher = Dispatcher([method], pool, clock=SystemClock(), tracing=Tracing(), registry=registry)

    dispatcher.record("grpc", method, "OK", 0.001)
    dispatcher.record("grpc", method, "OK", 0.001)
    dispatcher.record("connect", method, "PERMISSION_DENIED", 0.001)
    pool.close()

    labels = {"api_type": "grpc", "method": GET, "status_code": "OK"}
    assert registry.get_sample_value("api_request_count_total", labels) == 2
    labels = {"api_type": "connect", "method": GET, "status_code": "PERMISSION_DENIED"}
    assert registry.get_sample_value("api_request_count_total", labels) == 1
    assert registry.get_sample_value("api_latency_count", {"api_type": "grpc", "method": GET}) == 2


def test_bulk__takes_long__what_carries_one_value_is_not_in_line_behind_it() -> None:
    begun, enough = threading.Event(), threading.Event()

    def slow(_request: object, _call: RpcCall) -> pb.BatchUpdateSignalStateResponse:
        begun.set()
        assert enough.wait(30)
        return pb.BatchUpdateSignalStateResponse(success_count=1)

    rpcs = MethodRegistry(pb.DESCRIPTOR)
    rpcs.unary("SignalStateService", "BatchUpdateSignalState", slow, rule=ANYONE, bulk=True)
    rpcs.unary("SignalStateService", "GetSignalState", answering, rule=ANYONE)
    many, one = rpcs.methods()
    pool, bulk = WorkPool(threads_max=1), WorkPool(threads_max=1)
    clock, counts = SystemClock(), CollectorRegistry()
    dispatcher = Dispatcher([many, one], pool, clock=clock, tracing=Tracing(), registry=counts, bulk=bulk)

    async def asked(method: Method, content: bytes) -> bytes:
        return await dispatcher.unary("grpc", method, content, Binary(), RpcCall({}, "here", clock), "req_1")

    async def scenario() -> tuple[bytes, bytes]:
        slow_one = asyncio.create_task(asked(many, b""))
        await asyncio.to_thread(begun.wait, 30)
        answer = await asyncio.wait_for(asked(one, REQUEST), 30)
        enough.set()
        return answer, await slow_one

    answer, later = asyncio.run(scenario())
    pool.close()
    bulk.close()

    assert pb.SignalState.FromString(answer).version == 7
    assert pb.BatchUpdateSignalStateResponse.FromString(later).success_count == 1


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection__asked__reports_services_and_their_messages(version: str) -> None:
    async def ask(ports: Ports, **question: str) -> Any:
        method: Any = ports.channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        stream = method(iter([reflection_pb2.ServerReflectionRequest(**question)]))
        return await stream.read()

    async def scenario(ports: Ports) -> tuple[Any, ...]:
        names = await ask(ports, list_services="*")
        known = [each.name for each in names.list_services_response.service]
        return known, [await ask(ports, file_containing_symbol=name) for name in known]

    names, files = talk(declared(GetSignalState=answering), scenario)

    assert f"{PACKAGE}.SignalStateService" in names
    assert {"grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"} <= set(names)
    assert f"{PACKAGE}.GateService" not in names
    assert all(each.file_descriptor_response.file_descriptor_proto for each in files)


def _starting() -> None:
    raise NotReadyError("the server is starting; the request was not started, retry it")


def test_call__server_is_not_ready__is_unavailable_with_a_delay_on_every_protocol() -> None:
    async def scenario(ports: Ports) -> tuple[grpc.aio.AioRpcError, grpc.aio.AioRpcError, httpx.Response]:
        with pytest.raises(grpc.aio.AioRpcError) as unary:
            await ports.grpc(GET, REQUEST)
        with pytest.raises(grpc.aio.AioRpcError) as stream:
            watch: Any = ports.channel.unary_stream(f"/{PACKAGE}.{WATCH}")
            await watch(b"").read()
        return unary.value, stream.value, await ports.post(GET, REQUEST)

    methods = declared(GetSignalState_inline=answering, Watch=_never)
    unary, stream, connect = talk(methods, scenario, checks=CallChecks(check_ready=_starting))

    for failed in (unary, stream):
        assert failed.code() is grpc.StatusCode.UNAVAILABLE
        assert dict(failed.trailing_metadata() or ())["headgate-code"] == "not_ready"
    assert (connect.status_code, connect.headers["retry-after"]) == (503, "1")


async def _never(_request: Any, _call: RpcCall) -> AsyncIterator[Any]:
    raise AssertionError("it must not be called")
    yield  # A generator.


def test_call__as_many_in_progress_as_allowed__is_refused_after_a_wait_and_accepted_afterwards() -> None:
    release, begun = threading.Event(), list[str]()

    def slow(request: pb.GetSignalStateRequest, call: RpcCall) -> pb.SignalState:
        begun.append(request.dataset_urn)
        assert release.wait(10)
        return answering(request, call)

    async def scenario(ports: Ports) -> tuple[grpc.aio.AioRpcError, list[bytes]]:
        busy = [asyncio.create_task(ports.grpc(GET, REQUEST)) for _ in range(2)]
        while len(begun) < 2:
            await asyncio.sleep(0.001)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ports.grpc(GET, REQUEST)
        release.set()
        return caught.value, [*await asyncio.gather(*busy), await ports.grpc(GET, REQUEST)]

    refused, answers = talk(declared(GetSignalState=slow), scenario, limits=LimitSettings(in_flight=2))

    assert refused.code() is grpc.StatusCode.UNAVAILABLE
    assert dict(refused.trailing_metadata() or ())["headgate-code"] == "server_busy"
    assert len(answers) == 3


def test_call__metadata_larger_than_the_limit__is_refused() -> None:
    async def scenario(ports: Ports) -> grpc.StatusCode:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ports.grpc(GET, REQUEST, metadata=[("x-large", "a" * 40_000)])
        await ports.grpc(GET, REQUEST, metadata=[("x-large", "a" * 20_000)])
        return caught.value.code()

    assert talk(declared(GetSignalState=answering), scenario) is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_large_message__caller_without_credentials__is_refused_before_it_is_read() -> None:
    async def scenario(ports: Ports) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", ports.http_server.address.port)
        head = f"POST /{PACKAGE}.{GET} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/proto\r\n"
        # The message itself is never sent.
        writer.write(f"{head}content-length: 3000000\r\n\r\n".encode())
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        writer.close()
        return answer

    answer = talk(declared(GetSignalState=answering), scenario, identify=lambda _call: None)

    assert answer.startswith(b"HTTP/1.1 401 ")


def test_health__asked_for_a_service__reports_that_it_serves() -> None:
    async def scenario(ports: Ports) -> tuple[list[int], grpc.StatusCode]:
        method: Any = ports.channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        found = [
            (await method(health_pb2.HealthCheckRequest(service=name))).status
            for name in ("", f"{PACKAGE}.SignalStateService")
        ]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(health_pb2.HealthCheckRequest(service=f"{PACKAGE}.GateService"))
        return found, caught.value.code()

    found, unknown = talk(declared(GetSignalState=answering), scenario)

    assert found == [health_pb2.HealthCheckResponse.SERVING] * 2
    assert unknown is grpc.StatusCode.NOT_FOUND
