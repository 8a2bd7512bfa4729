"""Activities: retries, limits of time, heartbeats, completion from outside, and errors that keep what they are."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec
import pytest
from msgspec import Raw

import headgate as hg
from headgate.durable.model.failures import ErrorInfo
from headgate.errors import NotFoundError, SignatureError, StaleClaimError
from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.requests import Put
from tests.scenarios.conftest import OpenEnvironment
from tests.scenarios.histories import issued, left_behind, notes

app = hg.App("activities")


class CardDeclined(Exception):
    """An error of the user's own, with details."""

    def __init__(self, code: int, *, shop: str) -> None:
        super().__init__(f"declined with code {code}")
        self.code = code
        self.shop = shop


class GoneForGood(CardDeclined):
    """One that the policy does not retry."""


class Unusual(BaseException):
    """What `except Exception` does not catch."""


@app.activity(retry=hg.Retry(attempts=4, first="1s", factor=2, jitter=0))
def flaky(n: int) -> int:
    return n


@app.activity(retry=hg.Retry(attempts=5, first="1s", jitter=0, never=(GoneForGood, "KeyError")))
def picky(n: int) -> int:
    return n


@app.activity(retry=hg.Retry(attempts=1))
def once(value: Any) -> Any:
    return value


@app.activity
async def in_async(n: int) -> int:
    await asyncio.sleep(0)
    return n + 1


@app.activity(timeout="30s", retry=hg.Retry(attempts=2, first="5s", jitter=0))
def limited(n: int) -> int:
    return n


@app.activity(heartbeat="10s", retry=hg.Retry(attempts=2, first="1s", jitter=0))
def beating(n: int) -> int:
    return n


@app.activity(queue="elsewhere", schedule_to_start="1m")
def unattended(n: int) -> int:
    return n


@app.activity(schedule_to_close="1m", retry=hg.Retry(attempts=0, first="10s", factor=1, jitter=0))
def hurried(n: int) -> int:
    return n


@app.activity(schedule_to_start="1m", schedule_to_close="5m", retry=hg.Retry(attempts=0, first="70s", jitter=0))
def patient(n: int) -> int:
    return n


@app.workflow
async def calls_flaky(n: int) -> int:
    return await flaky(n)


@app.workflow
async def calls_picky(n: int) -> int:
    return await picky(n)


@app.workflow
async def calls_once(value: Any) -> Any:
    return await once(value)


@app.workflow
async def calls_async(n: int) -> Any:
    return await in_async(n)


@app.workflow
async def explains(kind: str) -> dict[str, Any]:
    activity = {
        "limited": limited,
        "beating": beating,
        "unattended": unattended,
        "hurried": hurried,
        "patient": patient,
    }[kind]
    started = hg.now()
    try:
        value = await activity(1)
    except hg.ActivityTimeout as exc:
        return {
            "kind": exc.kind,
            "attempts": exc.attempts,
            "activity": exc.activity,
            "is_timeout": isinstance(exc, TimeoutError),
            "after": (hg.now() - started).total_seconds(),
        }
    return {"value": value}


@app.workflow
async def explains_error() -> dict[str, Any]:
    try:
        await once(1)
    except CardDeclined as exc:
        failure = exc.__cause__
        assert isinstance(failure, hg.ActivityFailure)
        root = failure.__cause__
        return {
            "class": type(exc).__name__,
            "message": str(exc),
            "code": exc.code,
            "shop": exc.shop,
            "activity": failure.activity,
            "attempts": failure.attempts,
            "cause": [type(root).__name__, str(root)],
        }
    return {}


@app.workflow
async def explains_unknown() -> dict[str, Any]:
    try:
        await once(1)
    except hg.ActivityFailure as exc:
        return {"type": exc.type, "message": exc.message, "data": exc.data, "text": str(exc)}
    return {}


def keep_token(tokens: list[str]) -> Any:
    def wait(*_: object, **__: object) -> Any:
        tokens.append(hg.activity().token)
        return hg.complete_later()

    return wait


def json(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))


# Retries.


def test_retry__fails_twice__is_tried_after_growing_pauses(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    at: list[float] = []

    def fail_twice(n: int) -> int:
        at.append(env.clock.seconds())
        if len(at) < 3:
            raise OSError("try again")
        return n

    env.stand_in(flaky).calls_with(fail_twice)
    handle = env.start(calls_flaky, 7)
    assert env.result(handle) == 7
    assert [later - earlier for earlier, later in itertools.pairwise(at)] == [1.0, 2.0]
    assert issued(env, handle) == ["start_activity", "close"]


def test_retry__attempts_used_up__the_error_reaches_the_workflow(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    stand_in = env.stand_in(flaky).raises(OSError("never"))
    handle = env.start(calls_flaky, 7)
    with pytest.raises(hg.ExecutionFailure, match="never") as caught:
        env.result(handle)
    assert caught.value.status == "FAILED"
    assert caught.value.type == "OSError"
    assert len(stand_in.calls) == 4


def test_retry__non_retryable__is_tried_once(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    stand_in = env.stand_in(flaky).raises(hg.NonRetryable("no use", data={"why": "so"}))
    handle = env.start(calls_flaky, 7)
    with pytest.raises(hg.ExecutionFailure, match="no use") as caught:
        env.result(handle)
    assert len(stand_in.calls) == 1
    assert caught.value.data == {"why": "so"}


@pytest.mark.parametrize(
    ("error", "attempts"),
    [(GoneForGood(1, shop="x"), 1), (KeyError("k"), 1), (CardDeclined(1, shop="x"), 5), (ValueError("v"), 5)],
)
def test_retry__errors_of_the_never_list__are_tried_once(
    open_env: OpenEnvironment, error: Exception, attempts: int
) -> None:
    env = open_env(app)
    stand_in = env.stand_in(picky).raises(error)
    with pytest.raises(hg.ExecutionFailure):
        env.result(env.start(calls_picky, 1))
    assert len(stand_in.calls) == attempts


def test_retry__without_limit__goes_on_until_it_works(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")
    tried: list[int] = []

    @mine.activity(retry=hg.Retry(attempts=0, first="1s", most="1m", jitter=0))
    def stubborn() -> int:
        tried.append(hg.activity().attempt)
        if len(tried) < 40:
            raise OSError("not yet")
        return len(tried)

    @mine.workflow
    async def insists() -> int:
        return await stubborn()

    env = open_env(mine)
    assert env.result(env.start(insists)) == 40
    assert tried == list(range(1, 41))


def test_options__of_one_call__do_not_change_the_others(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")
    tried: list[str] = []

    @mine.activity(retry=hg.Retry(attempts=2, first="1s", jitter=0))
    def fails(name: str) -> None:
        tried.append(name)
        raise OSError(name)

    @mine.workflow
    async def both() -> None:
        for name, call in (("own", fails), ("more", fails.options(retry=hg.Retry(attempts=3, first="1s")))):
            try:
                await call(name)
            except OSError:
                continue

    env = open_env(mine)
    env.result(env.start(both))
    assert tried == ["own"] * 2 + ["more"] * 3


# Input and result of an activity.


def test_context__in_an_activity__says_who_and_which_attempt(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")
    seen: list[tuple[str, int, str]] = []

    @mine.activity(retry=hg.Retry(attempts=2, first="1s"))
    def looks() -> None:
        context = hg.activity()
        seen.append((context.execution_id, context.attempt, context.name))
        if context.attempt == 1:
            raise OSError("once more")

    @mine.workflow
    async def asks() -> None:
        await looks()

    env = open_env(mine)
    handle = env.start(asks)
    env.result(handle)
    assert seen == [(handle.id, 1, "looks"), (handle.id, 2, "looks")]


def test_async_activity__awaited__returns_its_result(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    assert env.result(env.start(calls_async, 1)) == 2


@pytest.mark.parametrize("value", [None, True, 0, -1.5, "ü", [], {}, [[1], {"a": {"b": None}}]])
def test_result__of_any_json__arrives_as_it_is(open_env: OpenEnvironment, value: Any) -> None:
    env = open_env(app)
    assert env.result(env.start(calls_once, value)) == value


def test_result__that_has_no_json_form__fails_the_activity(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    env.stand_in(once).returns(object())
    with pytest.raises(hg.ExecutionFailure, match="no JSON form"):
        env.result(env.start(calls_once, 1))


def test_result__not_as_annotated__raises_where_it_is_awaited(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    env.stand_in(flaky).returns("not a number")
    with pytest.raises(hg.ExecutionFailure, match="result of activity flaky"):
        env.result(env.start(calls_flaky, 1))


def test_arguments__that_the_activity_does_not_take__raise_in_the_workflow(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.activity
    def takes(a: int, b: int) -> int:
        return a + b

    @mine.workflow
    async def gives() -> str:
        try:
            await takes(1, 2, 3)  # type: ignore[call-arg]
        except hg_user_error() as exc:
            return str(exc)
        return "taken"

    env = open_env(mine)
    assert "3 positional" in env.result(env.start(gives))


def hg_user_error() -> type[Exception]:
    from headgate.errors import UserError

    return UserError


def test_argument__not_as_annotated__fails_the_activity_not_the_worker(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.activity(retry=hg.Retry(attempts=1))
    def takes(n: int) -> int:
        return n

    @mine.workflow
    async def gives() -> str:
        try:
            await takes("five")  # type: ignore[arg-type]
        except Exception as exc:
            return type(exc).__name__
        return "taken"

    env = open_env(mine)
    assert env.result(env.start(gives)) == "InvalidPayloadError"


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), Unusual("odd")])
def test_activity__that_raises_what_is_no_exception__fails_and_does_not_take_the_worker_along(
    open_env: OpenEnvironment, error: BaseException
) -> None:
    env = open_env(app)
    env.stand_in(once).raises(error)
    handle = calls_once.start(1)
    try:
        env.run()
    except BaseException as exc:
        pytest.fail(f"{type(exc).__name__} left the worker")
    with pytest.raises(hg.ExecutionFailure) as caught:
        env.result(handle)
    assert caught.value.type in ("ActivityFailure", type(error).__name__)
    assert handle.status() is hg.Status.FAILED


def test_activity__that_uses_what_belongs_into_workflows__fails_the_workflow_and_does_not_leave_it_stuck(
    open_env: OpenEnvironment,
) -> None:
    env = open_env(app)
    env.stand_in(once).calls_with(lambda _: hg.now())
    handle = env.start(calls_once, 1)
    with pytest.raises(hg.ExecutionFailure, match="belongs into a workflow"):
        env.result(handle)
    assert handle.status() is hg.Status.FAILED


# Errors.


def test_error__of_a_class_of_the_users__keeps_class_message_data_and_cause(open_env: OpenEnvironment) -> None:
    env = open_env(app)

    def decline(_: int) -> None:
        try:
            raise ConnectionError("the bank is down")
        except ConnectionError as exc:
            raise CardDeclined(51, shop="corner") from exc

    env.stand_in(once).calls_with(decline)
    assert env.result(env.start(explains_error)) == {
        "class": "CardDeclined",
        "message": "declined with code 51",
        "code": 51,
        "shop": "corner",
        "activity": "once",
        "attempts": 1,
        "cause": ["ConnectionError", "the bank is down"],
    }


def test_error__of_a_class_that_is_not_loaded__is_reported_as_data(open_env: OpenEnvironment) -> None:
    env = open_env(app)

    def decline(_: int) -> None:
        class Local(Exception):
            data: Any = None

        error = Local("only here")
        error.data = {"limit": 5}
        raise error

    env.stand_in(once).calls_with(decline)
    found = env.result(env.start(explains_unknown))
    assert (found["type"], found["message"], found["data"]) == ("Local", "only here", {"limit": 5})
    assert "once" in found["text"]


def test_error__group__keeps_its_first_member_as_cause(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    env.stand_in(once).raises(ExceptionGroup("several", [ValueError("first"), KeyError("second")]))
    found = env.result(env.start(explains_unknown))
    assert found["type"] == "ExceptionGroup"
    assert "several" in found["message"]


def test_error__that_cannot_be_shown__still_reaches_the_workflow(open_env: OpenEnvironment) -> None:
    env = open_env(app)

    class Unshowable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    env.stand_in(once).raises(Unshowable())
    assert env.result(env.start(explains_unknown))["type"] == "Unshowable"


# Limits of time.


def test_timeout__start_to_close__ends_the_attempt_and_then_the_activity(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    stand_in = env.stand_in(limited).waits()
    found = env.result(env.start(explains, "limited"))
    assert found == {
        "kind": "start_to_close",
        "attempts": 2,
        "activity": "limited",
        "is_timeout": True,
        "after": pytest.approx(65.0, abs=5.0),
    }
    assert len(stand_in.calls) == 2


def test_timeout__start_to_close_of_the_first_attempt_only__the_second_counts(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    env.stand_in(limited).waits_once()
    assert env.result(env.start(explains, "limited")) == {"value": 1}


def test_timeout__heartbeat__ends_the_attempt_when_none_comes(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    env.stand_in(beating).waits()
    found = env.result(env.start(explains, "beating"))
    assert (found["kind"], found["attempts"]) == ("heartbeat", 2)


def test_timeout__schedule_to_start__ends_what_no_worker_takes(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    env.worker.queues = ("default",)
    found = env.result(env.start(explains, "unattended"))
    assert (found["kind"], found["is_timeout"]) == ("schedule_to_start", True)
    assert found["after"] == pytest.approx(60.0, abs=3.0)
    assert left_behind(env) == {}


@pytest.mark.parametrize(("name", "limit"), [("unattended", "schedule_to_start"), ("hurried", "schedule_to_close")])
def test_timeout__of_what_is_claimed_and_waits_for_a_thread__ends_it(
    open_env: OpenEnvironment, name: str, limit: str
) -> None:
    env = open_env(app)
    handle = explains.start(name)
    env.worker.poll()
    env.worker.turn()
    assert len(env.worker.queue) == 1
    assert env.worker.schedule.next_due_ms == 1000 * (env.clock.seconds() + 60)

    env.clock.advance(59)
    env.worker.poll()
    assert len(env.worker.queue) == 1
    env.clock.advance(2)
    env.worker.poll()
    env.worker.turn()

    found = handle.result(0)
    assert (found["kind"], found["attempts"], found["after"]) == (limit, 0, 61.0)
    assert list(env.worker.queue) == []
    assert left_behind(env) == {}


def test_timeout__schedule_to_start__is_for_the_first_wait_alone(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    stand_in = env.stand_in(patient).raises_once(OSError("not yet"))
    handle = env.start(explains, "patient")
    env.clock.advance(70)
    env.worker.poll()
    assert (len(stand_in.calls), len(env.worker.queue)) == (1, 1)

    env.clock.advance(229)
    env.worker.poll()
    assert len(env.worker.queue) == 1
    env.clock.advance(2)
    env.worker.poll()
    env.worker.turn()

    found = handle.result(0)
    assert (found["kind"], found["attempts"]) == ("schedule_to_close", 1)


def test_timeout__of_a_later_wait_in_the_store__names_the_limit_that_has_passed(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    env.stand_in(patient).raises_once(OSError("not yet"))
    handle = env.start(explains, "patient")
    env.worker.queues = ("another",)
    assert env.result(handle)["kind"] == "schedule_to_close"


def test_timeout__schedule_to_close__bounds_all_attempts_together(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    stand_in = env.stand_in(hurried).raises(OSError("again and again"))
    handle = env.start(explains, "hurried")
    with pytest.raises(hg.ExecutionFailure, match="again and again"):
        env.result(handle)
    assert 5 <= len(stand_in.calls) <= 6
    waiting = env.stand_in(hurried).waits()
    found = env.result(env.start(explains, "hurried"))
    assert found["kind"] == "schedule_to_close"
    assert found["after"] == pytest.approx(60.0, abs=3.0)
    assert len(waiting.calls) == 1


def test_timeout__result_before_it__is_taken_and_nothing_is_left(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    tokens: list[str] = []
    env.stand_in(limited).calls_with(keep_token(tokens))
    handle = env.start(explains, "limited")
    env.advance("29s")
    env.service.client.complete_activity(tokens[0], json(5))
    assert env.result(handle) == {"value": 5}
    assert left_behind(env) == {}


def test_timeout__result_after_it__is_refused(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    tokens: list[str] = []
    env.stand_in(limited).calls_with(keep_token(tokens))
    handle = env.start(explains, "limited")
    env.advance("33s")
    with pytest.raises(StaleClaimError, match="no longer yours"):
        env.service.client.complete_activity(tokens[0], json(5))
    assert env.result(handle)["kind"] == "start_to_close"
    for token in tokens:
        with pytest.raises((StaleClaimError, NotFoundError)):
            env.service.client.complete_activity(token, json(5))


# Heartbeats.


def test_heartbeat__details__reach_the_next_attempt(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")
    seen: list[Any] = []

    @mine.activity(heartbeat="10s", retry=hg.Retry(attempts=4, first="1s", jitter=0))
    def climbs() -> int:
        reached = hg.activity().heartbeat_details() or {"step": 0}
        seen.append(reached["step"])
        for step in range(reached["step"] + 1, reached["step"] + 3):
            hg.heartbeat({"step": step})
        if step < 6:
            raise OSError("slipped")
        return int(step)

    @mine.workflow
    async def goes_up() -> int:
        return await climbs()

    env = open_env(mine)
    assert env.result(env.start(goes_up)) == 6
    assert seen == [0, 2, 4]


def test_heartbeat__of_an_async_activity__reaches_the_next_attempt(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.activity(heartbeat="10s", retry=hg.Retry(attempts=2, first="1s", jitter=0))
    async def climbs() -> Any:
        before = hg.activity().heartbeat_details()
        hg.heartbeat("half way")
        await asyncio.sleep(0)
        if before is None:
            raise OSError("slipped")
        return before

    @mine.workflow
    async def goes_up() -> Any:
        return await climbs()

    env = open_env(mine)
    assert env.result(env.start(goes_up)) == "half way"


def test_heartbeat__from_outside_in_time__keeps_the_activity_alive(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    tokens: list[str] = []
    env.stand_in(beating).calls_with(keep_token(tokens))
    handle = env.start(explains, "beating")
    for _ in range(10):
        env.advance("8s")
        env.service.client.beat_activity(tokens[0], json({"alive": True}))
    env.service.client.complete_activity(tokens[0], json(9))
    assert env.result(handle) == {"value": 9}
    assert len(tokens) == 1


def test_heartbeat__from_outside_that_stops__ends_the_attempt_and_hands_on_the_details(
    open_env: OpenEnvironment,
) -> None:
    env = open_env(app)
    seen: list[Any] = []
    tokens: list[str] = []

    def waits(_: int) -> Any:
        seen.append(hg.activity().heartbeat_details())
        tokens.append(hg.activity().token)
        return hg.complete_later()

    env.stand_in(beating).calls_with(waits)
    handle = env.start(explains, "beating")
    env.advance("5s")
    env.service.client.beat_activity(tokens[0], json("so far"))
    env.advance("20s")
    assert seen == [None, "so far"]
    assert env.result(handle)["kind"] == "heartbeat"


def test_heartbeat__of_an_activity_that_was_cancelled__raises_in_it(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")
    received: list[str] = []

    @mine.activity(heartbeat="10s", retry=hg.Retry(attempts=1))
    def works() -> None:
        handle.terminate("enough")
        while env.worker.engine.has_work or not handle.status().is_closed:
            env.worker.poll()
            env.worker.turn()
        try:
            hg.heartbeat("still there?")
        except hg.Cancelled:
            received.append("cancelled")
            raise

    @mine.workflow
    async def asks() -> None:
        await works()

    env = open_env(mine)
    handle = asks.start(id="asks")
    env.run()
    assert received == ["cancelled"]
    assert handle.status() is hg.Status.TERMINATED


def test_heartbeat__from_outside_after_the_end__says_that_no_one_waits(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    tokens: list[str] = []
    env.stand_in(beating).calls_with(keep_token(tokens))
    handle = env.start(explains, "beating")
    handle.terminate()
    env.run()
    with pytest.raises((StaleClaimError, NotFoundError)):
        env.service.client.beat_activity(tokens[0])


# Completion from outside.


def test_external__completed_by_token__gives_its_result_once(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    tokens: list[str] = []
    env.stand_in(once).calls_with(keep_token(tokens))
    handle = env.start(calls_once, 1)
    env.advance("30d")
    assert handle.status() is hg.Status.RUNNING
    env.service.client.complete_activity(tokens[0], json({"answer": 42}))
    with pytest.raises((NotFoundError, StaleClaimError)):
        env.service.client.complete_activity(tokens[0], json("again"))
    assert env.result(handle) == {"answer": 42}


def test_external__failed_by_token__raises_in_the_workflow(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    tokens: list[str] = []
    env.stand_in(once).calls_with(keep_token(tokens))
    handle = env.start(explains_unknown)
    env.service.client.fail_activity(tokens[0], ErrorInfo(type="Declined", message="by a person"))
    found = env.result(handle)
    assert (found["type"], found["message"]) == ("Declined", "by a person")


def test_external__failed_by_token_with_attempts_left__is_tried_again(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    tokens: list[str] = []
    env.stand_in(flaky).calls_with(keep_token(tokens))
    handle = env.start(calls_flaky, 1)
    env.service.client.fail_activity(tokens[0], ErrorInfo(type="Declined", message="by a person"))
    env.advance("2s")
    assert len(tokens) == 2
    with pytest.raises(StaleClaimError):
        env.service.client.complete_activity(tokens[0], json(0))
    env.service.client.complete_activity(tokens[1], json(8))
    assert env.result(handle) == 8


def test_external__token_that_was_altered__is_refused(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    tokens: list[str] = []
    env.stand_in(once).calls_with(keep_token(tokens))
    env.start(calls_once, 1)
    token = tokens[0]
    middle = len(token) // 2
    altered = token[:middle] + ("A" if token[middle] != "A" else "B") + token[middle + 1 :]
    for bad in (altered, "", "nonsense", token[:-2]):
        with pytest.raises(SignatureError):
            env.service.client.complete_activity(bad, json(1))


def test_complete_later__outside_of_an_activity__is_refused() -> None:
    from headgate.errors import WorkflowViolationError

    for call in (hg.complete_later, hg.activity, hg.heartbeat):
        with pytest.raises(WorkflowViolationError, match=rf"^hg.{call.__name__}\(\) belongs into an activity"):
            call()


# Limits of how many.


def test_limit__concurrency_of_one__lets_no_two_run_at_once(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")
    tokens: list[str] = []

    @mine.activity(limit=hg.Limit(concurrency=2))
    def scarce(n: int) -> Any:
        tokens.append(hg.activity().token)
        return hg.complete_later()

    @mine.workflow
    async def wants(count: int) -> list[int]:
        return list(await asyncio.gather(*(scarce(n) for n in range(count))))

    env = open_env(mine)
    handle = env.start(wants, 5)
    env.advance("1s")
    for done in range(5):
        assert len(tokens) == min(done + 2, 5)
        env.service.client.complete_activity(tokens[done], json(done))
        env.advance("1s")
    assert sorted(env.result(handle)) == [0, 1, 2, 3, 4]


def test_limit__by_key__holds_for_each_value_by_itself(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")
    running: list[str] = []

    @mine.activity(limit=hg.Limit(concurrency=1, key=lambda shop: shop))
    def scarce(shop: str) -> Any:
        running.append(shop)
        return hg.complete_later()

    @mine.workflow
    async def wants() -> None:
        await asyncio.gather(scarce("a"), scarce("a"), scarce("b"))

    env = open_env(mine)
    env.start(wants)
    env.advance("1s")
    assert sorted(running) == ["a", "b"]


def test_limit__rate__spreads_starts_over_time(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")
    at: list[float] = []

    @mine.activity(limit=hg.Limit(rate=2, per="10s"))
    def scarce(n: int) -> int:
        at.append(env.clock.seconds())
        return n

    @mine.workflow
    async def wants() -> list[int]:
        return list(await asyncio.gather(*(scarce(n) for n in range(6))))

    env = open_env(mine)
    assert sorted(env.result(env.start(wants))) == [0, 1, 2, 3, 4, 5]
    # Two in ten seconds, whichever ten seconds are counted.
    assert [round(later - at[0]) for later in at] == [0, 0, 10, 10, 20, 20]


def test_limit__rate_with_a_row_of_an_earlier_build__its_starts_count(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")
    at: list[float] = []

    @mine.activity(limit=hg.Limit(rate=2, per="10s", key="scarce"))
    def scarce() -> None:
        at.append(env.clock.seconds())

    @mine.workflow
    async def wants() -> None:
        await asyncio.gather(scarce(), scarce())

    env = open_env(mine)
    began = env.clock.seconds()
    row = {"PK": "QUOTA#scarce", "SK": "RATE", "left": 1.0, "as_of_ms": int(began * 1000), "version": 3}
    env.service.store.transact([Put(CONTROL, row)])
    env.result(env.start(wants))
    assert [round(each - began) for each in at] == [0, 10]


# Cancelling.


def test_cancel__of_the_task_that_awaits__reports_the_activity_and_the_history(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.activity
    def slow() -> Any:
        return hg.complete_later()

    @mine.workflow
    async def gives_up() -> str:
        call = asyncio.ensure_future(slow())
        await hg.sleep("1m")
        call.cancel()
        try:
            await call
        except asyncio.CancelledError:
            return "gave up"
        return "done"

    env = open_env(mine)
    handle = env.start(gives_up)
    assert env.result(handle) == "gave up"
    assert issued(env, handle) == ["start_activity", "start_timer", "cancel_activity", "close"]
    assert left_behind(env) == {}


def test_call__cancelled_in_its_own_turn__never_happens(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    stand_in = env.stand_in(once)
    mine = _cancels_at_once(app)
    handle = env.start(mine)
    assert env.result(handle) == "cancelled"
    assert stand_in.calls == []
    assert issued(env, handle) == ["close"]


def _cancels_at_once(app: hg.App) -> Any:
    if "cancels_at_once" in app.workflows:
        return app.workflows["cancels_at_once"]

    @app.workflow
    async def cancels_at_once() -> str:
        call = asyncio.ensure_future(once(1))
        call.cancel()
        try:
            await call
        except asyncio.CancelledError:
            return "cancelled"
        return "done"

    return cancels_at_once


def test_log__of_several_attempts__is_kept_together(open_env: OpenEnvironment) -> None:
    import logging

    mine = hg.App("mine")

    @mine.activity(retry=hg.Retry(attempts=2, first="1s"))
    def speaks() -> None:
        logging.getLogger("shop").warning("attempt %d", hg.activity().attempt)
        if hg.activity().attempt == 1:
            raise OSError("once more")

    @mine.workflow
    async def asks() -> None:
        await speaks()

    env = open_env(mine)
    handle = env.start(asks)
    env.result(handle)
    assert notes(env, handle) == ["attempt 1", "attempt 2"]
