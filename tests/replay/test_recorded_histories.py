"""Histories that were recorded once replay for good: an upgrade finds executions under way."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

import headgate as hg
from headgate.durable.model.failures import ErrorInfo
from headgate.durable.model.history import (
    ActivityOptions,
    Command,
    Event,
    FailedAttempt,
    Note,
    TerminateRequested,
    Turn,
    dump_command,
)
from headgate.durable.model.retry import Retry
from headgate.durable.replay import sandbox
from headgate.durable.replay.fork_plan import live_turns, reset_of, runs_of
from headgate.durable.replay.interpreter import Interpreter
from headgate.durable.replay.open_work import open_work
from headgate.errors import DeterminismError
from tests.acceptance.program import run
from tests.replay import changed_app, recorded_app
from tests.replay.record import ROOT, record
from tests.replay.recordings import HISTORIES, Recording, laid_out, load, plain_turns, read

PATHS = sorted(HISTORIES.glob("*.json"))
MACHINES = sorted(HISTORIES.with_name("machines").glob("*.json"))
APP = "tests.replay.recorded_app:app"
KINDS: tuple[Any, ...] = (*get_args(Event), *get_args(Command))
PARTS: tuple[Any, ...] = (Turn, Note, ErrorInfo, ActivityOptions, Retry, FailedAttempt)

each_recording = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


@pytest.fixture(autouse=True)
def guarded() -> None:
    """Refuse in workflow code what a worker refuses."""
    sandbox.install()


class Watched(Interpreter):
    """An interpreter that reports what the code asked for in its last turn."""

    issued: tuple[Command, ...] = ()

    def advance(self, at_ms: int, events: Sequence[Event]) -> tuple[int, tuple[Command, ...]]:
        consumed, self.issued = super().advance(at_ms, events)
        return consumed, self.issued


def watched(recording: Recording) -> Watched:
    workflow = recorded_app.app.workflows[recording.workflow]
    return Watched(workflow.function, workflow.signature, recording.execution_id, retry=workflow.retry)


def runs(recording: Recording) -> Iterator[list[Turn]]:
    """Give the turns of each run that its code has computed: no termination, no reset, and nothing that one dropped."""
    for turns in runs_of(live_turns(recording.turns)):
        yield [turn for turn in turns if not is_termination(turn) and reset_of(turn) is None]


def is_termination(turn: Turn) -> bool:
    return any(isinstance(event, TerminateRequested) for event in turn.events)


def plain(commands: Sequence[Command]) -> list[Any]:
    """Return commands as data, without tracebacks: they name lines, and lines move."""
    return [without_traces(json.loads(dump_command(command))) for command in commands]


def without_traces(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_traces(part) for name, part in value.items() if name != "trace"}
    return [without_traces(part) for part in value] if isinstance(value, list) else value


# Compatibility.


@each_recording
def test_recording__replayed_to_its_end__asks_for_the_same_and_ends_the_same(path: Path) -> None:
    recording = read(path)

    for turns in runs(recording):
        interpreter = watched(recording)
        for turn in turns:
            interpreter.replay(turn)
            assert plain(interpreter.issued) == plain(turn.commands), f"turn {turn.turn}"
        is_last_word = not is_termination(recording.turns[-1]) or turns[-1].run < recording.turns[-1].run
        assert (interpreter.closed is not None) is is_last_word
        interpreter.evict()


@each_recording
def test_recording__given_to_the_public_replay__is_what_the_code_does(path: Path) -> None:
    recording = read(path)

    hg.testing.replay(recorded_app.app.workflows[recording.workflow], recording.execution_id, recording.turns)


@each_recording
def test_recording__cut_after_any_turn__replays_without_a_difference(path: Path) -> None:
    recording = read(path)
    workflow = recorded_app.app.workflows[recording.workflow]

    # Turns that a reset has dropped may be those of code that was wrong.
    live = live_turns(recording.turns)
    for count in range(len(live) + 1):
        cut = load(laid_out("cut", recording.workflow, plain_turns(live[:count])))
        hg.testing.replay(workflow, recording.execution_id, cut.turns)


# The code of one was changed under it: gone on with today, it would take the new side of the patch.
@pytest.mark.parametrize(
    "path", [path for path in PATHS if path.stem != "renovated_before"], ids=lambda path: path.stem
)
def test_recording__gone_on_with_live_after_any_turn__asks_for_what_was_recorded(path: Path) -> None:
    recording = read(path)

    for turns in runs(recording):
        for place, turn in enumerate(turns):
            interpreter = watched(recording)
            for earlier in turns[:place]:
                interpreter.replay(earlier)
            assert interpreter.advance(turn.at_ms, turn.events)[0] == len(turn.events)
            assert plain(interpreter.issued) == plain(turn.commands), f"turn {turn.turn}"
            interpreter.evict()


def test_recording__begun_before_a_patch__takes_the_old_side_of_what_it_has_passed() -> None:
    before, after = read(HISTORIES / "renovated_before.json"), read(HISTORIES / "renovated_after.json")
    patches = [
        [command.patch for turn in recording.turns for command in turn.commands if hasattr(command, "patch")]
        for recording in (before, after)
    ]

    assert patches == [["shout"], ["weigh-it", "shout"]]


@each_recording
def test_recording__terminated__left_nothing_of_what_was_open(path: Path) -> None:
    turns = read(path).turns
    if not is_termination(turns[-1]):
        return
    work = open_work(turns[:-1])

    assert plain(work.closing()) == plain(turns[-1].commands[:-1])


# What is recorded.


@each_recording
def test_recording__read_and_shown_again__has_lost_nothing(path: Path) -> None:
    written = json.loads(path.read_text())
    recording = read(path)

    assert plain_turns(recording.turns) == written["turns"]


@each_recording
def test_recording__as_a_file__is_for_people_and_of_no_machine(path: Path) -> None:
    text = path.read_text()
    written = json.loads(text)

    assert text == laid_out(written["execution_id"], written["workflow"], written["turns"])
    assert not re.search(r'File \\"/', text), "name files as they are below the repository"


def test_recordings__together__have_every_kind_of_event_and_command() -> None:
    kinds = {type(each) for path in PATHS for turn in read(path).turns for each in (*turn.events, *turn.commands)}

    missing = sorted(kind.__name__ for kind in set(KINDS) - kinds)
    assert not missing, f"record an execution with {missing}: python -m tests.replay.record"


def test_recordings__together__have_every_field_of_what_a_history_holds() -> None:
    used: set[tuple[type, str]] = set()
    for path in (*PATHS, *MACHINES):
        for turn in read(path).turns:
            note_fields(turn, used)

    wanted = {(kind, field.name) for kind in (*KINDS, *PARTS) for field in msgspec.structs.fields(kind)}
    missing = sorted(f"{kind.__name__}.{name}" for kind, name in wanted - used)
    assert not missing, f"record an execution with {missing}: python -m tests.replay.record"


def note_fields(value: object, used: set[tuple[type, str]]) -> None:
    """Add the fields that are not at their default to `used`, also those of what a value holds."""
    if isinstance(value, msgspec.Struct):
        for field in msgspec.structs.fields(value):
            part = getattr(value, field.name)
            if field.default is msgspec.NODEFAULT or part != field.default:
                used.add((type(value), field.name))
            note_fields(part, used)
    elif isinstance(value, tuple):
        for part in value:
            note_fields(part, used)


def test_workflows__of_the_app__have_a_recording_each() -> None:
    assert {read(path).workflow for path in PATHS} == set(recorded_app.app.workflows)


def test_record__made_anew__gives_every_recording_and_each_replays(tmp_path: Path) -> None:
    made = record(tmp_path, [])

    assert sorted(path.name for path in made) == [path.name for path in PATHS]
    for path in made:
        recording, committed = read(path), read(HISTORIES / path.name)
        hg.testing.replay(recorded_app.app.workflows[recording.workflow], recording.execution_id, recording.turns)
        assert recording.turns[-1].commands[-1].__class__ is committed.turns[-1].commands[-1].__class__


def test_record__what_is_there__is_left_as_it_is(tmp_path: Path) -> None:
    for path in PATHS:
        (tmp_path / path.name).write_text("as it was")

    assert record(tmp_path, []) == []
    assert [path.name for path in record(tmp_path, ["alarms"])] == ["alarms.json"]
    assert (tmp_path / "parcels.json").read_text() == "as it was"


# What is refused.

DIFFERENCES = {
    "parcels": (3, 'history has start activity knock("north") #3, the code now does start activity find("north") #3'),
    "calls": (
        1,
        'history has start activity call("answered") #1, the code now does start activity call("+answered") #1',
    ),
    "alarms": (1, "history has start timer #1, the code now does close (SUCCEEDED)"),
    "approval": (1, "history ends there, the code now also does emit event vote.opened #1"),
    "mailroom": (1, 'history has start activity find("before") #2, the code no longer does it'),
    "parent": (1, 'history has start child child("good") #1, the code now does start child child("nice") #1'),
    "laps": (2, "history has continue as new, the code now does close (SUCCEEDED)"),
    "renovated_after": (
        2,
        "history has mark patch weigh-it #2, the code now does start activity "
        'weigh({"address":"SHED","grams":5,"marks":[]}) #2',
    ),
    "mended": (2, "the code ended after 2 of 3 events"),
    "announcer": (1, "history has emit event thing.made #1, the code now does set tags #1"),
    "tidy": (2, 'history has start activity call("room") #2, the code now does close (CANCELLED)'),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_changed_code__against_a_recording__is_refused_with_the_first_difference(name: str) -> None:
    recording = read(HISTORIES / f"{name}.json")
    turn, difference = DIFFERENCES[name]

    with pytest.raises(DeterminismError) as refused:
        hg.testing.replay(changed_app.app.workflows[recording.workflow], recording.execution_id, recording.turns)

    remedy = "restore what the code did, or guard the change with hg.patched()"
    assert str(refused.value) == f"execution {recording.execution_id} turn {turn}: {difference}; {remedy}"


def test_changed_code__all_of_it__is_tried() -> None:
    assert {read(HISTORIES / f"{name}.json").workflow for name in DIFFERENCES} == set(changed_app.app.workflows)


Change = Callable[[list[Any]], None]


def change(turn: int, part: str, place: int, **fields: Any) -> Change:
    """Return what gives an event or command of a recording other fields."""
    return lambda turns: turns[turn - 1][part][place].update(fields)


def drop(turn: int, part: str, place: int) -> Change:
    """Return what takes an event or command out of a recording."""

    def without(turns: list[Any]) -> None:
        del turns[turn - 1][part][place]

    return without


def drop_turn(turn: int) -> Change:
    def without(turns: list[Any]) -> None:
        del turns[turn - 1]

    return without


@pytest.mark.parametrize(
    ("name", "changed", "difference"),
    [
        ("parcels", change(1, "commands", 0, name="weight"), 'has start activity weight({"address":"north",'),
        ("parcels", change(2, "events", 0, result="heavy"), "#2, the code now does close (FAILED)"),
        ("parcels", drop(3, "commands", 0), "history ends there, the code now also does start activity knock"),
        ("parcels", drop_turn(4), 'history has start activity find("forbidden") #5'),
        ("alarms", drop(1, "commands", 0), "history has start timer #2, the code now does start timer #1"),
        ("alarms", change(1, "commands", 0, seq=7), "history has start timer #7, the code now does start timer #1"),
        ("approval", drop_turn(2), "history has close (SUCCEEDED), the code no longer does it"),
        (
            "account",
            change(2, "commands", 0, id="other"),
            "history has answer update with id other, the code now has 01J",
        ),
        (
            "announcer",
            change(1, "commands", 1, tags={}),
            "history has set tags #2 with tags {}, the code now has {'stage': ",
        ),
        (
            "parent",
            change(6, "commands", 0, child_id="other"),
            "history has cancel child #5 with child id other, the code now has parent~1.5",
        ),
        ("renovated_after", change(2, "commands", 0, patch="else"), "history has mark patch else #2"),
        ("failure", change(1, "events", 0, input=""), 'the code now does start activity find("") #1'),
    ],
)
def test_recording__tampered_with__is_refused_where_it_begins_to_differ(
    name: str, changed: Change, difference: str
) -> None:
    plain_recording = json.loads((HISTORIES / f"{name}.json").read_text())
    changed(plain_recording["turns"])
    recording = load(json.dumps(plain_recording))

    with pytest.raises(DeterminismError, match=re.escape(difference)):
        hg.testing.replay(recorded_app.app.workflows[recording.workflow], recording.execution_id, recording.turns)


@pytest.mark.parametrize(
    "changed",
    [
        change(1, "commands", 0, options={"retry": {"attempts": 9}, "queue": "other"}),
        change(7, "commands", 0, result={"other": "result"}),
        change(7, "commands", 0, status="FAILED"),
        change(2, "events", 0, worker="wrk_other", attempts=7, notes=[]),
    ],
)
def test_recording__that_differs_in_what_may_change__replays(changed: Change) -> None:
    plain_recording = json.loads((HISTORIES / "parcels.json").read_text())
    changed(plain_recording["turns"])
    recording = load(json.dumps(plain_recording))

    hg.testing.replay(recorded_app.app.workflows[recording.workflow], recording.execution_id, recording.turns)


# What a newer version may write.


@each_recording
def test_recording__with_fields_that_are_not_known_yet__is_read_without_them(path: Path) -> None:
    plain_recording = json.loads(path.read_text())
    for turn in plain_recording["turns"]:
        turn["mood"] = "good"
        for each in [*turn["events"], *turn["commands"], *turn["notes"]]:
            each["mood"] = {"nested": [1]}
            for name in ("error", "options"):
                if name in each:
                    each[name]["mood"] = "odd"

    assert load(json.dumps(plain_recording)) == load(json.dumps(json.loads(path.read_text())))


@pytest.mark.parametrize("part", ["events", "commands"])
def test_recording__with_a_kind_that_is_not_known__is_refused_with_its_name_and_place(part: str) -> None:
    plain_recording = json.loads((HISTORIES / "parcels.json").read_text())
    plain_recording["turns"][2][part][0]["kind"] = "unheard_of"

    with pytest.raises(msgspec.ValidationError) as refused:
        load(json.dumps(plain_recording))

    assert str(refused.value) == f"Invalid value 'unheard_of' - at `$.turns[2].{part}[0].kind`"


# The program.


def test_program__given_a_recording__replays_it_and_says_how_many_turns() -> None:
    for name, turns in (("laps", 5), ("lodger", 1)):
        ended = run("execution", "replay", "--history", HISTORIES / f"{name}.json", "--app", APP, folder=ROOT)
        assert (ended.returncode, ended.stdout) == (0, f"OK: {name} ({name}), {turns} turns\n"), ended.stderr


def test_program__code_was_changed__exits_with_70_and_the_difference() -> None:
    changed = "tests.replay.changed_app:app"
    ended = run("execution", "replay", "--history", HISTORIES / "laps.json", "--app", changed, folder=ROOT)

    assert ended.returncode == 70
    assert DIFFERENCES["laps"][1] in ended.stderr


def test_program__recording_with_a_kind_that_is_not_known__exits_with_2_and_its_place(tmp_path: Path) -> None:
    text = (HISTORIES / "laps.json").read_text()
    (tmp_path / "newer.json").write_text(text.replace('"timer_fired"', '"unheard_of"', 1))
    ended = run("execution", "replay", "--history", tmp_path / "newer.json", "--app", APP, folder=ROOT)

    assert (ended.returncode, "code: bad_payload" in ended.stderr) == (2, True)
    assert "history of laps: Invalid value 'unheard_of' - at `$[1].events[0].kind`" in ended.stderr
