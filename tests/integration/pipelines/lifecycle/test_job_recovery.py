"""Failed runs whose job, a fan-out or a workflow of ours, is redriven or retried: the run completes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from headgate.bootstrap.pipelines import is_open
from headgate.bootstrap.watchdog import build_watchdog
from headgate.fanout.repair.redrive import ChunkSelection
from headgate.fanout.service import FanoutService
from headgate.pipelines.definition.model import Pipeline, RetryPolicy, Schedule, TriggerSpec, Upstream
from headgate.pipelines.enums import JobEvent, RerunReason, RunStatus
from headgate.pipelines.events.names import EventName as E
from headgate.pipelines.lifecycle.job_events import SUBSCRIPTION
from headgate.pipelines.lifecycle.job_recovery import Recovery
from headgate.pipelines.runs.rerun_rows import RerunStatus
from headgate.pipelines.watchdog.liveness_check import Lifecycle
from tests.integration.pipelines.lifecycle.test_job_events import OwnJobs
from tests.pipeline_rig import Rig, pipeline, slot_of
from tests.unit.triggers.rigs import kinds

SLOT: Final = slot_of()
GOLD: Final = slot_of("gold")
BROKEN: set[str] = set()


def chunk(numbers: list[int]) -> None:
    if "chunk" in BROKEN and 3 in numbers:
        raise ValueError("line 3 has no amount")


def step(_: object) -> None:
    if "step" in BROKEN:
        raise ValueError("no orders")


FAN_OUT: Final = TriggerSpec(type="fan-out", config={"handler": f"{__name__}:chunk", "range": [0, 4], "chunk_size": 2})
WORKFLOW: Final = TriggerSpec(type="workflow", config={"workflow": "load"})
BOTH: Final = pytest.mark.parametrize("trigger", [FAN_OUT, WORKFLOW], ids=["fan-out", "workflow"])


class RecoveryRig(Rig):
    fanouts: FanoutService

    def fail_run(self, trigger: TriggerSpec, slot: Any = SLOT) -> str:
        """Run the period with broken code, and return the id of the failed run."""
        BROKEN.update(("chunk", "step"))
        self.define(silver(trigger))
        self.push("silver", "landed", date=slot.date)
        self.advance("1m")
        assert self.status(slot) is RunStatus.FAILED
        return self.run(slot).run_id

    def repair(self, job_id: str) -> None:
        """Fix the code, and redrive or retry the job."""
        BROKEN.clear()
        if self.fanouts.queries.find(job_id) is not None:
            self.fanouts.redriver.redrive(job_id, ChunkSelection(all=True), by="ana")
        else:
            self.env.service.client.retry(job_id)
        self.advance("1m")

    def watch(self) -> dict[str, int]:
        service = self.env.service
        lifecycle = Lifecycle(
            is_open=lambda name: is_open(service, name),
            orchestrate=self.pipelines.orchestrator,
            end_job=self.pipelines.jobs.end_job,
        )
        return dict(build_watchdog(self.pipelines, lifecycle).tick().findings)


def silver(trigger: TriggerSpec) -> Pipeline:
    return pipeline(trigger=trigger, retry=RetryPolicy(attempts=1))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[RecoveryRig]:
    BROKEN.clear()
    rig = RecoveryRig()
    jobs = rig.jobs = OwnJobs()

    @rig.app.workflow
    async def load(given: dict[str, Any]) -> None:
        step(given)

    with rig:
        service = rig.env.service
        rig.fanouts = FanoutService(rig.store, rig.env.clock, service.ids)
        jobs.of = kinds(tmp_path, client=service.client, fanouts=rig.fanouts)
        service.bus.register(list(rig.app.subscriptions.values()), rig.app.name)
        yield rig
    BROKEN.clear()


@BOTH
def test_recovery__job_is_repaired__run_and_period_complete_with_both_facts(
    rig: RecoveryRig, trigger: TriggerSpec
) -> None:
    run_id = rig.fail_run(trigger)
    failure = rig.run(SLOT).reason

    rig.repair(run_id)

    run, log = rig.stores.runs.get(run_id), rig.log(SLOT)
    assert [each.status for each in run.transitions][-2:] == [RunStatus.FAILED, RunStatus.COMPLETED]
    assert (run.reason, run.category, run.recovered_from) == ("", None, failure)
    assert (log.status, log.succeeded_run_id, log.attempts) == (RunStatus.COMPLETED, run_id, 1)
    assert [(each.status, each.recovered_from) for each in log.history] == [(RunStatus.COMPLETED, failure)]
    assert [each.event for each in rig.stores.job_log.ls(SLOT).entries] == [JobEvent.SUCCESS, JobEvent.FAIL]
    assert rig.event_names("silver", E.PIPELINE_FAILED, E.PIPELINE_COMPLETED, E.RUN_RECOVERED) == [
        "PIPELINE_FAILED",
        "PIPELINE_COMPLETED",
        "RUN_RECOVERED",
    ]


@pytest.mark.parametrize(
    ("trigger", "command"),
    [(FAN_OUT, "headgate fanout redrive {} --failed"), (WORKFLOW, "headgate execution retry {}")],
    ids=["fan-out", "workflow"],
)
def test_failed_run__job_is_repairable__reason_and_alert_give_the_command(
    rig: RecoveryRig, trigger: TriggerSpec, command: str
) -> None:
    run_id = rig.fail_run(trigger)

    assert command.format(run_id) in rig.run(SLOT).reason
    [alert] = rig.events("silver", E.PIPELINE_FAILED)
    assert command.format(run_id) in str(alert.detail["reason"])


def test_recovery__pipeline_downstream_of_the_run__starts(rig: RecoveryRig) -> None:
    rig.define(pipeline("gold", trigger=WORKFLOW, schedules=(Schedule(upstream=(Upstream(pipeline="silver"),)),)))
    run_id = rig.fail_run(FAN_OUT)
    before = rig.status(GOLD)

    rig.repair(run_id)

    assert before is None
    assert rig.status(GOLD) is RunStatus.COMPLETED


def test_recovery__repeated__changes_nothing(rig: RecoveryRig) -> None:
    run_id = rig.fail_run(FAN_OUT)
    rig.repair(run_id)
    version = rig.run(SLOT).version

    assert rig.pipelines.recovery.recover(run_id) is Recovery.NOTHING
    assert rig.run(SLOT).version == version


def test_recovery__redrive_fails_again__run_stays_failed(rig: RecoveryRig) -> None:
    run_id = rig.fail_run(FAN_OUT)

    rig.fanouts.redriver.redrive(run_id, ChunkSelection(all=True), by="ana")
    rig.advance("1m")

    assert rig.run(SLOT).status is RunStatus.FAILED
    assert rig.pipelines.recovery.recover(run_id) is Recovery.NOT_REPAIRED


def test_recovery__later_run_has_succeeded__is_refused_and_says_so_once(rig: RecoveryRig) -> None:
    first = rig.fail_run(FAN_OUT)
    BROKEN.clear()
    rig.pipelines.manual.rerun(SLOT, RerunReason.MANUAL, by="ana", note="fixed", is_forced=True)
    rig.advance("1m")
    second = rig.run(SLOT).run_id
    assert rig.status(SLOT) is RunStatus.COMPLETED

    rig.repair(first)
    rig.pipelines.recovery.recover(first)

    assert rig.stores.runs.get(first).status is RunStatus.FAILED
    assert rig.log(SLOT).succeeded_run_id == second
    [refused] = rig.events("silver", E.RUN_NOT_RECOVERED)
    assert refused.detail["reason"] == f"run {second} has completed the period meanwhile"


def test_recovery__later_run_failed_too__earlier_one_completes_the_period(rig: RecoveryRig) -> None:
    first = rig.fail_run(FAN_OUT)
    rig.pipelines.manual.rerun(SLOT, RerunReason.MANUAL, by="ana", note="again", is_forced=True)
    rig.advance("1m")
    second = rig.run(SLOT).run_id
    assert (first != second, rig.status(SLOT)) == (True, RunStatus.FAILED)

    rig.repair(first)

    log = rig.log(SLOT)
    assert (log.status, log.run_id, log.succeeded_run_id, log.attempts) == (RunStatus.COMPLETED, first, first, 2)
    assert [each.status for each in log.history] == [RunStatus.COMPLETED, RunStatus.FAILED]


def test_recovery__run_of_a_rerun__the_rerun_is_completed(rig: RecoveryRig) -> None:
    rig.fail_run(FAN_OUT)
    rerun = rig.pipelines.manual.rerun(SLOT, RerunReason.MANUAL, by="ana", note="again", is_forced=True)
    rig.advance("1m")
    assert rig.stores.reruns.get(rerun.rerun_id).status is RerunStatus.FAILED

    rig.repair(rig.run(SLOT).run_id)

    assert rig.stores.reruns.get(rerun.rerun_id).status is RerunStatus.COMPLETED


def test_recovery__cancelled_run__stays_cancelled(rig: RecoveryRig) -> None:
    run_id = rig.fail_run(FAN_OUT)
    rig.pipelines.manual.skip(SLOT, by="ana", reason="not needed")

    rig.repair(run_id)

    assert rig.stores.runs.get(run_id).status is RunStatus.FAILED
    [refused] = rig.events("silver", E.RUN_NOT_RECOVERED)
    assert refused.detail["reason"] == "ana skipped the period: not needed"


@BOTH
def test_watchdog__event_of_the_repaired_job_is_lost__completes_the_run(rig: RecoveryRig, trigger: TriggerSpec) -> None:
    run_id = rig.fail_run(trigger)
    rig.app.handlers[SUBSCRIPTION].function = str
    rig.watch()
    rig.repair(run_id)
    lost = rig.run(SLOT).status

    rig.advance("40m")
    findings = rig.watch()

    assert lost is RunStatus.FAILED
    assert rig.run(SLOT).status is RunStatus.COMPLETED
    assert findings["failed-runs"] == 1
