from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from headgate.asl.machines.executions import ExecutionStatus
from headgate.asl.runtime.interpreter import Limits
from headgate.asl.runtime.task_tokens import CallbackKind, TaskCallback, TaskToken, read_token, sign_token
from headgate.clock import VirtualClock
from headgate.errors import HeadgateError, NotFoundError, PayloadTooLargeError, SignatureError, StaleClaimError
from headgate.store.keyring import Keyring, Purpose
from tests.asl_rig import Rig, beside, check_events, each, machine, task

GIVES = {"token.$": "$$.Task.Token"}


def asks(**fields: Any) -> dict[str, Any]:
    """Return a Task that gives its token away and waits."""
    return {"Type": "Task", "Resource": "${keep}.waitForTaskToken", "Parameters": GIVES, **fields}


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as made:
        yield made


@pytest.fixture(scope="module")
def keyring() -> Keyring:
    return Keyring.generate(VirtualClock(0.0))


# The token itself.


def test_token__read_by_who_signed_it__says_which_wait_it_is(keyring: Keyring) -> None:
    token = sign_token(keyring, "m:one", "asl.task.1.1")

    assert read_token(keyring, token) == TaskToken("asl", "m:one", "asl.task.1.1")


def test_token__any_one_character_altered__is_refused(keyring: Keyring) -> None:
    token = sign_token(keyring, "m:one", "asl.task.1.1")
    draw = random.Random(7)
    for place in range(0, len(token), 3):
        other = draw.choice([each for each in "abcXYZ019-_" if each != token[place]])
        altered = token[:place] + other + token[place + 1 :]
        try:
            read = read_token(keyring, altered)
        except SignatureError:
            continue
        # Bits of the last character of base64 that mean nothing.
        assert read == TaskToken("asl", "m:one", "asl.task.1.1")
        assert place == len(token) - 1


@pytest.mark.parametrize("token", ["", "x", "a.b.c", "é", "." * 40, "A" * 5_000])
def test_token__no_token_at_all__is_refused(keyring: Keyring, token: str) -> None:
    with pytest.raises(SignatureError):
        read_token(keyring, token)


@pytest.mark.parametrize("body", [b"[]", b'["activity","e","s"]', b'{"a":1}', b"not json", b'["asl","e"]'])
def test_token__signed_for_something_else__is_refused(keyring: Keyring, body: bytes) -> None:
    with pytest.raises(SignatureError):
        read_token(keyring, keyring.sign(Purpose.TOKEN, body))


def test_token__signed_by_another_key_or_for_another_purpose__is_refused(keyring: Keyring) -> None:
    body = msgspec.json.encode(TaskToken("asl", "e", "s"))

    for token in (
        sign_token(Keyring.generate(VirtualClock(0.0)), "e", "s"),
        keyring.sign(Purpose.CURSOR, body),
    ):
        with pytest.raises(SignatureError):
            read_token(keyring, token)


# Answers.


def test_answer__success__its_output_is_the_result_of_the_task(rig: Rig) -> None:
    execution_id = rig.start(machine(("T", asks(ResultPath="$.said"))), {"a": 1})

    rig.answer(rig.functions.tokens[0], CallbackKind.SUCCESS, {"yes": [1, None]})

    found = rig.end(execution_id)
    assert found.output == {"a": 1, "said": {"yes": [1, None]}}
    assert rig.rows_left() == []
    check_events(rig.history(execution_id))


def test_answer__failure__is_what_the_task_fails_with_and_can_be_caught(rig: Rig) -> None:
    catch = [{"ErrorEquals": ["Refused"], "Next": "After"}]
    execution_id = rig.start(machine(("T", asks(Catch=catch)), ("After", {"Type": "Pass"})))

    rig.answer(rig.functions.tokens[0], CallbackKind.FAILURE, error="Refused", cause="not today")

    assert rig.end(execution_id).output == {"Error": "Refused", "Cause": "not today"}


@pytest.mark.parametrize("second", [CallbackKind.SUCCESS, CallbackKind.FAILURE, CallbackKind.HEARTBEAT])
def test_answer__a_second_time__is_refused_and_changes_nothing(rig: Rig, second: CallbackKind) -> None:
    execution_id = rig.start(machine(("T", asks()), ("W", {"Type": "Wait", "Seconds": 60})))
    token = rig.functions.tokens[0]
    rig.answer(token, CallbackKind.SUCCESS, "first")

    with pytest.raises(StaleClaimError):
        rig.answer(token, second, "second")

    assert rig.end(execution_id).output == "first"


def test_answer__twice_before_the_first_is_received__the_first_counts_and_the_second_leaves_nothing(rig: Rig) -> None:
    definition = machine(("T", asks()), ("A", {"Type": "Pass"}), ("W", {"Type": "Wait", "Seconds": 60}))
    execution_id = rig.start(definition, limits=Limits(events_a_run=3))
    token = rig.functions.tokens[0]

    rig.executions.send_callback(token, TaskCallback(CallbackKind.SUCCESS, "first"))
    try:
        rig.executions.send_callback(token, TaskCallback(CallbackKind.SUCCESS, "second"))
    except HeadgateError as exc:
        assert isinstance(exc, StaleClaimError)

    assert rig.end(execution_id).output == "first"
    row = rig.env.service.client.get(execution_id)
    assert row.run > 1
    assert rig.env.service.client.started(row).carried == (), "the second answer goes from run to run"


def test_answer__before_the_work_has_begun_to_wait__is_received(rig: Rig) -> None:
    def answer_at_once(event: Any) -> None:
        rig.executions.send_callback(event["token"], TaskCallback(CallbackKind.SUCCESS, "at once"))

    rig.stand_in("keep").calls_with(answer_at_once)

    assert rig.run(machine(("T", asks()))).output == "at once"


def test_answer__while_the_work_is_still_under_way__ends_the_task_and_the_work(rig: Rig) -> None:
    given: list[Any] = []
    stand_in = rig.stand_in("keep")

    def never_ends(event: Any) -> Any:
        given.append(event)
        return stand_in._wait()

    stand_in.calls_with(never_ends)
    execution_id = rig.start(machine(("T", asks())))
    rig.answer(given[0]["token"], CallbackKind.SUCCESS, "done")

    assert rig.end(execution_id).output == "done"
    assert rig.rows_left() == []


def test_answer__after_the_execution_has_ended__is_refused(rig: Rig) -> None:
    execution_id = rig.start(machine(("T", asks())))
    rig.executions.stop(execution_id)
    rig.env.run()

    with pytest.raises(StaleClaimError):
        rig.answer(rig.functions.tokens[0], CallbackKind.SUCCESS)


def test_answer__token_of_no_execution__is_refused(rig: Rig) -> None:
    rig.start(machine(("T", asks())))
    token = rig.functions.tokens[0]

    with pytest.raises(SignatureError):
        rig.answer(token[:-4] + "AAAA", CallbackKind.SUCCESS)
    with pytest.raises((NotFoundError, SignatureError)):
        rig.answer(sign_token(Keyring.generate(rig.env.clock), "m:nobody", "asl.task.1.1"), CallbackKind.SUCCESS)


def test_answer__larger_than_may_pass__is_refused_and_the_task_still_waits(rig: Rig) -> None:
    execution_id = rig.start(machine(("T", asks())))
    token = rig.functions.tokens[0]

    with pytest.raises(PayloadTooLargeError):
        rig.answer(token, CallbackKind.SUCCESS, "x" * 262_144)
    rig.answer(token, CallbackKind.SUCCESS, "less")

    assert rig.end(execution_id).output == "less"


def test_answer__work_that_could_not_be_begun__fails_the_task_with_its_error(rig: Rig) -> None:
    rig.stand_in("keep").raises(LookupError("nobody to ask"))

    found = rig.run(machine(("T", asks())))

    assert (found.status, found.error) == (ExecutionStatus.FAILED, "LookupError")
    assert rig.rows_left() == []


def test_retry__of_a_task_with_a_token__has_a_new_one_and_the_old_is_worth_nothing(rig: Rig) -> None:
    retry = [{"ErrorEquals": ["Again"], "IntervalSeconds": 5}]
    execution_id = rig.start(machine(("T", asks(Retry=retry))))
    rig.answer(rig.functions.tokens[0], CallbackKind.FAILURE, error="Again")
    rig.env.advance(5.0)
    old, new = rig.functions.tokens

    assert old != new
    with pytest.raises(StaleClaimError):
        rig.answer(old, CallbackKind.SUCCESS, "old")
    rig.answer(new, CallbackKind.SUCCESS, "new")
    assert rig.end(execution_id).output == "new"


def test_redrive__of_a_task_with_a_token__has_a_new_one_and_the_old_is_worth_nothing(rig: Rig) -> None:
    execution_id = rig.start(machine(("T", asks(TimeoutSeconds=60))))
    assert rig.end(execution_id).error == "States.Timeout"
    rig.executions.redrive(execution_id)
    rig.env.run()
    old, new = rig.functions.tokens

    with pytest.raises(StaleClaimError):
        rig.answer(old, CallbackKind.SUCCESS, "old")
    rig.answer(new, CallbackKind.SUCCESS, "new")
    assert rig.end(execution_id).output == "new"


@pytest.mark.parametrize("width", [3, 70])
def test_answer__many_wait_at_once__each_token_ends_its_own(rig: Rig, width: int) -> None:
    definition = machine(("M", each(("T", asks(Parameters={**GIVES, "item.$": "$"})), MaxConcurrency=100)))
    execution_id = rig.start(definition, list(range(width)))
    given = {event["item"]: event["token"] for event in rig.functions.inputs("keep")}
    for item in random.Random(7).sample(sorted(given), len(given)):
        rig.executions.send_callback(given[item], TaskCallback(CallbackKind.SUCCESS, item * 10))
    rig.env.run()

    assert rig.end(execution_id).output == [item * 10 for item in range(width)]


# Time.


def test_heartbeats__in_time__the_task_goes_on_and_without_them_it_fails(rig: Rig) -> None:
    execution_id = rig.start(machine(("T", asks(HeartbeatSeconds=30))))
    token = rig.functions.tokens[0]
    for _ in range(5):
        rig.env.advance(29.0)
        rig.answer(token, CallbackKind.HEARTBEAT)
    rig.env.advance(29.9)
    assert rig.executions.describe(execution_id).status is ExecutionStatus.RUNNING
    rig.env.advance(0.2)

    found = rig.executions.describe(execution_id)
    assert (found.status, found.error) == (ExecutionStatus.FAILED, "States.HeartbeatTimeout")
    with pytest.raises(StaleClaimError):
        rig.answer(token, CallbackKind.HEARTBEAT)
    assert rig.rows_left() == []


@pytest.mark.parametrize("pattern", ["States.HeartbeatTimeout", "States.Timeout", "States.ALL"])
def test_heartbeat_timeout__caught_by__each_name_that_means_it(rig: Rig, pattern: str) -> None:
    catch = [{"ErrorEquals": ["States.TaskFailed"], "Next": "Wrong"}, {"ErrorEquals": [pattern], "Next": "Right"}]
    definition = machine(
        ("T", asks(HeartbeatSeconds=3, Catch=catch, End=True)),
        ("Wrong", {"Type": "Pass", "End": True}),
        ("Right", {"Type": "Pass", "End": True}),
    )

    found = rig.run(definition)

    assert rig.entered(found.execution_id) == ["T", "Right"]


def test_timeout__of_a_token__counts_whatever_heartbeats_come(rig: Rig) -> None:
    execution_id = rig.start(machine(("T", asks(HeartbeatSeconds=30, TimeoutSeconds=60))))
    for _ in range(2):
        rig.env.advance(29.0)
        rig.answer(rig.functions.tokens[0], CallbackKind.HEARTBEAT)
    rig.env.advance(2.1)

    found = rig.executions.describe(execution_id)
    assert (found.status, found.error) == (ExecutionStatus.FAILED, "States.Timeout")
    assert "LambdaFunctionTimedOut" in rig.types(execution_id)
    with pytest.raises(StaleClaimError):
        rig.answer(rig.functions.tokens[0], CallbackKind.SUCCESS, "late")


def test_clock__jumps_while_a_token_is_awaited__nothing_is_lost(rig: Rig) -> None:
    execution_id = rig.start(machine(("T", asks(TimeoutSeconds=86_400))))
    rig.env.clock.step(-7_200.0)
    rig.env.run()
    rig.env.clock.step(14_400.0)
    rig.env.run()

    rig.answer(rig.functions.tokens[0], CallbackKind.SUCCESS, "still here")

    assert rig.end(execution_id).output == "still here"


def test_sibling__that_fails__ends_the_wait_and_its_token(rig: Rig) -> None:
    fails = task("fail", Parameters={"error": "Refused"})
    late = machine(("W", {"Type": "Wait", "Seconds": 5}), ("F", fails))
    catch = [{"ErrorEquals": ["Refused"], "Next": "After"}]
    execution_id = rig.start(
        machine(
            ("P", beside(late, machine(("T", asks())), Catch=catch)),
            ("After", {"Type": "Wait", "Seconds": 60}),
        )
    )
    rig.env.advance(6.0)

    with pytest.raises(StaleClaimError):
        rig.answer(rig.functions.tokens[0], CallbackKind.SUCCESS)
    assert len(rig.rows_left()) == 1, "only the timer of the Wait"
    assert rig.end(execution_id).status is ExecutionStatus.SUCCEEDED
