"""Run output: reads what the job of a run has written, of the run itself or of another attempt at its period."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from headgate.errors import NotFoundError
from headgate.pipelines.definition_reader import DefinitionReader
from headgate.pipelines.lifecycle.job_control import order_of
from headgate.pipelines.runs.rows import Run
from headgate.pipelines.runs.store import Runs
from headgate.triggers.contract import JobOutput, TriggerOrder


class OutputReader(Protocol):
    """Reads the output of jobs."""

    def read_output(self, order: TriggerOrder, *, offset: int, limit: int) -> JobOutput:
        """Return a part of the output of a job. Raises `NotFoundError`, `TriggerFailedError`."""


class RunOutput(Struct, frozen=True):
    """A part of the output of the job of a run."""

    run: Run
    output: JobOutput


class RunOutputs:
    """Reads the output of runs."""

    def __init__(self, runs: Runs, definitions: DefinitionReader, reader: OutputReader) -> None:
        self._runs = runs
        self._definitions = definitions
        self._reader = reader

    def read(self, run_id: str, *, attempt: int | None, offset: int, limit: int) -> RunOutput:
        """Return the output from an offset on. A negative offset counts from the end.

        With `attempt`, of that attempt at the period of the run. Raises `NotFoundError`, `TriggerFailedError`.
        """
        run = self._runs.get(run_id)
        if attempt is not None and attempt != run.attempt:
            run = self._runs.get(self._run_of(run, attempt))
        pipeline = self._definitions.of_run(run)
        if pipeline.trigger is None:
            raise NotFoundError(f"run {run.run_id}: its pipeline starts no job")
        order = order_of(run, pipeline)
        return RunOutput(run, self._reader.read_output(order, offset=offset, limit=limit))

    def _run_of(self, run: Run, attempt: int) -> str:
        log = self._runs.log(run.slot)
        history = () if log is None else log.history
        found = next((each.run_id for each in history if each.number == attempt), None)
        if found is None:
            known = ", ".join(str(each.number) for each in history) or "none"
            raise NotFoundError(f"{run.slot}: attempt {attempt} is not in its log; the attempts there are {known}")
        return found
