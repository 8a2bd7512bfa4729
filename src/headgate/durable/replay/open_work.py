"""Open work: commands of an execution whose end is not in its history, found without running its code."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from headgate.durable.model.history import (
    ActivityEnded,
    CancelActivity,
    CancelChild,
    Cancellation,
    CancelTimer,
    ChildEnded,
    Close,
    Command,
    ContinueAsNew,
    ParentClose,
    Reapplied,
    ResumeChild,
    StartActivity,
    StartChild,
    Started,
    StartTimer,
    TimerFired,
    Turn,
)


class OpenWork(Struct):
    """Open activities, timers and children, by the number of their command."""

    activities: dict[int, StartActivity]
    timers: dict[int, StartTimer]
    children: dict[int, StartChild]
    # Whether the code has started: messages may come before a delayed start.
    has_begun: bool = False

    def closing(self) -> list[Command]:
        """Return the commands that cancel all open work."""
        commands: list[Command] = [CancelTimer(seq) for seq in self.timers]
        commands += [CancelActivity(seq) for seq in self.activities]
        for seq, child in self.children.items():
            if child.parent_close is not ParentClose.ABANDON:
                commands.append(CancelChild(seq, child.child_id, child.parent_close is ParentClose.TERMINATE))
        return commands


def open_work(turns: Iterable[Turn]) -> OpenWork:
    """Return the open work after these turns of one run."""
    work = OpenWork({}, {}, {})
    for turn in turns:
        for event in turn.events:
            _close_command(work, event)
        for command in turn.commands:
            _open_command(work, command)
    return work


def _close_command(work: OpenWork, event: object) -> None:
    match event:
        case Started():
            work.has_begun = True
        case ActivityEnded():
            work.activities.pop(event.seq, None)
        case TimerFired():
            work.timers.pop(event.seq, None)
        case ChildEnded():
            work.children.pop(event.seq, None)
        case Reapplied():
            for each in event.events:
                _close_command(work, each)
        case _:
            return


def _open_command(work: OpenWork, command: Command) -> None:
    match command:
        case StartActivity():
            work.activities[command.seq] = command
        case StartTimer():
            work.timers[command.seq] = command
        case StartChild():
            work.children[command.seq] = command
        case ResumeChild():
            work.children[command.seq] = command.child
        case CancelActivity() if command.cancellation is not Cancellation.WAIT:
            work.activities.pop(command.seq, None)
        case CancelTimer():
            work.timers.pop(command.seq, None)
        case CancelChild():
            work.children.pop(command.seq, None)
        case Close() | ContinueAsNew():
            work.activities.clear()
            work.timers.clear()
            work.children.clear()
        case _:
            return
