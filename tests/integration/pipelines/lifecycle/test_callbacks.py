"""Jobs that call back: tokens bound to a run, reports before and after the end, heartbeats and time-outs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from headgate.durable.model.duration import Seconds
from headgate.errors import IllegalTransitionError, UnauthenticatedError
from headgate.pipelines.definition.model import TriggerSpec
from headgate.pipelines.enums import FailureCategory, JobEvent, RunStatus
from headgate.pipelines.events.names import EventName
from headgate.pipelines.lifecycle.callback_reports import JobReport, ReportedStatus
from headgate.pipelines.lifecycle.callback_tokens import MARGIN_SECONDS, CallbackToken
from headgate.pipelines.runs.rows import Run
from headgate.store.keyring import Keyring, Purpose
from headgate.triggers.contract import TriggerFailedError, TriggerOrder
from tests.pipeline_rig import DATE, Rig, pipeline, slot_of

SLOT = slot_of()
BEAT = JobReport(status=ReportedStatus.RUNNING)
SUCCESS = JobReport(status=ReportedStatus.SUCCESS)
FAILURE = JobReport(status=ReportedStatus.FAILED, reason="disk full", category=FailureCategory.PERMANENT)


def calling_back(**more: Any) -> TriggerSpec:
    return TriggerSpec(type="http", config={"url": "https://jobs.example"}, callback=True, **more)


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as opened:
        opened.define(pipeline(trigger=calling_back(heartbeat=Seconds(90), poll_window=Seconds(600))))
        yield opened


def report(rig: Rig, order: TriggerOrder, what: JobReport) -> Run:
    """Report with what came with the order, as a job does."""
    assert order.callback_token is not None
    token = rig.pipelines.callback_tokens.verify(order.run_id, order.callback_token)
    return rig.pipelines.callback_reports.apply(token, what)


def begun(rig: Rig) -> TriggerOrder:
    rig.push("silver", "landed", DATE, ok=True)
    assert rig.status(SLOT) is RunStatus.RUNNING
    return rig.jobs.orders[-1]


def test_order__of_a_job_that_calls_back__has_the_public_url_and_a_token(rig: Rig) -> None:
    order = begun(rig)

    assert order.callback_url == f"https://headgate.example/api/v1/callbacks/{order.run_id}"
    assert order.callback_token
    assert order.callback_token not in repr(order)


def test_report__success__completes_the_run_at_once(rig: Rig) -> None:
    order = begun(rig)

    rig.advance(40)
    report(rig, order, SUCCESS)
    rig.pump()

    assert rig.status(SLOT) is RunStatus.COMPLETED
    assert rig.run(SLOT).duration_ms == 40_000
    assert rig.event_names("silver", EventName.CALLBACK_RECEIVED) == [EventName.CALLBACK_RECEIVED]


def test_report__failure__fails_the_run_with_its_reason_and_category(rig: Rig) -> None:
    order = begun(rig)

    report(rig, order, FAILURE)
    rig.pump()

    run = rig.run(SLOT)
    assert (run.status, run.category, run.reason) == (RunStatus.FAILED, FailureCategory.PERMANENT, "disk full")


def test_report__again__changes_nothing_and_another_end_is_refused(rig: Rig) -> None:
    order = begun(rig)
    report(rig, order, SUCCESS)
    before = rig.run(SLOT).version

    assert report(rig, order, SUCCESS).version == before
    for other in (FAILURE, BEAT):
        with pytest.raises(IllegalTransitionError, match="came too late"):
            report(rig, order, other)
    rig.pump()
    assert report(rig, order, SUCCESS).status is RunStatus.COMPLETED


def test_report__before_the_start_was_answered__is_kept_and_nothing_is_started_twice(rig: Rig) -> None:
    rig.jobs.meanwhile = lambda order: (report(rig, order, BEAT), report(rig, order, SUCCESS))

    rig.push("silver", "landed", DATE, ok=True)

    assert rig.status(SLOT) is RunStatus.COMPLETED
    assert len(rig.jobs.orders) == 1


@pytest.mark.parametrize("category", [FailureCategory.TRANSIENT, FailureCategory.PERMANENT])
def test_report__and_the_answer_to_the_start_lost__the_report_counts(rig: Rig, category: FailureCategory) -> None:
    start = rig.jobs.start

    def lost(order: TriggerOrder) -> Any:
        start(order)
        report(rig, order, SUCCESS)
        raise TriggerFailedError("connection reset", category)

    rig.jobs.start = lost  # type: ignore[method-assign]  # the place where jobs run, not ours
    rig.push("silver", "landed", DATE, ok=True)
    rig.advance(300)

    assert rig.status(SLOT) is RunStatus.COMPLETED
    assert len(rig.jobs.orders) == 1


def test_heartbeat__missing__fails_the_run_as_a_timeout_and_cancels_the_job(rig: Rig) -> None:
    begun(rig)

    rig.advance(89)
    assert rig.status(SLOT) is RunStatus.RUNNING
    rig.advance(32)

    run = rig.runs(SLOT)[0]
    assert (run.status, run.category, run.event) == (RunStatus.FAILED, FailureCategory.TIMEOUT, JobEvent.TIMEOUT)
    assert run.reason == "the job sent no heartbeat for 90 s; it was asked to end"
    assert rig.jobs.cancelled == [run.run_id]
    assert EventName.JOB_TIMEOUT in rig.event_names("silver", EventName.JOB_TIMEOUT)


def test_heartbeat__sent__keeps_the_run_until_its_time_is_over(rig: Rig) -> None:
    order = begun(rig)

    for _ in range(7):
        rig.advance(80)
        assert report(rig, order, BEAT).status is RunStatus.RUNNING
    rig.advance(60)

    run = rig.runs(SLOT)[0]
    assert (run.status, run.category, run.event) == (
        RunStatus.FAILED,
        FailureCategory.TIMEOUT,
        JobEvent.JOB_POLL_EXHAUSTED,
    )
    assert rig.jobs.cancelled == [run.run_id]


def test_heartbeat__shorter_than_the_interval__is_found_missing_in_time(rig: Rig) -> None:
    rig.define(pipeline(trigger=calling_back(heartbeat=Seconds(5), check_interval=Seconds(120))))
    begun(rig)

    rig.advance(6)

    assert rig.runs(SLOT)[0].category is FailureCategory.TIMEOUT


def test_token__of_the_attempt_before__does_not_end_the_next(rig: Rig) -> None:
    first = begun(rig)
    report(rig, first, JobReport(status=ReportedStatus.FAILED, reason="once more"))
    rig.advance(61)
    second = rig.jobs.orders[-1]

    assert second.run_id != first.run_id
    with pytest.raises(IllegalTransitionError):
        report(rig, first, SUCCESS)
    with pytest.raises(UnauthenticatedError, match="not of this run"):
        rig.pipelines.callback_tokens.verify(second.run_id, first.callback_token or "")
    assert rig.status(SLOT) is RunStatus.RUNNING


def test_token__expired__is_refused(rig: Rig) -> None:
    order = begun(rig)

    rig.env.advance(600 + MARGIN_SECONDS)

    with pytest.raises(UnauthenticatedError, match="expired"):
        report(rig, order, SUCCESS)


def test_token__of_another_kind_or_attempt__is_refused(rig: Rig) -> None:
    order = begun(rig)
    keyring: Keyring = rig.pipelines.callback_tokens._keyring  # type: ignore[assignment]  # there is one
    far = 2**40

    for forged in (
        CallbackToken("asl", order.run_id, 1, far),
        CallbackToken("callback", "run_other", 1, far),
    ):
        with pytest.raises(UnauthenticatedError, match="not of this run"):
            text = keyring.sign(Purpose.TOKEN, msgspec.json.encode(forged))
            rig.pipelines.callback_tokens.verify(order.run_id, text)
    with pytest.raises(UnauthenticatedError, match="not of this run"):
        rig.pipelines.callback_tokens.verify(order.run_id, keyring.sign(Purpose.CURSOR, b"[]"))
    with pytest.raises(UnauthenticatedError, match="another attempt"):
        rig.pipelines.callback_reports.apply(CallbackToken("callback", order.run_id, 2, far), SUCCESS)


def test_start__no_public_url__fails_for_good_and_says_what_to_set(rig: Rig) -> None:
    rig.pipelines.callback_tokens._base_url = None

    rig.push("silver", "landed", DATE, ok=True)

    run = rig.run(SLOT)
    assert (run.status, run.category) == (RunStatus.FAILED, FailureCategory.PERMANENT)
    assert "set public_url" in run.reason
    assert rig.jobs.orders == []
