"""Serves LocalStack's Step Functions. A program of the environment that `make localstack` creates.

Its Lambda needs Docker and its JSONata a jar from Maven, so two things are from here: functions are called in this
process, and JSONata is evaluated by the reference implementation, on Node.js. All else is LocalStack's.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from localstack.aws.connect import connect_to
from localstack.runtime import main
from localstack.services.stepfunctions.asl.component.common.retry import retrier_decl
from localstack.services.stepfunctions.asl.component.common.timeouts.timeout import Timeout
from localstack.services.stepfunctions.asl.component.state.state_execution.state_task import lambda_eval_utils
from localstack.services.stepfunctions.asl.component.state.state_wait.wait_function.wait_function import WaitFunction
from localstack.services.stepfunctions.asl.jsonata import jsonata

from tests.asl_tasks import Function, Tasks
from tests.lifecycle_answers import WAKE, Canned

# A result that JSON cannot hold is nothing, as with the library that LocalStack uses.
_EVALUATE: Final = """
const jsonata = require("jsonata");
require("readline").createInterface({ input: process.stdin }).on("line", async (line) => {
  let answer;
  try {
    const value = await jsonata(JSON.parse(line)).evaluate(undefined);
    answer = { value: value === undefined ? null : value };
  } catch (error) {
    answer = { error: `${error.code}: ${error.message}` };
  }
  process.stdout.write(JSON.stringify(answer) + "\\n");
});
"""


class ReferenceJsonata:
    """JSONata's reference implementation, in a process of its own."""

    def __init__(self, node_folder: str) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            ["node", "-e", _EVALUATE], cwd=node_folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, expression: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(expression) + "\n")
            self._process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise jsonata.JSONataException("UNKNOWN", answer["error"])
        return answer["value"]


class Functions:
    """The client of Lambda that Step Functions calls."""

    def __init__(self, functions: Mapping[str, Function]) -> None:
        self._functions = functions

    def invoke(self, **request: Any) -> dict[str, Any]:
        name, answer = (
            str(request["FunctionName"]).rpartition(":")[2],
            {"StatusCode": 200, "ExecutedVersion": "$LATEST"},
        )
        try:
            result = self._functions[name](json.loads(request["Payload"]))
        except Exception as exc:
            answer["FunctionError"] = "Unhandled"
            result = {"errorMessage": str(exc), "errorType": type(exc).__name__}
        return {**answer, "Payload": io.BytesIO(json.dumps(result).encode())}


def hurry(longest_seconds: float) -> None:
    """Let no wait, pause or time-out take longer than this."""

    def wait(_: Any, env: Any, wait_seconds: float) -> None:
        until = time.monotonic() + min(wait_seconds, longest_seconds)
        while env.is_running() and (left := until - time.monotonic()) > 0:
            env.program_state_event.wait(left)

    def time_out(timeout: Any, env: Any) -> None:
        seconds = timeout._eval_seconds(env=env)
        env.stack.append(seconds if timeout.is_default_value() else min(seconds, longest_seconds))

    class ShortTime:
        @staticmethod
        def sleep(seconds: float) -> None:
            time.sleep(min(seconds, longest_seconds))

    WaitFunction._wait_interval = wait
    Timeout._eval_body = time_out
    retrier_decl.time = ShortTime


def functions() -> dict[str, Function]:
    """Return those of the corpus and that of the lifecycle."""
    calls, table = Path(os.environ["CALLS"]), json.loads(Path(os.environ["TABLE"]).read_text())
    return {**Tasks(calls).functions(), "canned": Canned(table, calls, _answer).__call__}


def _answer(token: str, answer: str) -> None:
    # Otherwise the time of the task passes.
    if answer == WAKE:
        connect_to().stepfunctions.send_task_success(taskToken=token, output="{}")


if __name__ == "__main__":
    client = Functions(functions())
    lambda_eval_utils.boto_client_for = lambda **_: client
    jsonata._eval_jsonata = ReferenceJsonata(os.environ["NODE_FOLDER"])
    hurry(float(os.environ["LONGEST_SECONDS"]))
    main.main()
