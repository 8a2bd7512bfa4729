"""Canned answers for the functions of the lifecycle. Run as a program, it is a Lambda runtime that gives them.

An answer is a document; a pair of texts is an error of that name; for the two calls with a task token it is `WAKE`,
which ends the task at once, or `TIME_OUT`, which lets its time pass. The last answer of a list is given for good.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

WAKE: Final = "wake"
TIME_OUT: Final = "time-out"
CONFIG: Final = {
    "evaluationIntervalSeconds": 300,
    "evaluationWindowSeconds": 3_600,
    "monitoringIntervalSeconds": 60,
    "jobCheckIntervalSeconds": 30,
    "jobPollWindowSeconds": 900,
    "handOverRounds": 1_000,
}
SLA: Final = {"deadline": "", "expectedDuration": "", "maxDuration": 60.0, "timezone": "UTC"}

Answers = Mapping[str, Sequence[Any]]


def proceeds(**more: Any) -> dict[str, Any]:
    return {"result": "proceed", **more}


def evaluated(elapsed_seconds: int = 0, status: str = "passed") -> dict[str, Any]:
    return {"status": status, "evaluationId": "e1", "elapsedSeconds": elapsed_seconds, "waitSeconds": 300, "reason": ""}


def checked(event: str | None = None, elapsed_seconds: int = 30) -> dict[str, Any]:
    result = {} if event is None else {"event": event}
    return {"elapsedSeconds": elapsed_seconds, "waitSeconds": 30, **result}


def logged(*, monitor: bool = False, retry_seconds: int | None = None) -> dict[str, Any]:
    is_retryable = retry_seconds is not None
    return {"retryable": is_retryable, "retryBackoffSeconds": retry_seconds or 0, "monitor": monitor, "reason": ""}


def resolved(**config: Any) -> dict[str, Any]:
    return proceeds(runId="run_1", traits=[{"type": "fresh"}], config={**CONFIG, **config})


# What is answered unless a scenario says otherwise: a period that is ready, and a job that succeeds.
USUAL: Answers = {
    "checkExclusion": [proceeds()],
    "acquireLock": [proceeds(lockToken="lock_1")],
    "checkRunLog": [proceeds()],
    "resolvePipeline": [resolved()],
    "evaluator": [{"status": "PASS"}],
    "evaluate": [evaluated()],
    "checkEvaluationSLA": [{"breached": False}],
    "checkValidationTimeout": [{"timedOut": False}],
    "checkReadiness": [proceeds(reason="all is there")],
    "await-change": [TIME_OUT],
    "await-job": [TIME_OUT],
    "trigger": [{"status": "running", "runId": "job-1", "metadata": {"external_id": "job-1"}}],
    "check-job": [checked("success")],
    "checkCompletionSLA": [{}],
    "logResult": [logged()],
    "notifyDownstream": [{"notified": 1}],
    "checkDrift": [{"drifted": False}],
    "checkMonitoringExpired": [{"expired": True}],
    "handleLateArrival": [{"rerunId": "rerun_1"}],
    "validation-exhausted": [{"retryable": False, "reason": ""}],
    "trigger-exhausted": [logged()],
    "job-poll-exhausted": [logged()],
    "dryRun": [{"dryRun": True}],
    "alertError": [{"alerted": True}],
    "releaseLock": [{"released": True}],
    "handOver": [{"execution": "next"}],
    "schedule": [{"warningAt": "2026-03-03T09:00:00Z", "breachAt": "2026-03-03T10:00:00Z"}],
    "cancel": [{"cancelled": True}],
}


class Canned:
    """Gives the answers of all scenarios; a call is identified by its pipeline. Calls are counted in a folder."""

    def __init__(self, table: Mapping[str, Answers], folder: Path, tell: Callable[[str, Any], None]) -> None:
        """Take `tell`, which ends the task of a token in one of the two ways."""
        self._table = table
        self._folder = folder
        self._tell = tell

    def __call__(self, event: Any) -> Any:
        scenario, call = event["pipelineId"], name_of(event)
        answers = self._table[scenario].get(call, USUAL[call])
        number = self._counted(f"{scenario}.{call}")
        answer = answers[min(number, len(answers)) - 1]
        if isinstance(answer, str):
            self._tell(event["taskToken"], answer)
            return {}
        if isinstance(answer, list | tuple):
            error: type[Exception] = type(str(answer[0]), (Exception,), {})
            raise error(answer[1])
        return answer

    def _counted(self, key: str) -> int:
        with (self._folder / key).open("ab") as calls:
            calls.write(b".")
            calls.flush()
            return calls.tell()


def name_of(event: Mapping[str, Any]) -> str:
    """Return what a function is asked for: an action, a mode, or a trait."""
    return str(event.get("action") or event.get("mode") or "evaluator")


def counts(folder: Path, scenario: str) -> dict[str, int]:
    """Return how often each function was called in a scenario."""
    found = {path.name.partition(".")[2]: path.stat().st_size for path in folder.glob(f"{scenario}.*")}
    return dict(sorted(found.items()))


def _report_ministack(token: str, answer: str) -> None:
    """End the task of a token through the API of Step Functions. MiniStack takes no path to a time-out."""
    call, result = "SendTaskSuccess", {"taskToken": token, "output": "{}"}
    if answer == TIME_OUT:
        call, result = "SendTaskFailure", {"taskToken": token, "error": "States.Timeout", "cause": "simulated"}
    credential = f"AWS4-HMAC-SHA256 Credential={os.environ['ACCOUNT']}/20260303/us-east-1/states/aws4_request"
    headers = {
        "X-Amz-Target": f"AWSStepFunctions.{call}",
        "Content-Type": "application/x-amz-json-1.0",
        "Authorization": f"{credential}, SignedHeaders=host, Signature=0",
    }
    request = urllib.request.Request(os.environ["ENDPOINT"], data=json.dumps(result).encode(), headers=headers)
    urllib.request.urlopen(request).close()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.asl_tasks import serve

    table = json.loads(Path(os.environ["TABLE"]).read_text())
    serve(Canned(table, Path(os.environ["CALLS"]), _report_ministack), os.environ["AWS_LAMBDA_RUNTIME_API"])
