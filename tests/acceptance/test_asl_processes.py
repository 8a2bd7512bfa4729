"""State machines in worker processes that are killed without warning: every one ends as it would have undisturbed."""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from headgate.asl.machines.executions import ExecutionStatus, MachineExecutions
from headgate.asl.runtime.task_tokens import CallbackKind, TaskCallback
from headgate.bootstrap.store import AppService, connect
from headgate.errors import StaleClaimError
from tests.acceptance.asl_app import app
from tests.acceptance.program import PROGRAM, until
from tests.asl_rig import beside, check_events, each, entered, machine, task

ROOT = Path(__file__).parents[2]
SOAK_SECONDS = float(os.environ.get("HEADGATE_TEST_SOAK_SECONDS", "0"))
EXECUTIONS = 300 if SOAK_SECONDS else 24
KILLS = 40 if SOAK_SECONDS else 3
KEY = {"key.$": "States.Format('{}/{}', $$.Execution.Name, $$.State.Name)"}
RETRY = [{"ErrorEquals": ["Shaky"], "IntervalSeconds": 1, "BackoffRate": 1.0, "MaxAttempts": 2}]
CATCH = [{"ErrorEquals": ["Given"], "ResultPath": "$.caught", "Next": "Ask"}]
JOURNEY = machine(
    (
        "Items",
        each(
            ("Item", task("work", Parameters={"what.$": "$", **KEY})),
            ItemsPath="$.items",
            MaxConcurrency=2,
            ResultPath="$.items_done",
        ),
    ),
    (
        "Both",
        beside(
            machine(
                ("Pause", {"Type": "Wait", "Seconds": 1}), ("Left", task("work", Parameters={"what": "left", **KEY}))
            ),
            machine(
                ("Shaky", task("shaky", Parameters={"attempt.$": "$$.State.RetryCount", **KEY}, Retry=RETRY)),
            ),
            ResultPath="$.both",
        ),
    ),
    (
        "Fails",
        beside(
            machine(("Give", {"Type": "Fail", "Error": "Given", "Cause": "up"})),
            machine(("Long", {"Type": "Wait", "Seconds": 86_400})),
            Catch=CATCH,
            Next="Ask",
        ),
    ),
    (
        "Ask",
        {
            "Type": "Task",
            "Resource": "${ask}.waitForTaskToken",
            "Parameters": {"token.$": "$$.Task.Token", **KEY},
            "TimeoutSeconds": 600,
            "ResultPath": "$.answer",
        },
    ),
)
INPUT = {"items": ["a", "b", "c"]}
OUTPUT = {
    **INPUT,
    "items_done": ["did a", "did b", "did c"],
    "both": ["did left", "steady"],
    "caught": {"Error": "Given", "Cause": "up"},
    "answer": {"yes": True},
}
# How often an execution calls a function when nothing goes wrong.
CALLS = {"Item": 3, "Left": 1, "Shaky": 3, "Ask": 1}


class WorkerProcess:
    """A running `headgate worker` with the functions."""

    def __init__(self, folder: Path, number: int) -> None:
        self._log = folder / f"worker-{number}.log"
        with self._log.open("wb") as file:
            self.process = subprocess.Popen(
                [PROGRAM, "worker", "--home", folder / "home", "--app", "tests.acceptance.asl_app:app"],
                cwd=ROOT,
                env={**os.environ, "JOURNAL": str(folder / "journal"), "HEADGATE_WORKER_LEASE_SECONDS": "2"},
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def is_ready(self) -> bool:
        assert self.process.poll() is None, f"it ended: {self._log.read_text()}"
        return "headgate worker ready" in self._log.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Client:
    """Someone who starts machines, and answers whatever they ask."""

    def __init__(self, service: AppService, folder: Path) -> None:
        self.executions: MachineExecutions = service.asl.executions
        self._service = service
        self._journal = folder / "journal"
        self._answered: set[str] = set()

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self._journal.read_text().splitlines()] if self._journal.exists() else []

    def answer_all(self) -> None:
        """Answer each token that was given away, and each a second time."""
        for line in self.lines():
            if line[0] == "token" and line[1] not in self._answered:
                self._answered.add(line[1])
                self._answer(line[1], {"yes": True})
                self._answer(line[1], {"too": "late"})

    def _answer(self, token: str, output: Any) -> None:
        # No task waits for a second answer, nor for that to a token whose wait has ended with an earlier one.
        with suppress(StaleClaimError):
            self.executions.send_callback(token, TaskCallback(CallbackKind.SUCCESS, output))

    def have_ended(self, ids: list[str]) -> bool:
        self.answer_all()
        return all(self._service.client.get(execution_id).status.is_closed for execution_id in ids)

    def outcome(self, execution_id: str) -> tuple[ExecutionStatus, Any, str, list[str], Counter[str]]:
        found = self.executions.describe(execution_id)
        events = self.executions.history(execution_id)
        check_events(events)
        own = [name for name in entered(events) if name in JOURNEY["States"]]
        return found.status, found.output, found.error, own, Counter(event.type for event in events)


@pytest.mark.timeout(240 + 4 * int(SOAK_SECONDS))
def test_kill_9__in_the_middle_of_map_parallel_retry_wait_and_token__every_outcome_is_that_without(
    tmp_path: Path,
) -> None:
    chance = random.Random(20261116)
    workers: list[WorkerProcess] = []
    with connect(app, home=tmp_path / "home", work=False) as service:
        service.asl.machines.put("journey", json.dumps(JOURNEY))
        client = Client(service, tmp_path)
        try:
            workers += [WorkerProcess(tmp_path, number) for number in range(2)]
            for worker in workers:
                until(worker.is_ready, "the line that says the worker is ready")
            calm, _ = client.executions.start("journey", INPUT, name="calm")
            until(lambda: client.have_ended([calm]), "the end of the one that nothing disturbs")
            ids = [client.executions.start("journey", INPUT, name=f"n{number}")[0] for number in range(EXECUTIONS)]
            for count in range(KILLS):
                time.sleep(0.8)
                client.answer_all()
                victim = chance.randrange(2)
                workers[victim].kill()
                workers[victim] = WorkerProcess(tmp_path, 2 + count)
            until(lambda: client.have_ended(ids), "the end of all", 120.0 + SOAK_SECONDS)
            expected = client.outcome(calm)
            for execution_id in ids:
                assert client.outcome(execution_id) == expected, execution_id
        finally:
            for worker in workers:
                worker.kill()
    assert expected[:4] == (ExecutionStatus.SUCCEEDED, OUTPUT, "", ["Items", "Both", "Fails", "Ask"])
    check_effects(client, EXECUTIONS + 1)


def check_effects(client: Client, executions: int) -> None:
    """Nothing is missing, and what was done again was done in an attempt of its own."""
    done = [line for line in client.lines() if line[0] != "token"]
    activities: dict[str, set[str]] = {}
    for activity_id, _, key in done:
        activities.setdefault(key, set()).add(activity_id)
    counts = Counter((key.partition("/")[2], len(ids)) for key, ids in activities.items())
    assert counts == dict.fromkeys(CALLS.items(), executions)
    assert [line for line, count in Counter(map(tuple, done)).items() if count > 1] == []
