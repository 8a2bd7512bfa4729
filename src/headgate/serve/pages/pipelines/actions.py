"""Pipeline actions: the buttons of a pipeline, of one of its periods, and of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from headgate.auth.roles import Permission
from headgate.pipelines.enums import ControlState, RunStatus
from headgate.pipelines.overview.status import PipelineStatus
from headgate.pipelines.runs.rows import RunLog, Slot
from headgate.serve.pages.actions import REASON, Action, Field, FieldKind, Tone, allowed
from headgate.serve.pages.api_calls import ApiCaller, segment
from headgate.serve.pages.labels import command

_WHY: Final = "--reason {reason}"
_NOTE: Final = Field(name="note", label="Reason", is_required=True, hint="Recorded in the audit log.")


def pipeline_actions(
    api: ApiCaller, row: PipelineStatus, slot: Slot, log: RunLog | None, schedule: Sequence[str]
) -> tuple[Action, ...]:
    """Return the actions on a pipeline and on its chosen period, the expected one first.

    `log` is the state of that period, None if nothing has started. `schedule` is the option of its commands.
    """
    found = [*period_actions(slot, log, schedule), _steer(row), _backfill(slot, schedule)]
    return tuple(allowed(api, permission, action) for action, permission in found)


def run_actions(
    api: ApiCaller, run: Mapping[str, Any], status: RunStatus, schedule: Sequence[str], trigger: str
) -> tuple[Action, ...]:
    """Return the actions that fit the state of a run. `trigger` is the type of its trigger."""
    slot = Slot(run["pipeline_id"], run["schedule_id"], run["date"])
    if status.is_terminal or status.is_done:
        repair = _repair(run, trigger) if status is RunStatus.FAILED and run["job_id"] else []
        marked = [] if status.is_done else [_order(slot, schedule, *_MARK_SUCCESS)]
        found = [*repair, rerun(slot, schedule, Tone.PLAIN if repair else Tone.PRIMARY), *marked]
    elif status is RunStatus.PENDING:
        found = [_order(slot, schedule, *_FORCE), cancel(run["run_id"])]
    else:
        found = [_complete(run["run_id"]), cancel(run["run_id"])]
    return tuple(allowed(api, permission, action) for action, permission in found)


def period_actions(slot: Slot, log: RunLog | None, schedule: Sequence[str]) -> list[tuple[Action, Permission]]:
    """Return the actions on a period with the permission that each needs."""
    if log is not None and log.is_live and log.status is not RunStatus.PENDING:
        return [cancel(log.run_id)]
    if log is not None and (log.status.is_done or log.status.is_terminal):
        marked = [] if log.status.is_done else [_order(slot, schedule, *_MARK_SUCCESS)]
        return [rerun(slot, schedule, Tone.PRIMARY), *marked]
    is_held = log is not None and log.hold is not None
    is_waiting = log is not None and log.is_live
    return [
        *([_order(slot, schedule, *_APPROVE)] if is_held else []),
        *([] if is_waiting else [_start(slot, schedule)]),
        *([] if is_held else [_order(slot, schedule, *_HOLD)]),
        _order(slot, schedule, *_FORCE),
        _order(slot, schedule, *_SKIP),
        _order(slot, schedule, *_MARK_SUCCESS),
    ]


def _schedule(slot: Slot) -> dict[str, str]:
    return {"schedule": slot.schedule_id} if slot.schedule_id else {}


# Verb of the API and the CLI, label, sentence, confirmation and tone of the orders for a period.
_APPROVE: Final = (
    "approve",
    "Approve",
    "Ends the hold. The period runs once it is ready.",
    "It is approved.",
    Tone.PRIMARY,
)
_HOLD: Final = ("hold", "Hold", "The period does not start until somebody approves it.", "It is held.", Tone.PLAIN)
_FORCE: Final = (
    "force", "Force", "Starts the job now, whether or not the rules hold.", "The job is started.", Tone.DANGER,
)  # fmt: skip
_SKIP: Final = (
    "skip", "Skip", "The period does not run. Pipelines downstream see it as skipped.", "It is skipped.", Tone.DANGER,
)  # fmt: skip
_MARK_SUCCESS: Final = (
    "mark-success", "Mark as successful", "The period counts as done without a run. Pipelines downstream may start.",
    "It counts as successful.", Tone.PLAIN,
)  # fmt: skip


def _order(
    slot: Slot, schedule: Sequence[str], verb: str, label: str, sentence: str, done: str, tone: Tone
) -> tuple[Action, Permission]:
    action = Action(
        label=label,
        sentence=f"{slot.date}: {sentence[0].lower()}{sentence[1:]}",
        path=f"/pipelines/{segment(slot.pipeline_id)}/periods/{segment(slot.date)}/{verb}",
        body=_schedule(slot),
        cli=f"{command('period', verb, slot.pipeline_id, slot.date, *schedule)} {_WHY}",
        tone=tone,
        done=done,
    )
    return action, Permission.PIPELINE_CONTROL


def _start(slot: Slot, schedule: Sequence[str]) -> tuple[Action, Permission]:
    action = Action(
        label="Start a run",
        sentence="Requests a run of the period now. Its job starts when the rules hold.",
        path=f"/pipelines/{segment(slot.pipeline_id)}/runs",
        body=_schedule(slot),
        fields=(Field(name="date", label="Period", value=slot.date, is_required=True), REASON),
        cli=f"{command('run', 'start', slot.pipeline_id)} --date {{date}} {' '.join((*schedule, _WHY))}",
        tone=Tone.PRIMARY,
        done="The run is requested.",
    )
    return action, Permission.PIPELINE_PUSH


def rerun(slot: Slot, schedule: Sequence[str], tone: Tone) -> tuple[Action, Permission]:
    """Return the action that runs a period again, with the permission that it needs."""
    action = Action(
        label="Rerun",
        sentence=f"Runs {slot.date} again with the definition as it is now. It counts against the budget of reruns.",
        path=f"/pipelines/{segment(slot.pipeline_id)}/reruns",
        body={**_schedule(slot), "date": slot.date},
        fields=(
            _NOTE,
            Field(name="force", label="Also if the budget of reruns is used up", kind=FieldKind.FLAG),
        ),
        cli=f"{command('run', 'rerun', slot.pipeline_id, '--date', slot.date, *schedule)} --reason {{note}}",
        tone=tone,
        done="The rerun is requested.",
    )
    return action, Permission.PIPELINE_CONTROL


def _backfill(slot: Slot, schedule: Sequence[str]) -> tuple[Action, Permission]:
    options = " ".join(("--from {from}", "--to {to}", *schedule, _WHY))
    action = Action(
        label="Backfill",
        sentence="Runs a range of periods, oldest first. Periods that are done are left out.",
        path=f"/pipelines/{segment(slot.pipeline_id)}/backfills",
        body=_schedule(slot),
        fields=(
            Field(name="from", label="First period", value=slot.date, is_required=True),
            Field(name="to", label="Last period", value=slot.date, is_required=True),
            Field(name="concurrency", label="Runs at the same time", kind=FieldKind.NUMBER, value="1"),
            Field(name="redo", label="Also periods that are done", kind=FieldKind.FLAG),
            REASON,
        ),
        cli=f"{command('backfill', 'create', slot.pipeline_id)} {options}",
        done="The backfill is started.",
    )
    return action, Permission.PIPELINE_CONTROL


def _steer(row: PipelineStatus) -> tuple[Action, Permission]:
    name = row.pipeline.id
    if row.control.state is not ControlState.ACTIVE:
        action = Action(
            label="Resume",
            sentence="Schedules start runs again.",
            path=f"/pipelines/{segment(name)}/resume",
            cli=f"{command('pipeline', 'resume', name)} {_WHY}",
            tone=Tone.PRIMARY,
            done="The pipeline is resumed.",
        )
    else:
        action = Action(
            label="Pause",
            sentence="No further run starts; a running job goes on.",
            path=f"/pipelines/{segment(name)}/pause",
            cli=f"{command('pipeline', 'pause', name)} {_WHY}",
            done="The pipeline is paused.",
        )
    return action, Permission.PIPELINE_CONTROL


def cancel(run_id: str) -> tuple[Action, Permission]:
    """Return the action that ends a run, with the permission that it needs."""
    action = Action(
        label="Cancel",
        sentence="Ends the run and cancels its job.",
        path=f"/runs/{segment(run_id)}/cancel",
        cli=f"{command('run', 'cancel', run_id)} {_WHY}",
        tone=Tone.DANGER,
        done="The run is being cancelled.",
    )
    return action, Permission.PIPELINE_CONTROL


def _complete(run_id: str) -> tuple[Action, Permission]:
    action = Action(
        label="Report the end",
        sentence="Reports how the job ended, in place of the job.",
        path=f"/runs/{segment(run_id)}/complete",
        fields=(
            Field(
                name="status", label="Outcome", kind=FieldKind.CHOICE, choices=("success", "failed"), value="success"
            ),
            Field(name="reason", label="Reason"),
        ),
        cli=f"{command('run', 'complete', run_id)} {{status}}",
        done="The end of the job is reported.",
    )
    return action, Permission.PIPELINE_PUSH


def _repair(run: Mapping[str, Any], trigger: str) -> list[tuple[Action, Permission]]:
    """Return the action that repairs the job of a failed run: when the job then succeeds, the run completes."""
    job = run["job_id"]
    match trigger:
        case "fan-out":
            action = Action(
                label="Redrive its chunks",
                sentence="Queues the failed chunks of the job again. When they succeed, this run completes.",
                path=f"/fanouts/{segment(job)}/redrive",
                body={"failed": True},
                cli=f"{command('fanout', 'redrive', job, '--failed')} {_WHY}",
                tone=Tone.PRIMARY,
                done="The failed chunks are queued again.",
            )
            return [(action, Permission.FANOUT_WRITE)]
        case "workflow":
            action = Action(
                label="Retry its workflow",
                sentence="Runs the failed workflow of the job again. When it succeeds, this run completes.",
                path=f"/executions/{segment(job)}/retry",
                fields=(),
                cli=command("execution", "retry", job),
                tone=Tone.PRIMARY,
                done="The workflow runs again.",
            )
            return [(action, Permission.EXECUTION_WRITE)]
        case _:
            return []
