"""Fork plan: what a run that begins with a part of an earlier history keeps, applies again and opens again.

A reset drops the turns of an execution from one turn on, and computes that turn again. What the kept turns had started
and the dropped ones recorded as ended stays ended: a completed activity is not run again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from headgate.durable.model.failures import ErrorInfo
from headgate.durable.model.history import (
    ActivityEnded,
    CancelChild,
    CancelRequested,
    CancelTimer,
    ChildEnded,
    Close,
    Command,
    EmitEvent,
    Event,
    MarkPatch,
    Outcome,
    ParentClose,
    Reset,
    ResumeChild,
    SendSignal,
    Signal,
    SignalSent,
    StartActivity,
    StartChild,
    Started,
    StartTimer,
    Status,
    TimerFired,
    Turn,
    UpdateRequested,
    each_event,
)
from headgate.durable.model.records import activity_id
from headgate.durable.replay.open_work import OpenWork, open_work
from headgate.errors import ConflictError, NotFoundError


class ForkPoint(Struct, frozen=True):
    """The turn to compute again, and the commands whose end is dropped, so that they run again.

    `is_new_work` is False for a retry: a repeated activity then keeps its idempotency key.
    """

    turn: int
    repeated: tuple[int, ...] = ()
    is_new_work: bool = False


class ForkPlan(Struct, frozen=True):
    """The run after a reset."""

    point: ForkPoint
    # The numbers of the kept turns.
    kept: list[int]
    # The start event, if it is not in the kept turns.
    started: Started | None
    events: tuple[Outcome, ...]
    # Commands that end what was open after the dropped turns, and open what was open before them.
    commands: tuple[Command, ...]
    # Open activities of the earlier run, by the numbers of their commands.
    cancelled: tuple[int, ...]
    # Children that only the dropped turns had started. They must have ended.
    later_children: list[str]
    patches: dict[str, bool]
    # The end of the time limit that the execution was started with.
    first_timeout_at_ms: int | None = None


def live_turns(turns: Iterable[Turn]) -> list[Turn]:
    """Return the turns of a history without those that a later reset has dropped."""
    live: list[Turn] = []
    for turn in turns:
        mark = reset_of(turn)
        if mark is not None:
            live = [each for each in live if each.turn < mark.to]
        live.append(turn)
    return live


def reset_of(turn: Turn) -> Reset | None:
    """Return the reset that a turn records, if it does."""
    first = turn.events[0] if turn.events else None
    return first if isinstance(first, Reset) else None


def runs_of(live: Sequence[Turn]) -> list[list[Turn]]:
    """Split live turns where the execution continued as new, or its id was used again."""
    runs: list[list[Turn]] = []
    for turn in live:
        mark = reset_of(turn)
        if runs and (turn.run == runs[-1][-1].run or (mark is not None and mark.kept)):
            runs[-1].append(turn)
        else:
            runs.append([turn])
    return runs


def plan_fork(
    execution_id: str,
    turns: Sequence[Turn],
    point: ForkPoint,
    now_ms: int,
    *,
    keeps_messages: bool = True,
    unconsumed: Sequence[Event] = (),
) -> ForkPlan:
    """Plan a run that computes turn `point.turn` of this life of an execution again.

    With `keeps_messages`, signals and updates of that turn and later ones are applied again. `unconsumed` are stored
    ends of commands that no turn has consumed yet. Raises `NotFoundError` if the turn is not part of the live history.
    """
    runs = runs_of(live_turns(turns))
    place = next((n for n, run in enumerate(runs) if any(each.turn == point.turn for each in run)), None)
    if place is None:
        raise NotFoundError(
            f"execution {execution_id}: its history has no turn {point.turn}, or an earlier reset has dropped it; "
            "see 'headgate execution history'"
        )
    kept = [turn for turn in runs[place] if turn.turn < point.turn]
    dropped = [turn for turn in runs[place] if turn.turn >= point.turn]
    is_current = place == len(runs) - 1
    before = open_work(kept)
    sends = _open_sends(kept)
    later = [*_events(dropped), *(each_event(unconsumed) if is_current else ())]
    events, ended = _outcomes(later, before, sends, point, keeps_messages=keeps_messages)
    if keeps_messages:
        messages = (event for run in runs[place + 1 :] for event in _events(run))
        events += [event for event in messages if isinstance(event, Signal | UpdateRequested)]
    # Its notice was lost with the earlier run; the signal itself was sent by the dispatch of its turn.
    events += [SignalSent(seq) for seq in sends if seq not in ended]
    after = open_work(runs[-1])
    run = runs[-1][-1].run
    commands: list[Command] = [CancelTimer(seq, run) for seq in after.timers]
    commands += _opened(execution_id, kept, before, ended, point, _closed_children(dropped))
    commands += _timers(before, ended, dropped[0].at_ms, now_ms)
    started = None if before.has_begun else next((e for e in later if isinstance(e, Started)), None)
    patches = {c.patch: c.is_deprecated for turn in kept for c in turn.commands if isinstance(c, MarkPatch)}
    first = next((event for event in _events(turns) if isinstance(event, Started)), None)
    return ForkPlan(
        point=point,
        kept=[turn.turn for turn in kept],
        started=started,
        events=tuple(events),
        commands=tuple(commands),
        cancelled=tuple(after.activities),
        later_children=_later_children([*dropped, *chain.from_iterable(runs[place + 1 :])]),
        patches=patches,
        first_timeout_at_ms=None if first is None else first.timeout_at_ms,
    )


def failure_point(execution_id: str, turns: Sequence[Turn]) -> ForkPoint:
    """Return the point at which a closed execution that did not succeed goes on after a fix.

    The turn that ended it is computed again. An activity or a child whose failure ended it runs again. Raises
    `ConflictError` if the code had handled the failure, so that going back would repeat or contradict what it did.
    """
    run = runs_of(live_turns(turns))[-1]
    last = run[-1]
    close = last.commands[-1] if last.commands else None
    if not isinstance(close, Close) or close.status is Status.SUCCEEDED:
        raise ConflictError(f"execution {execution_id}: it has not failed; use 'headgate execution reset --to'")
    if close.status is Status.TERMINATED:
        return ForkPoint(last.turn)
    ends = [event for event in _events([last]) if isinstance(event, ActivityEnded | ChildEnded)]
    repeated = tuple(event.seq for event in ends if _has_failed(event))
    if repeated:
        return ForkPoint(last.turn, repeated)
    cause = _cause(run, close)
    if cause is None or cause.turn == last.turn:
        return cause or ForkPoint(last.turn)
    for turn in run:
        work = [each for each in turn.commands if isinstance(each, StartActivity | StartChild | SendSignal | EmitEvent)]
        if turn.turn >= cause.turn and work:
            raise ConflictError(
                f"execution {execution_id}: turn {cause.turn} received what ended it, and the code then went on with "
                f"{_name(work[0])}; choose where to begin: 'headgate execution reset {execution_id} --to TURN'"
            )
    return cause


def activity_point(execution_id: str, turns: Sequence[Turn], name: str, *, is_closed: bool) -> ForkPoint:
    """Return the point at which an activity, given as NAME or NAME#SEQ, runs again. The last one of a name counts.

    Raises `NotFoundError` if the live history has no such activity, and `ConflictError` if it has not ended.
    """
    wanted, _, number = name.partition("#")
    for run in reversed(runs_of(live_turns(turns))):
        started = [c for turn in run for c in turn.commands if isinstance(c, StartActivity) and c.name == wanted]
        found = [c.seq for c in started if not number or str(c.seq) == number]
        if not found:
            continue
        seq = found[-1]
        for turn in run:
            if any(isinstance(event, ActivityEnded) and event.seq == seq for event in _events([turn])):
                return ForkPoint(turn.turn, (seq,), is_new_work=True)
        if is_closed:
            return ForkPoint(run[-1].turn)
        raise ConflictError(f"execution {execution_id}: activity {wanted}#{seq} has not ended; nothing was changed")
    names = sorted({c.name for t in live_turns(turns) for c in t.commands if isinstance(c, StartActivity)})
    raise NotFoundError(
        f"execution {execution_id}: its history has no activity {name!r}; it has {', '.join(names) or 'none'}; "
        "give a turn, NAME, or NAME#NUMBER as in 'headgate execution history'"
    )


def _events(turns: Iterable[Turn]) -> Iterator[Event]:
    for turn in turns:
        yield from each_event(turn.events)


def _outcomes(
    later: Iterable[Event], before: OpenWork, sends: Collection[int], point: ForkPoint, *, keeps_messages: bool
) -> tuple[list[Outcome], set[int]]:
    """Return the events to apply again, and the numbers of the commands that they end."""
    events: list[Outcome] = []
    ended: set[int] = set()
    for event in later:
        match event:
            case Signal() | UpdateRequested():
                if keeps_messages:
                    events.append(event)
                continue
            case ActivityEnded():
                is_open = event.seq in before.activities
            case TimerFired():
                is_open = event.seq in before.timers
            case ChildEnded():
                is_open = event.seq in before.children
            case SignalSent():
                is_open = event.seq in sends
            case _:
                continue
        if is_open and event.seq not in point.repeated and event.seq not in ended:
            ended.add(event.seq)
            events.append(event)
    return events, ended


def _open_sends(kept: Sequence[Turn]) -> list[int]:
    sends = {c.seq: None for turn in kept for c in turn.commands if isinstance(c, SendSignal)}
    for event in _events(kept):
        if isinstance(event, SignalSent):
            sends.pop(event.seq, None)
    return list(sends)


def _closed_children(dropped: Sequence[Turn]) -> set[int]:
    """Return the children that were ended because their parent did."""
    return {c.seq for turn in dropped for c in turn.commands if isinstance(c, CancelChild)}


def _later_children(later: Iterable[Turn]) -> list[str]:
    """Return the ids of the children that these turns have started and that end with their parent."""
    started = [c for turn in later for c in turn.commands if isinstance(c, StartChild)]
    return [child.child_id for child in started if child.parent_close is not ParentClose.ABANDON]


def _opened(
    execution_id: str,
    kept: Sequence[Turn],
    before: OpenWork,
    ended: Collection[int],
    point: ForkPoint,
    closed: set[int],
) -> list[Command]:
    issued_in = {c.seq: turn.run for turn in kept for c in turn.commands if isinstance(c, StartActivity) and not c.key}
    commands: list[Command] = []
    for seq, activity in before.activities.items():
        if seq in ended:
            continue
        key = activity.key or activity_id(execution_id, issued_in[seq], seq)
        commands.append(replace(activity, key="" if point.is_new_work and seq in point.repeated else key))
    for seq, child in before.children.items():
        if seq not in ended:
            commands.append(ResumeChild(seq, child, again=seq in point.repeated or seq in closed))
    return commands


def _timers(before: OpenWork, ended: Collection[int], stopped_ms: int, now_ms: int) -> list[Command]:
    """Return the open timers with the time that they had left."""
    left = {seq: max(0, timer.due_at_ms - stopped_ms) for seq, timer in before.timers.items() if seq not in ended}
    return [StartTimer(seq, now_ms + left_ms) for seq, left_ms in left.items()]


def _has_failed(event: Event) -> bool:
    match event:
        case ActivityEnded():
            return event.error is not None
        case ChildEnded():
            return event.status is not Status.SUCCEEDED
        case _:
            return False


def _cause(run: Sequence[Turn], close: Close) -> ForkPoint | None:
    """Return the point of what made the code end, if it is known: a failed activity or child, or a cancellation."""
    causes = _causes(close.error)
    for turn in reversed(run):
        for event in _events([turn]):
            match event:
                case CancelRequested() if close.status is not Status.FAILED:
                    return ForkPoint(turn.turn)
                case ActivityEnded() | ChildEnded() if _has_failed(event):
                    error = event.error
                    if error is not None and (error.type, error.message) in causes:
                        return ForkPoint(turn.turn, (event.seq,))
                case _:
                    continue
    return None


def _causes(error: ErrorInfo | None) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    while error is not None:
        found.add((error.type, error.message))
        error = error.cause
    return found


def _name(command: Command) -> str:
    match command:
        case StartActivity():
            return f"activity {command.name}#{command.seq}"
        case StartChild():
            return f"child {command.child_id}"
        case EmitEvent():
            return f"event {command.type}"
        case _:
            return "a signal"
