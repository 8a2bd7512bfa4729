"""Scenarios of the lifecycle: what its functions answer, the way that the machine must go, and how it goes here."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec import Struct

from headgate.asl.runtime.task_tokens import CallbackKind, TaskCallback
from headgate.durable.model.failures import ExecutionFailure
from headgate.durable.sdk.app import App
from headgate.pipelines.lifecycle.starter import FUNCTIONS, lifecycle_definition
from headgate.testing import Environment
from tests import lifecycle_answers
from tests.asl_peers import inner_names
from tests.asl_rig import entered
from tests.lifecycle_answers import (
    CONFIG,
    SLA,
    TIME_OUT,
    WAKE,
    Answers,
    Canned,
    checked,
    counts,
    evaluated,
    logged,
    proceeds,
    resolved,
)

TEXT: Final = lifecycle_definition()
MACHINE: Final[dict[str, Any]] = json.loads(TEXT)

# Ways that scenarios share.
BEGINS: Final = "InitDefaults CheckExclusion IsExcluded"
LOCKS: Final = "AcquireLock IsLockAcquired"
RESOLVES: Final = (
    "CheckRunLog ShouldProceedAfterRunLog ResolvePipeline IsResolved InitEvalLoop SetRun SetConfig CheckSLAConfig"
)
LOOKS: Final = "EvaluateTraits Evaluate CheckEvaluationSLA CheckValidationTimeout IsValidationTimedOut"
EVALUATES: Final = f"{LOOKS} CheckReadiness IsReady"
WAITS: Final = "IncrementElapsed CheckWindowExhausted WaitInterval"
STARTS: Final = "Trigger HasTriggerResult"
POLLS: Final = "WaitForJob CheckJob IsJobDone"
MORE: Final = "IncrementJobPollElapsed CheckJobPollExhausted"
EXHAUSTS: Final = "ValidationExhausted SetNoTriggerResult HasTriggerResult"
COMPLETES: Final = "CheckCompletionSLA LogCompleted NotifyDownstream ShouldMonitor"
ENDS: Final = "CheckCancelSLA ReleaseLock Done"
READY: Final = f"{BEGINS} {LOCKS} {RESOLVES} {EVALUATES}"
RUNS: Final = f"{READY} {STARTS} InitJobPollLoop {POLLS}"
RETRIES: Final = f"RetryBackoffWait ReleaseLockForRetry ForgetRun {LOCKS} {RESOLVES} {EVALUATES}"
WATCHES: Final = "MonitoringWait MonitoringEvaluate CheckDrift IsDrifted"
COUNTED: Final = {"elapsed": 0, "waitSeconds": 30, "rounds": 0}
FAILS: Final = "AlertError ReleaseLockAfterError InfraFailure"

# The state of an execution that another continues.
CONTINUED: Final = {
    "runId": "run_1",
    "lock": proceeds(lockToken="lock_1"),
    "resolved": resolved(),
    "config": CONFIG,
    "triggerResult": {"status": "running", "metadata": {"external_id": "job-1"}},
    "evaluation": {"elapsed": 0, "rounds": 0},
}
NOT_READY: Final = {"result": "not_ready", "reason": "orders are missing"}
DOWN: Final = ("Down", "no answer")
KILLED: Final = ("Runtime.ExitError", "RequestId: 0b4cf7ec Error: Runtime exited with error: signal: killed")


class Scenario(Struct, frozen=True, kw_only=True):
    """What the functions answer, and the way that the machine must go."""

    way: str
    answers: Answers = {}
    status: str = "SUCCEEDED"
    error: str | None = None
    # How often functions are called whose number of calls is what the scenario is about.
    calls: Mapping[str, int] = {}
    input: Mapping[str, Any] = {}
    # In virtual time.
    seconds: float | None = None


SCENARIOS: Final[dict[str, Scenario]] = {
    "excluded": Scenario(
        way=f"{BEGINS} End",
        answers={"checkExclusion": [{"result": "skip", "reason": "a holiday"}]},
        calls={"acquireLock": 0, "releaseLock": 0},
    ),
    "locked": Scenario(
        way=f"{BEGINS} {LOCKS} End",
        answers={"acquireLock": [{"result": "skip", "lockToken": ""}]},
        calls={"releaseLock": 0},
    ),
    "done-already": Scenario(
        way=f"{BEGINS} {LOCKS} CheckRunLog ShouldProceedAfterRunLog ReleaseLock Done",
        answers={"checkRunLog": [{"result": "skip", "reason": "it is done"}]},
        calls={"releaseLock": 1},
    ),
    "resolve-failed": Scenario(
        way=f"{BEGINS} {LOCKS} CheckRunLog ShouldProceedAfterRunLog ResolvePipeline IsResolved LogResolveFailed "
        "ReleaseLock Done",
        answers={"resolvePipeline": [{"result": "error", "runId": "", "reason": "no trigger"}]},
    ),
    "ready-at-once": Scenario(
        way=f"{RUNS} {COMPLETES} {ENDS}", calls={"evaluator": 1, "evaluate": 1, "releaseLock": 1}, seconds=30.0
    ),
    "ready-after-waiting": Scenario(
        way=f"{READY} {WAITS} {EVALUATES} {WAITS} {EVALUATES} {STARTS} InitJobPollLoop {POLLS} {COMPLETES} {ENDS}",
        answers={
            "checkReadiness": [NOT_READY, NOT_READY, proceeds()],
            "evaluate": [evaluated(0), evaluated(300), evaluated(310)],
            # The first wait is over because time has passed, the second because something has changed.
            "await-change": [TIME_OUT, WAKE],
        },
        calls={"evaluate": 3, "evaluator": 3},
        seconds=330.0,
    ),
    "window-exhausted": Scenario(
        way=f"{READY} {WAITS} {EVALUATES} IncrementElapsed CheckWindowExhausted {EXHAUSTS} {ENDS}",
        answers={"checkReadiness": [NOT_READY], "evaluate": [evaluated(0), evaluated(3_600)]},
        calls={"trigger": 0},
    ),
    "validation-timed-out": Scenario(
        way=f"{BEGINS} {LOCKS} {RESOLVES} {LOOKS} LogValidationTimeout ShouldRetry {ENDS}",
        answers={"checkValidationTimeout": [{"timedOut": True}]},
    ),
    "evaluator-error": Scenario(
        way=f"{READY} LogEvaluatorError AlertEvaluatorError {ENDS}",
        answers={"checkReadiness": [{"result": "error", "reason": "404"}]},
        calls={"alertError": 1},
    ),
    "trigger-fails-for-good": Scenario(
        way=f"{READY} Trigger TriggerRetryExhausted ShouldRetryTrigger {ENDS}",
        answers={"trigger": [DOWN]},
        # At once, and after 30, 60, 120 and 240 seconds.
        calls={"trigger": 5, "trigger-exhausted": 1},
        seconds=450.0,
    ),
    "trigger-refused": Scenario(
        way=f"{READY} {STARTS} LogRunFailed ShouldRetry {ENDS}",
        answers={"trigger": [{"status": "failed", "runId": "", "metadata": {}, "reason": "no such job"}]},
        calls={"trigger": 1},
    ),
    "trigger-retries": Scenario(
        way=f"{RUNS} {COMPLETES} {ENDS}",
        answers={"trigger": [DOWN, DOWN, *lifecycle_answers.USUAL["trigger"]]},
        calls={"trigger": 3},
        seconds=120.0,
    ),
    "job-done-when-started": Scenario(
        way=f"{READY} {STARTS} {COMPLETES} {ENDS}",
        answers={"trigger": [{"status": "completed", "runId": "sync", "metadata": {}}]},
        calls={"check-job": 0},
    ),
    "job-succeeds-later": Scenario(
        way=f"{RUNS} {MORE} {POLLS} {COMPLETES} {ENDS}",
        answers={"check-job": [checked(), checked("success", 60)], "await-job": [TIME_OUT, WAKE]},
        calls={"check-job": 2},
    ),
    "job-fails": Scenario(
        way=f"{RUNS} LogRunFailed ShouldRetry {ENDS}", answers={"check-job": [checked("fail")]}, calls={"logResult": 1}
    ),
    "job-times-out": Scenario(
        way=f"{RUNS} LogRunFailed ShouldRetry {ENDS}", answers={"check-job": [checked("timeout")]}
    ),
    "job-cancelled": Scenario(way=f"{RUNS} {ENDS}", answers={"check-job": [checked("cancelled")]}),
    "poll-exhausted": Scenario(
        way=f"{RUNS} {MORE} {POLLS} {MORE} JobPollExhausted ShouldRetryPoll {ENDS}",
        answers={"check-job": [checked(None, 30), checked(None, 900)]},
        calls={"job-poll-exhausted": 1},
    ),
    "retry-with-backoff": Scenario(
        way=f"{RUNS} LogRunFailed ShouldRetry SetRetryBackoff {RETRIES} {STARTS} InitJobPollLoop {POLLS} "
        f"{COMPLETES} {ENDS}",
        answers={
            "check-job": [checked("fail"), checked("success")],
            "logResult": [logged(retry_seconds=60), logged()],
            "resolvePipeline": [resolved(), {**resolved(), "runId": "run_2"}],
        },
        calls={"acquireLock": 2, "releaseLock": 2, "trigger": 2},
        seconds=120.0,
    ),
    "retry-after-poll-exhausted": Scenario(
        way=f"{RUNS} {MORE} JobPollExhausted ShouldRetryPoll {RETRIES} {STARTS} InitJobPollLoop {POLLS} "
        f"{COMPLETES} {ENDS}",
        answers={
            "check-job": [checked(None, 900), checked("success")],
            "job-poll-exhausted": [logged(retry_seconds=5)],
        },
    ),
    "retry-never-becomes-ready": Scenario(
        way=f"{RUNS} LogRunFailed ShouldRetry SetRetryBackoff {RETRIES} IncrementElapsed CheckWindowExhausted "
        f"{EXHAUSTS} {ENDS}",
        answers={
            "check-job": [checked("fail")],
            "logResult": [logged(retry_seconds=60)],
            "checkReadiness": [proceeds(), NOT_READY],
            "evaluate": [evaluated(0), evaluated(3_600)],
        },
        # The trigger of the attempt before does not count.
        calls={"trigger": 1, "check-job": 1},
    ),
    "retry-finds-the-lock-taken": Scenario(
        way=f"{RUNS} LogRunFailed ShouldRetry SetRetryBackoff RetryBackoffWait ReleaseLockForRetry ForgetRun "
        f"{LOCKS} End",
        answers={
            "check-job": [checked("fail")],
            "logResult": [logged(retry_seconds=60)],
            "acquireLock": [proceeds(lockToken="lock_1"), {"result": "skip", "lockToken": ""}],
        },
    ),
    "monitored-with-drift": Scenario(
        way=f"{RUNS} {COMPLETES} {WATCHES} CheckMonitoringExpired IsMonitoringExpired CountMonitoringRound {WATCHES} "
        f"HandleLateArrival {ENDS}",
        answers={
            "logResult": [logged(monitor=True)],
            "checkDrift": [{"drifted": False}, {"drifted": True}],
            "checkMonitoringExpired": [{"expired": False}],
        },
        calls={"evaluator": 3, "handleLateArrival": 1},
    ),
    "monitored-without-drift": Scenario(
        way=f"{RUNS} {COMPLETES} {WATCHES} CheckMonitoringExpired IsMonitoringExpired {ENDS}",
        answers={"logResult": [logged(monitor=True)]},
        calls={"handleLateArrival": 0},
        seconds=90.0,
    ),
    "monitoring-fails": Scenario(
        way=f"{RUNS} {COMPLETES} MonitoringWait MonitoringEvaluate CheckDrift AlertMonitoringFailure "
        f"CheckMonitoringExpired IsMonitoringExpired {ENDS}",
        answers={"logResult": [logged(monitor=True)], "checkDrift": [DOWN]},
        calls={"checkDrift": 4, "alertError": 1},
    ),
    "dry-run": Scenario(
        way=f"{READY} DryRun {ENDS}", answers={"checkReadiness": [{"result": "dry_run"}]}, calls={"trigger": 0}
    ),
    "cancelled-while-waiting": Scenario(
        way=f"{READY} {ENDS}", answers={"checkReadiness": [{"result": "cancelled"}]}, calls={"trigger": 0}
    ),
    "infra-failure": Scenario(
        way=f"{BEGINS} {LOCKS} {RESOLVES} EvaluateTraits Evaluate {FAILS}",
        answers={"evaluate": [DOWN]},
        status="FAILED",
        error="Down",
        # At once, and after 2, 4 and 8 seconds.
        calls={"evaluate": 4, "alertError": 1, "releaseLock": 1},
        seconds=14.0,
    ),
    "infra-failure-at-once": Scenario(
        way=f"InitDefaults CheckExclusion {FAILS}", answers={"checkExclusion": [DOWN]}, status="FAILED", error="Down"
    ),
    "evaluator-down": Scenario(
        way=f"{BEGINS} {LOCKS} {RESOLVES} EvaluateTraits {FAILS}",
        answers={"evaluator": [DOWN]},
        status="FAILED",
        error="Down",
        calls={"evaluator": 4},
    ),
    "infra-that-recovers": Scenario(
        way=f"{RUNS} {COMPLETES} {ENDS}",
        answers={"evaluate": [DOWN, DOWN, DOWN, evaluated()], "check-job": [DOWN, checked("success")]},
        calls={"evaluate": 4, "check-job": 2, "alertError": 0},
    ),
    # Who makes a wait known can be killed as well: what AWS reports then is none of its errors of Lambda.
    "killed-while-waiting": Scenario(
        way=f"{READY} {WAITS} {EVALUATES} {STARTS} InitJobPollLoop {POLLS} {COMPLETES} {ENDS}",
        answers={
            "checkReadiness": [NOT_READY, proceeds()],
            "evaluate": [evaluated(0), evaluated(300)],
            "await-change": [KILLED, TIME_OUT],
            "await-job": [KILLED, KILLED, TIME_OUT],
        },
        calls={"await-change": 2, "await-job": 3, "alertError": 0},
        # Two seconds, the interval, two and four seconds, the interval.
        seconds=338.0,
    ),
    "lock-not-released": Scenario(
        way=f"{RUNS} {COMPLETES} CheckCancelSLA ReleaseLock AlertReleaseLockFailed Done",
        answers={"releaseLock": [DOWN]},
        calls={"alertError": 1},
    ),
    "cascade-fails": Scenario(
        way=f"{RUNS} CheckCompletionSLA LogCompleted NotifyDownstream AlertCascadeFailure ShouldMonitor {ENDS}",
        answers={"notifyDownstream": [DOWN]},
    ),
    "sla": Scenario(
        way=f"{BEGINS} {LOCKS} {RESOLVES} ScheduleSLAAlerts {EVALUATES} {STARTS} InitJobPollLoop {POLLS} {COMPLETES} "
        "CheckCancelSLA CancelSLASchedules ReleaseLock Done",
        answers={"resolvePipeline": [resolved(sla=SLA)]},
        calls={"schedule": 1, "cancel": 1},
    ),
    "sla-monitor-down": Scenario(
        way=f"{BEGINS} {LOCKS} {RESOLVES} ScheduleSLAAlerts AlertSLAFailure ResetSLASchedule {EVALUATES} {STARTS} "
        f"InitJobPollLoop {POLLS} {COMPLETES} CheckCancelSLA CancelSLASchedules AlertCancelFailure ReleaseLock Done",
        answers={"resolvePipeline": [resolved(sla=SLA)], "schedule": [DOWN], "cancel": [DOWN]},
        calls={"schedule": 4, "cancel": 4},
    ),
    "sla-of-a-window-that-closes": Scenario(
        way=f"{BEGINS} {LOCKS} {RESOLVES} ScheduleSLAAlerts {EVALUATES} IncrementElapsed CheckWindowExhausted "
        f"{EXHAUSTS} CheckCancelSLA CancelSLASchedules ReleaseLock Done",
        answers={
            "resolvePipeline": [resolved(sla=SLA)],
            "checkReadiness": [NOT_READY],
            "evaluate": [evaluated(3_600)],
        },
        calls={"schedule": 1, "cancel": 1},
    ),
    "hands-over-while-it-waits": Scenario(
        way=f"{READY} {WAITS} {EVALUATES} IncrementElapsed CheckWindowExhausted ResumeEvaluation HandOver Done",
        answers={"resolvePipeline": [resolved(handOverRounds=2)], "checkReadiness": [NOT_READY]},
        calls={"handOver": 1, "releaseLock": 0},
    ),
    "hands-over-while-its-job-runs": Scenario(
        way=f"{RUNS} {MORE} {POLLS} {MORE} ResumeJob HandOver Done",
        answers={"resolvePipeline": [resolved(handOverRounds=2)], "check-job": [checked()]},
        calls={"handOver": 1, "releaseLock": 0},
    ),
    "hands-over-while-it-monitors": Scenario(
        way=f"{RUNS} {COMPLETES} {WATCHES} CheckMonitoringExpired IsMonitoringExpired CountMonitoringRound "
        f"{WATCHES} CheckMonitoringExpired IsMonitoringExpired ResumeMonitoring HandOver Done",
        answers={
            "resolvePipeline": [resolved(handOverRounds=1)],
            "logResult": [logged(monitor=True)],
            "checkMonitoringExpired": [{"expired": False}],
        },
        calls={"handOver": 1, "releaseLock": 0},
    ),
    "continues-to-wait": Scenario(
        way=f"{BEGINS} {EVALUATES} {STARTS} InitJobPollLoop {POLLS} {COMPLETES} {ENDS}",
        input={**CONTINUED, "resumeAt": "evaluation"},
        calls={"acquireLock": 0, "resolvePipeline": 0, "releaseLock": 1},
    ),
    "continues-to-poll": Scenario(
        way=f"{BEGINS} {POLLS} {COMPLETES} {ENDS}",
        input={**CONTINUED, "resumeAt": "job", "poll": COUNTED},
        calls={"trigger": 0, "check-job": 1},
    ),
    "continues-to-monitor": Scenario(
        way=f"{BEGINS} {WATCHES} CheckMonitoringExpired IsMonitoringExpired {ENDS}",
        input={**CONTINUED, "resumeAt": "monitoring"},
        calls={"checkDrift": 1},
    ),
    "alerts-down-too": Scenario(
        way="InitDefaults CheckExclusion AlertError InfraFailure",
        answers={"checkExclusion": [DOWN], "alertError": [("Deaf", "nobody listens")]},
        status="FAILED",
        error="Deaf",
    ),
}
TABLE: Final = {name: dict(scenario.answers) for name, scenario in SCENARIOS.items()}


def input_of(name: str) -> dict[str, Any]:
    # Nothing but what is required: everything else has a default in the machine.
    return {"pipelineId": name, "scheduleId": "stream", "date": "2026-03-03", **SCENARIOS[name].input}


class Ended(NamedTuple):
    """How a scenario ended on one of the interpreters."""

    status: str
    error: str | None
    visited: list[str]
    calls: dict[str, int]
    seconds: float = 0.0


class OurLifecycle:
    """The machine on our interpreter, in virtual time."""

    def __init__(self, calls: Path) -> None:
        app = App("lifecycle")
        app.activity(name="canned")(Canned(TABLE, calls, self._tell).__call__)
        self._calls = calls
        self._environment = Environment(app, replay_always=False)

    def __enter__(self) -> OurLifecycle:
        self._environment.__enter__()
        variables = dict.fromkeys(FUNCTIONS, "canned")
        self._environment.service.asl.machines.put("lifecycle", TEXT, variables=variables)
        return self

    def __exit__(self, *_: object) -> None:
        self._environment.__exit__()

    def run(self, name: str) -> Ended:
        asl, clock = self._environment.service.asl, self._environment.clock
        begun = clock.seconds()
        execution_id, _ = asl.executions.start("lifecycle", input_of(name), name=name)
        with contextlib.suppress(ExecutionFailure):
            self._environment.result(self._environment.service.client.handle(execution_id))
        found = asl.executions.describe(execution_id)
        inside = frozenset(inner_names(MACHINE))
        visited = [state for state in entered(asl.executions.history(execution_id)) if state not in inside]
        seconds = clock.seconds() - begun
        return Ended(found.status.value, found.error or None, visited, counts(self._calls, name), seconds)

    def _tell(self, token: str, answer: str) -> None:
        # Time passes by itself here.
        if answer == WAKE:
            self._environment.service.asl.executions.send_callback(token, TaskCallback(CallbackKind.SUCCESS, output={}))


def substituted(function: str) -> str:
    """Return the definition with every variable replaced by the ARN of one function."""
    text = TEXT
    for variable in FUNCTIONS:
        text = text.replace(f"${{{variable}}}", function)
    return text
