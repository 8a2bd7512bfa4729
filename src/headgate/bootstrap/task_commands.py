"""Task commands: runs the commands of a resource map under the supervisor of command jobs.

The input of the Task is a JSON file, and so is the result: HEADGATE_INPUT_FILE and HEADGATE_OUTPUT_FILE name them. A
command that writes no file has its output as the result, as JSON or as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from headgate.asl.errors import DATA_LIMIT_EXCEEDED, TASK_FAILED, TIMEOUT, StateError, runtime_error
from headgate.asl.expressions.scope import Json
from headgate.asl.tasks.resource_map import CommandTarget
from headgate.clock import Clock
from headgate.durable.model.failures import Cancelled
from headgate.durable.sdk.activity_context import ActivityContext, heartbeat
from headgate.triggers.contract import FailureCategory, Job, JobState, PollResult, TriggerFailedError, TriggerOrder
from headgate.triggers.local.command import CommandConfig, CommandKind
from headgate.triggers.local.command_records import CommandRecord

COMMANDS_FOLDER: Final = "task-commands"
RESULT_BYTES_MAX: Final = 262_144
_POLL_SECONDS: Final = 0.02
_HEARTBEAT_SECONDS: Final = 1.0
_INPUT: Final = "input.json"
_RESULT: Final = "result.json"


class TaskCommands:
    """Runs commands for Tasks. Safe to use from many threads."""

    def __init__(self, clock: Clock, home: Path, environ: Mapping[str, str], project: Path | None) -> None:
        self._clock = clock
        self._folder = home / COMMANDS_FOLDER
        self._kind = CommandKind(clock, self._folder, environ)
        self._project = project

    def run(self, target: CommandTarget, input: Json, context: ActivityContext) -> Json:
        """Run a command to its end and return its result. Raises `StateError`.

        The command is found again by the activity's id: an attempt after a crash waits for it and starts no second one.
        """
        self._folder.mkdir(mode=0o700, exist_ok=True)
        record = CommandRecord(self._folder, context.activity_id)
        record.create()
        files = {name: record.folder / name for name in (_INPUT, _RESULT)}
        if not files[_INPUT].exists():
            _write(files[_INPUT], input)
        job = self._job(target, files, context)
        try:
            self._kind.start(job)
            polled = self._wait(job, context)
        except TriggerFailedError as exc:
            raise StateError(TASK_FAILED, str(exc)) from exc
        return self._result(record, files[_RESULT], polled)

    def _job(self, target: CommandTarget, files: Mapping[str, Path], context: ActivityContext) -> Job[CommandConfig]:
        own = {
            "HEADGATE_EXECUTION_ID": context.execution_id,
            "HEADGATE_INPUT_FILE": str(files[_INPUT]),
            "HEADGATE_OUTPUT_FILE": str(files[_RESULT]),
        }
        folder = (self._project or Path()) / (target.folder or "")
        try:
            config = CommandConfig(
                command=target.run,
                folder=str(folder),
                environment=target.environment | own,
                inherit=target.inherit,
                timeout=target.timeout,
                grace=target.grace,
                memory_max=target.memory_max,
            )
        except ValueError as exc:
            raise runtime_error(f"resource map: command: {exc}") from exc
        # The command belongs to a Task, and to no pipeline.
        order = TriggerOrder(
            type=self._kind.name,
            config={},
            pipeline="",
            schedule="",
            date="",
            run_id=context.activity_id,
            attempt=context.attempt,
            is_from_folder=True,
        )
        return Job(order, config)

    def _wait(self, job: Job[CommandConfig], context: ActivityContext) -> PollResult:
        """Wait for the end of a command. A cancelled Task ends it; a worker that stops leaves it to the next."""
        beat_at = self._clock.monotonic() + _HEARTBEAT_SECONDS
        while (polled := self._kind.poll(job, {})).state is JobState.RUNNING:
            self._clock.sleep(_POLL_SECONDS)
            if not (context.cancelled or context.is_interrupted or self._clock.monotonic() >= beat_at):
                continue
            beat_at = self._clock.monotonic() + _HEARTBEAT_SECONDS
            try:
                heartbeat()
            except Cancelled:
                if context.cancelled:
                    self._kind.cancel(job, {})
                raise
        return polled

    def _result(self, record: CommandRecord, file: Path, polled: PollResult) -> Json:
        document = _read(file) if file.exists() else None
        if polled.state is JobState.SUCCEEDED:
            return document if file.exists() else self._output(record)
        match document:
            case {"Error": str() as error, **rest}:
                raise StateError(error, str(rest.get("Cause", "")))
        raise StateError(TIMEOUT if polled.category is FailureCategory.TIMEOUT else TASK_FAILED, polled.reason)

    def _output(self, record: CommandRecord) -> Json:
        output = self._kind.read_output(record.key, tuple, offset=0, limit=RESULT_BYTES_MAX + 1)
        text = "" if output is None else output.text.strip()
        if len(text) > RESULT_BYTES_MAX:
            raise StateError(DATA_LIMIT_EXCEEDED, f"the output of the command exceeds {RESULT_BYTES_MAX} bytes")
        try:
            return msgspec.json.decode(text) if text else None
        except msgspec.DecodeError:
            return text


def _write(file: Path, input: Json) -> None:
    """Write a file whole: after a crash it is there, or it is not."""
    part = file.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(input))
    part.replace(file)


def _read(file: Path) -> Json:
    with file.open("rb") as opened:
        content = opened.read(RESULT_BYTES_MAX + 1)
    if len(content) > RESULT_BYTES_MAX:
        raise StateError(DATA_LIMIT_EXCEEDED, f"the result of the command exceeds {RESULT_BYTES_MAX} bytes")
    try:
        return msgspec.json.decode(content)
    except msgspec.DecodeError as exc:
        raise StateError(TASK_FAILED, f"the result of the command is not JSON: {exc}") from exc
