"""The commands about fan-outs: what they are given, what they print, and how they end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headgate.cli.fanout import fanout
from headgate.cli.fanout import submit as fanout_submit
from headgate.cli.fanout import views as fanout_views
from headgate.cli.fanout.watch import _WatchState, step_of
from headgate.cli.screen import Lines
from headgate.cli.times import duration_text, past_time
from headgate.clock import VirtualClock
from headgate.errors import HeadgateError, SettingsError, UserError
from headgate.fanout.core.attempts import AttemptFailure, AttemptResult
from headgate.fanout.core.splitter import Order
from headgate.fanout.insight.progress import Follower
from headgate.fanout.model.rows import Policy
from headgate.fanout.model.sources import RangeSource
from headgate.fanout.service import FanoutService
from headgate.ids import IdMaker
from headgate.serve.rest.fanout.models import fanout_view
from headgate.settings import Settings
from tests.stores import open_sqlite
from tests.unit.cli.program import invoke


class World:
    """A fan-out of three chunks on a store of its own, and how the API would show it."""

    def __init__(self, folder: Path, **policy: Any) -> None:
        self.clock = VirtualClock()
        self.store = open_sqlite(folder, clock=self.clock)
        self.fanouts = FanoutService(self.store, self.clock, IdMaker(self.clock))
        order = Order(group="g", chunk_size=10, handler="jobs:run", params={"beta": 1}, policy=Policy(**policy))
        self.fanouts.splitter.split(order, RangeSource(0, 30), run_id="r")

    def shown(self, **unusable: str) -> Any:
        fanout = self.fanouts.queries.fanout("r")
        progress = Follower(self.store, self.clock, "r").look()
        return msgspec.json.decode(msgspec.json.encode(fanout_view(fanout, progress, unusable)))

    def end(self, chunk_id: str, failure: AttemptFailure | None = None, result: AttemptResult | None = None) -> None:
        claim = self.fanouts.tracker.start("r", chunk_id, worker="w").claim
        assert claim is not None
        self.clock.advance(2)
        if failure is None:
            self.fanouts.tracker.complete(claim, result or AttemptResult())
        else:
            self.fanouts.tracker.fail(claim, failure)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, max_attempts=1)
    yield made
    made.store.close()


# What is given


def run(*arguments: str, home: Path) -> Any:
    return invoke(arguments, {"HEADGATE_HOME": str(home)})


@pytest.mark.parametrize(
    "arguments",
    [
        ["fanout"],
        ["fanout", "nothing"],
        ["fanout", "--nothing"],
        ["fanout", "show"],
        ["fanout", "ls", "--status", "GOOD"],
        ["fanout", "ls", "--limit", "0"],
        ["fanout", "submit", "--chunk-size", "many"],
        ["fanout", "plot", "r", "pie"],
        ["chunk", "work", "--processes", "0"],
        ["chunk", "show", "r"],
    ],
)
def test_fanout__wrong_usage__exits_with_2(tmp_path: Path, arguments: list[str]) -> None:
    assert run(*arguments, home=tmp_path).exit_code == 2


@pytest.mark.parametrize("arguments", [["execution", "ls", "--limit", "0"], ["schedule", "nothing"], ["nothing"]])
def test_other_commands__wrong_usage__exit_with_2(tmp_path: Path, arguments: list[str]) -> None:
    assert run(*arguments, home=tmp_path).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["submit", "--range", "5"], "user", "A..B"),
        (["submit", "--range", "1..2..3"], "user", "A..B"),
        (["submit", "--range", "0..1", "--param", "x"], "user", "NAME=VALUE"),
        (["submit", "--range", "0..1", "--timeout", "soon"], "user", "--timeout"),
        (["submit", "--range", "0..1", "--tolerated-failures", "some"], "user", "such as 2%"),
        (["submit", "--range", "0..1", "--tolerated-failures", "101%"], "user", "up to 100"),
        (["submit", "--items", "{"], "bad_payload", "not JSON"),
        (["watch"], "user", "--campaign"),
        (["watch", "r", "--stall-after", "x"], "user", "--stall-after"),
        (["redrive", "r"], "user", "--failed"),
        (["tune", "r"], "user", "--priority"),
        (["ls", "--since", "yesterday"], "user", "how long ago"),
    ],
)
def test_fanout__bad_input__is_refused_before_anyone_is_asked(
    tmp_path: Path, arguments: list[str], code: str, said: str
) -> None:
    error = run("fanout", *arguments, home=tmp_path).exception

    assert isinstance(error, HeadgateError)
    assert (error.code, error.exit_code) == (code, 2)
    assert said in error.message


def test_fanout__no_server__says_so_with_75(tmp_path: Path) -> None:
    error = run("fanout", "ls", "--server", "http://127.0.0.1:1", home=tmp_path).exception

    assert isinstance(error, HeadgateError)
    assert error.exit_code == 75


def test_params__json_or_text__are_both_taken() -> None:
    given = ["beta=2.5", "name=grs", "list=[1]", "empty=", "expression=a=b"]

    assert fanout_submit._params(given) == {"beta": 2.5, "name": "grs", "list": [1], "empty": "", "expression": "a=b"}
    assert fanout_submit._params(None) is None


@pytest.mark.parametrize(
    ("given", "moment"),
    [
        ("2026-01-31", "2026-01-31T00:00:00+00:00"),
        ("2026-01-31T06:00:00Z", "2026-01-31T06:00:00+00:00"),
        ("2026-01-31T06:00:00+02:00", "2026-01-31T06:00:00+02:00"),
    ],
)
def test_moment__a_time__is_one_with_a_zone(given: str, moment: str) -> None:
    assert past_time(given, "--since") == moment


def test_moment__how_long_ago__is_before_now() -> None:
    earlier, later = past_time("2h", "--since"), past_time("1s", "--since")

    assert earlier is not None
    assert later is not None
    assert earlier < later
    with pytest.raises(UserError, match="--until"):
        past_time("soon", "--until")


# What is printed


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "?"),
        (0, "0s"),
        (0.0004, "1ms"),
        (0.25, "250ms"),
        (1.0, "1s"),
        (9.94, "9.9s"),
        (12.6, "13s"),
        (61, "1m01s"),
        (3_700, "1h01m"),
        (100_000, "1d03h"),
    ],
)
def test_about__a_time__is_as_precise_as_it_is_long(seconds: float | None, text: str) -> None:
    assert duration_text(seconds) == text


def test_show__running__reports_where_it_stands(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.end("chunk-0000000", result=AttemptResult(item_errors={3: "ValueError: x"}))
    world.end("chunk-0000010", AttemptFailure("KeyError", "gone"))

    fanout_views.show_fanout(world.shown(**{"jobs:run": "no such module"}))
    output = capsys.readouterr().out

    assert "1 of 3 completed, 1 failed, 1 pending" in output
    assert "9 of 30 ok, 11 failed, 10 open" in output
    assert "integers from 0 up to 30, 10 per chunk" in output
    assert "jobs:run" in output
    assert "note: this server cannot run it: no such module" in output
    assert "'headgate fanout failures r' says why" in output


def test_show__ended__reports_how_long_it_took(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    for chunk in ("chunk-0000000", "chunk-0000010", "chunk-0000020"):
        world.end(chunk)
    world.fanouts.new_maintenance().run_once()

    fanout_views.show_fanout(world.shown())
    output = capsys.readouterr().out

    assert "SUCCEEDED" in output
    assert "duration" in output
    assert "remaining" not in output


def _grown(folder: Path, chunks: int) -> World:
    world = World(folder, max_attempts=1)
    world.fanouts.splitter.split(Order(group="g", chunk_size=1), RangeSource(0, chunks), run_id="many")
    return world


def _ends(world: World, numbers: Iterable[int], seconds: float) -> None:
    for number in numbers:
        claim = world.fanouts.tracker.start("many", f"chunk-{number:07d}", worker="w").claim
        assert claim is not None
        world.clock.advance(seconds)
        world.fanouts.tracker.complete(claim, AttemptResult())


def _said(world: World, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """Return what `show` and `watch` print of the fan-out."""
    fanout = world.fanouts.queries.fanout("many")
    progress = Follower(world.store, world.clock, "many").look()
    state = msgspec.json.decode(msgspec.json.encode(fanout_view(fanout, progress, {})))
    fanout_views.show_fanout(state)
    shown = capsys.readouterr().out
    Lines().show(step_of(state))
    return shown, capsys.readouterr().out


def test_show_and_watch__one_chunk_hangs__say_that_the_end_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = _grown(tmp_path, 40)
    _ends(world, range(39), 1.0)
    world.fanouts.tracker.start("many", "chunk-0000039", worker="w")
    world.clock.advance(70)

    for output in _said(world, capsys):
        assert (
            "unknown: chunk-0000039 has been running for 70 s, and the others took at most 1 s; its time-out is 15 min"
        ) in " ".join(output.split())
    world.store.close()


def test_show_and_watch__many_chunks_left__give_the_same_band(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = _grown(tmp_path, 400)
    _ends(world, range(100), 1.0)
    world.fanouts.tracker.start("many", "chunk-0000100", worker="w")

    for output in _said(world, capsys):
        assert "4\u20136 min" in output
    world.store.close()


def test_show_and_watch__slow_lane_open__are_not_done_and_not_without_time_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = _grown(tmp_path, 5)
    for number in range(5):
        claim = world.fanouts.tracker.start("many", f"chunk-{number:07d}", worker="w").claim
        assert claim is not None
        world.fanouts.tracker.complete(claim, AttemptResult(deferred=(number,)))

    shown, watched = _said(world, capsys)

    assert "unknown: 0 chunks of the slow lane are completed; an estimate needs 3" in shown
    assert "50%" in watched
    assert "5 open in the slow lane; remaining unknown" in watched
    world.store.close()


def test_show__local_work__has_no_cost(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.end("chunk-0000000")

    fanout_views.show_fanout(world.shown())

    assert "cost" not in capsys.readouterr().out


def test_show__work_with_a_price__has_currency_and_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World(tmp_path, price_per_gb_second=2.0)
    world.end("chunk-0000000")

    fanout_views.show_fanout(world.shown())

    assert "4.00 USD (policy of the fan-out)" in capsys.readouterr().out
    world.store.close()


def test_show__budget_without_a_price__says_that_it_is_not_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(tmp_path, budget=2.0)

    fanout_views.show_fanout(world.shown())

    assert "note: the budget is not checked: no price is set" in capsys.readouterr().out
    world.store.close()


def test_csv__chunks__have_one_line_each_whatever_the_error_says(tmp_path: Path) -> None:
    chunks = [
        {"run_id": "r", "chunk_id": "chunk-0000000", "error": 'a "quote",\nand a line', "output": {"x": 1}},
        {"run_id": "r", "chunk_id": "chunk-0000010"},
    ]
    path = tmp_path / "chunks.csv"
    with path.open("w", newline="") as file:
        assert fanout._write_csv(iter(chunks), file) == 2

    import csv

    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["chunk_id"] for row in rows] == ["chunk-0000000", "chunk-0000010"]
    assert rows[0]["error"] == 'a "quote",\nand a line'


def test_jsonl__chunks__are_read_back_as_they_were(tmp_path: Path) -> None:
    chunks = [{"chunk_id": "a", "error": "x\ny"}, {"chunk_id": "b"}]
    path = tmp_path / "chunks.jsonl"
    with path.open("w") as file:
        fanout._write_jsonl(iter(chunks), file)

    assert [json.loads(line) for line in path.read_text().splitlines()] == chunks


# Following


def test_watched__nothing_happens__has_stalled_after_the_given_time(world: World) -> None:
    watched = _WatchState(["r"], 30.0, world.clock)
    assert watched.apply(world.shown())
    world.clock.advance(29)
    assert watched.stall() is None
    # The same again is no sign of life.
    assert not watched.apply(world.shown())
    world.clock.advance(1)

    stalled = watched.stall()

    assert stalled is not None
    assert "headgate chunk work --run r" in stalled


def test_watched__something_happens__begins_to_wait_anew(world: World) -> None:
    watched = _WatchState(["r"], 30.0, world.clock)
    watched.apply(world.shown())
    world.clock.advance(25)
    world.end("chunk-0000000")
    assert watched.apply(world.shown())
    world.clock.advance(25)

    assert watched.stall() is None


def test_watched__its_policy_says_stalled__is_so_unless_reported_never(world: World) -> None:
    world.clock.advance(3_000)
    by_policy, never = _WatchState(["r"], None, world.clock), _WatchState(["r"], 0.0, world.clock)
    for watched in (by_policy, never):
        watched.apply(world.shown())
    world.clock.advance(3_000)

    assert "no progress since" in (by_policy.stall() or "")
    assert never.stall() is None


def test_watched__paused__has_not_stalled(world: World) -> None:
    watched = _WatchState(["r"], 1.0, world.clock)
    world.fanouts.control.pause("r")
    watched.apply(world.shown())
    world.clock.advance(60)

    assert watched.stall() is None
    assert watched.hint() is None


def test_watched__no_one_works__is_hinted_at_once_and_once(world: World) -> None:
    watched = _WatchState(["r"], None, world.clock)
    watched.apply(world.shown())
    assert watched.hint() is None
    world.clock.advance(11)

    assert "no worker runs its chunks" in (watched.hint() or "")
    assert watched.hint() is None


def test_watched__server_cannot_load_the_handler__is_hinted_without_delay(world: World) -> None:
    watched = _WatchState(["r"], None, world.clock)
    watched.apply(world.shown(**{"jobs:run": "handler 'jobs:run': no such module"}))

    assert "this server cannot run it: handler 'jobs:run': no such module" in (watched.hint() or "")


def test_watched__several__is_over_when_all_are(world: World) -> None:
    watched = _WatchState(["r", "other"], None, world.clock)
    for chunk in ("chunk-0000000", "chunk-0000010", "chunk-0000020"):
        world.end(chunk)
    world.fanouts.new_maintenance().run_once()
    state = world.shown()

    watched.apply(state)
    assert not watched.all_ended()
    watched.apply({**state, "run_id": "other"})
    assert watched.all_ended()


# Settings


def test_settings__of_fanouts__are_read_and_checked() -> None:
    given = Settings.load({"HEADGATE_FANOUT_PROCESSES": "0", "HEADGATE_FANOUT_HANDLERS": "prices, tiles.grs"}, None, {})

    assert (given.fanout.processes, given.fanout.handlers) == (0, ("prices", "tiles.grs"))
    assert (Settings().fanout.processes, Settings().fanout.handlers) == (2, ())
    for name, value in (("PROCESSES", "-1"), ("PROCESSES", "many"), ("HANDLERS", "a b"), ("HANDLERS", "a:b")):
        with pytest.raises(SettingsError, match=f"fanout.{name.lower()}"):
            Settings.load({f"HEADGATE_FANOUT_{name}": value}, None, {})
