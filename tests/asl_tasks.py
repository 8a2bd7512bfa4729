"""The functions of `tests/asl_machines`. Run as a program, it is a Lambda runtime that serves one of them."""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

Function = Callable[[Any], Any]


class Plan(NamedTuple):
    """How the world behaves towards one pipeline: on which evaluation it is ready, how its job fares."""

    ready_on: int
    trigger_failures: int
    done_on: int
    event: str


PLANS: Mapping[str, Plan] = {
    "ready": Plan(1, 0, 1, "success"),
    "late": Plan(3, 0, 2, "success"),
    "never": Plan(1_000, 0, 1, "success"),
    "busy": Plan(1, 2, 3, "success"),
    "broken": Plan(1, 1_000, 1, "success"),
    "failing": Plan(2, 0, 2, "fail"),
    "hanging": Plan(1, 0, 2, "timeout"),
}


class Tasks:
    """The functions, by the name that a Resource gives them as `${name}`. They count their calls in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def functions(self) -> dict[str, Function]:
        return {
            "echo": echo,
            "add": add,
            "square": square,
            "fail_with": fail_with,
            "slow": slow,
            "flaky": self.flaky,
            "orchestrator_arn": self.orchestrator,
            "sla_monitor_arn": sla_monitor,
        }

    def flaky(self, event: Any) -> Any:
        """Fail the first `failures` calls of a `key`."""
        call = self._counted(event["key"])
        if call <= event["failures"]:
            raise _named(event.get("error", "Flaky"), f"call {call}")
        return {"calls": call}

    def orchestrator(self, event: Any) -> Any:
        mode, pipeline = event["mode"], event["pipelineId"]
        plan = PLANS[pipeline]
        call = self._counted(f"{pipeline}-{event['scheduleId']}-{mode}")
        match mode:
            case "evaluate":
                return {"status": "passed" if call >= plan.ready_on else "not_ready", "evaluation": call}
            case "trigger":
                if call <= plan.trigger_failures:
                    raise _named("ConcurrentRunsExceededException", f"{pipeline} is running")
                return {"runId": f"{pipeline}-{event['date']}", "metadata": {"attempt": call}}
            case "check-job":
                return {"event": plan.event} if call >= plan.done_on else {}
            case "validation-exhausted":
                return {"published": "VALIDATION_EXHAUSTED"}
            case _:
                raise _named("UnknownMode", mode)

    def _counted(self, key: str) -> int:
        """Return the number of this call. Calls of one key never overlap; they may come from several processes."""
        with (self._folder / key).open("ab") as calls:
            calls.write(b".")
            calls.flush()
            return calls.tell()


def echo(event: Any) -> Any:
    return event


def add(event: Any) -> Any:
    return sum(event["numbers"])


def square(event: Any) -> Any:
    return event["value"] ** 2


def fail_with(event: Any) -> Any:
    raise _named(event["error"], event.get("message", ""))


def slow(event: Any) -> Any:
    time.sleep(event["seconds"])
    return event


def sla_monitor(event: Any) -> Any:
    if event["mode"] == "cancel":
        return {"cancelled": [event["warningAt"], event["breachAt"]]}
    day = event["date"]
    return {"warningAt": f"{day}T{event['deadline']}:00Z", "breachAt": f"{day}T{event['deadline']}:59Z"}


def _named(error: str, message: str) -> Exception:
    """Return an error of a class of this name: Lambda and Step Functions go by the names of classes."""
    named: type[Exception] = type(error, (Exception,), {})
    return named(message)


def serve(function: Function, api: str) -> None:
    """Answer invocations as AWS's runtimes do, until the process is ended."""
    invocations = f"http://{api}/2018-06-01/runtime/invocation"
    while True:
        with urllib.request.urlopen(f"{invocations}/next") as invocation:
            request_id = invocation.headers["Lambda-Runtime-Aws-Request-Id"]
            event = json.load(invocation)
        try:
            path, answer = "response", function(event)
        except Exception as exc:
            path, answer = "error", {"errorType": type(exc).__name__, "errorMessage": str(exc)}
        body = json.dumps(answer).encode()
        urllib.request.urlopen(urllib.request.Request(f"{invocations}/{request_id}/{path}", data=body)).close()


if __name__ == "__main__":
    serve(Tasks(Path(os.environ["CALLS"])).functions()[sys.argv[1]], os.environ["AWS_LAMBDA_RUNTIME_API"])
