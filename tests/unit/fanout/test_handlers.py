"""Handlers: how the user's function is found, and what it comes to, whatever it does."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headgate.errors import DefinitionError
from headgate.fanout import handlers
from headgate.fanout.handlers import Loaded, Work, load, perform
from headgate.fanout.model.child_protocol import Done, Failed, Job
from headgate.fanout.model.local_access import LocalAccess
from headgate.fanout.model.sources import BytesSource, LinesSource

MODULE = """
from headgate.fanout.handlers import Work

def lengths(items): return [len(item) for item in items]
def whole(work: Work): return work.chunk_id
def two(items, beta=3.5): return beta
def nothing(): return 1
class Box:
    @staticmethod
    def inside(items): return "inside"
    def __call__(self, items): return "called"
box = Box()
number = 5
import os
import functools
import subprocess
from os import system
def _private(items): return 1
class Shell(subprocess.Popen): pass
@functools.cache
def cached(items): return "cached"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module, in which the worker runs."""
    (tmp_path / "my_handlers.py").write_text(MODULE)
    (tmp_path / "broken_handlers.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "exploding_handlers.py").write_text("raise RuntimeError('at import')\n")
    (tmp_path / "leaving_handlers.py").write_text("import sys\nsys.exit(3)\n")
    monkeypatch.chdir(tmp_path)
    path, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def job(given: list[Any], /, **changes: Any) -> Job:
    values: dict[str, Any] = {
        "key": 1, "run_id": "r", "chunk_id": "chunk-0000010", "group": "g", "lane": "main", "attempt": 1, "start": 10,
        "items": len(given), "source": '{"kind":"list"}', "input_key": "items:10-",
        "input": msgspec.json.encode(given).decode(),
    }  # fmt: skip
    return Job(**{**values, **changes})


def run(function: Callable[[Any], Any], given: Job, *, takes_work: bool = False) -> Done | Failed:
    said: list[int] = []
    return perform(Loaded(function, takes_work), given, said.append)


def done(function: Callable[[Any], Any], given: Job, *, takes_work: bool = False) -> Done:
    answer = run(function, given, takes_work=takes_work)
    assert isinstance(answer, Done), answer
    return answer


def failed(function: Callable[[Any], Any], given: Job, *, takes_work: bool = False) -> Failed:
    answer = run(function, given, takes_work=takes_work)
    assert isinstance(answer, Failed), answer
    return answer


def raising(error: BaseException) -> Callable[[Any], Any]:
    def handler(_: Any) -> Any:
        raise error

    return handler


# Finding.


def test_load__functions_of_a_module__are_found_with_what_they_take(project: Path) -> None:
    assert load("my_handlers:lengths").function(["ab", "c"]) == [2, 1]
    assert not load("my_handlers:lengths").takes_work
    assert load("my_handlers:whole").takes_work
    assert load("my_handlers:Box.inside").function([]) == "inside"
    assert load("my_handlers:box").function([]) == "called"
    assert load("my_handlers:two").function([]) == 3.5


@pytest.mark.parametrize(
    "name",
    ["", ":", "my_handlers", "my_handlers:", ":f", "my_handlers:nowhere", "my_handlers:number", "nowhere:f",
     "broken_handlers:f", "exploding_handlers:f", "my_handlers:Box.nowhere", "my_handlers:nothing", ".os:system",
     "my handlers:f", "my_handlers.deeper:f", "..:f"],
)  # fmt: skip
@pytest.mark.parametrize("is_limited", [False, True], ids=["operator", "fan-out"])
def test_load__what_cannot_be_loaded__says_why(project: Path, name: str, *, is_limited: bool) -> None:
    with pytest.raises(DefinitionError, match="handler"):
        load(name, LocalAccess(folders=(str(project),)) if is_limited else None)


@pytest.mark.parametrize(
    "name",
    ["os:system", "subprocess:call", "builtins:eval", "msgspec.json:encode", "pytest:main", "my_handlers:os.system",
     "my_handlers:os.path.join", "headgate.fanout.handlers:load", "my_handlers:lengths.__globals__.get",
     "my_handlers:Box.__subclasses__", "my_handlers:lengths.__class__", "posix:system", "sys:exit",
     "my_handlers:Box", "my_handlers:box", "my_handlers:_private", "my_handlers:system", "my_handlers:Shell",
     "test.support.script_helper:assert_python_ok", "idlelib.run:main", "__main__:main", "_private_module:f",
     "zipped:f", "installed.site-packages:f"],
)  # fmt: skip
def test_load__a_name_that_came_with_a_fan_out__cannot_be_anything_but_the_projects_own(
    project: Path, name: str
) -> None:
    with pytest.raises(DefinitionError):
        load(name, LocalAccess(folders=(str(project),)))


def test_load__a_package_that_the_operator_trusts__may_be_named_by_a_fan_out(project: Path) -> None:
    access = LocalAccess(folders=(str(project),), packages=("headgate",))
    assert load("my_handlers:lengths", access).function(["a"]) == [1]
    assert load("my_handlers:Box.inside", access).function([]) == "inside"
    assert load("my_handlers:cached", access).function(()) == "cached"
    assert callable(load("headgate.fanout.model.rows:timestamp", access).function)


def test_load__a_package_below_which_the_interpreter_lies__has_none_of_its_modules(project: Path) -> None:
    everything = LocalAccess(folders=("/",))

    assert load("my_handlers:lengths", everything).function(["a"]) == [1]
    for name in (
        "test.support.script_helper:assert_python_ok",
        "idlelib.run:main",
        "pytest:main",
        "headgate.ids:IdMaker",
    ):
        with pytest.raises(DefinitionError, match="not in the project folder"):
            load(name, everything)


def test_load__a_package_with_a_foreign_submodule__runs_nothing_of_the_submodule(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "far.py").write_text("raise SystemExit('it ran')\n")
    (project / "own").mkdir()
    (project / "own" / "__init__.py").write_text(f"__path__.append({str(outside)!r})\n")
    (project / "own" / "linked.py").symlink_to(outside / "far.py")
    access = LocalAccess(folders=(str(project),))

    for name in ("own.far:f", "own.linked:f"):
        with pytest.raises(DefinitionError, match="not in the project folder"):
            load(name, access)


def test_load__a_module_in_the_denied_home_of_the_program__is_refused(project: Path) -> None:
    (project / "state").mkdir()
    (project / "state" / "blob.py").write_text("def f(items): return 1\n")

    with pytest.raises(DefinitionError, match="not in the project folder"):
        load("state.blob:f", LocalAccess(folders=(str(project),), denied=(str(project / "state"),)))


# Calling.


def test_perform__items_as_a_list__and_what_it_returns_is_the_output() -> None:
    answer = done(lambda items: {"sum": sum(items)}, job([1, 2, 3]))

    assert (answer.key, answer.output, answer.item_errors, answer.deferred) == (1, '{"sum":6}', {}, [])
    assert answer.duration_ms >= 0
    assert answer.memory_mb > 0


def test_perform__nothing_returned__no_output() -> None:
    assert done(lambda _: None, job([1])).output is None


def test_perform__the_chunk_itself__reports_all_there_is_to_know() -> None:
    seen: list[Work] = []

    def handler(work: Work) -> None:
        seen.append(work)
        work.output_key = "out/10"
        work.item_error(11, ValueError("bad"))
        work.defer(12)

    answer = done(handler, job(["a", "b", "c"], params='{"beta":3.5}', attempt=4), takes_work=True)

    (work,) = seen
    assert (work.run_id, work.chunk_id, work.group, work.lane, work.attempt) == ("r", "chunk-0000010", "g", "main", 4)
    assert (list(work.items), list(work.places), work.params) == (["a", "b", "c"], [10, 11, 12], {"beta": 3.5})
    assert (answer.output_key, answer.item_errors, answer.deferred) == ("out/10", {11: "ValueError: bad"}, [12])


def test_perform__a_piece_of_the_slow_lane__only_the_deferred_items() -> None:
    answer = done(lambda items: items, job(["a", "b", "c"], lane="slow", items=2, places="[10,12]"))

    assert answer.output == '["a","c"]'


def test_perform__lines_and_bytes_of_files__are_read_there(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"ab\ncd\nef\n")
    lines, stretch = LinesSource(path), BytesSource(path)
    second = list(lines.pieces(2, 0))[1]
    given = job([], start=second.start, items=second.items, input=second.input)
    assert done(lambda items: items, given).output == '["ef"]'

    part = list(stretch.pieces(4, 0))[1]
    given = job([], start=part.start, items=part.items, input=part.input)
    assert done(lambda content: content.decode(), given).output == '"d\\nef"'


def test_perform__the_input_is_gone__is_put_aside_for_good(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"ab\n")
    (piece,) = LinesSource(path).pieces(2, 0)
    path.unlink()

    answer = failed(lambda items: items, job([], start=0, items=1, input=piece.input))

    assert (answer.error_class, answer.is_final) == ("NotFoundError", True)
    assert "input" in answer.message


# Failing.


class OddError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


@pytest.mark.parametrize(
    ("error", "error_class", "said"),
    [
        (ValueError("boom"), "ValueError", "boom"),
        (ValueError(), "ValueError", ""),
        (MemoryError(), "OOM", ""),
        (RecursionError("deep"), "RecursionError", "deep"),
        (StopIteration(5), "StopIteration", "5"),
        (ValueError("caf\udce9"), "ValueError", "caf"),
        (ValueError("x" * 100_000), "ValueError", "xxx"),
        (KeyError("k"), "KeyError", "k"),
        (OddError(), "OddError", ""),
        (TimeoutError("t"), "TimeoutError", "t"),
    ],
)
def test_perform__whatever_is_raised__is_how_the_chunk_ended(error: Exception, error_class: str, said: str) -> None:
    answer = failed(raising(error), job([1]))

    assert (answer.error_class, answer.is_final) == (error_class, False)
    assert said in answer.message
    assert len(answer.message) <= 4096
    assert msgspec.json.encode(answer)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_perform__what_ends_a_process__is_let_through(error: BaseException) -> None:
    with pytest.raises(type(error)):
        run(raising(error), job([1]))


@pytest.mark.parametrize("output", [object(), float("nan"), [float("inf")], "half \udce9"])
def test_perform__an_output_that_json_cannot_say__has_failed_and_says_so(output: Any) -> None:
    answer = failed(lambda _: output, job([1]))

    assert "output" in answer.message


def test_perform__an_output_that_is_too_large__has_failed_and_says_what_to_do() -> None:
    answer = failed(lambda _: "x" * 300_000, job([1]))

    assert "output_key" in answer.message
    assert done(lambda _: "x" * 250_000, job([1])).output is not None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda work: setattr(work, "output_key", 5),
        lambda work: setattr(work, "output_key", Path("x")),
        lambda work: work.item_errors.__setitem__(11, 5),
        lambda work: work.item_errors.__setitem__("x", "bad"),
        lambda work: work.deferred.append("x"),
        lambda work: setattr(work, "deferred", None),
    ],
)
def test_perform__nonsense_in_what_a_handler_may_set__fails_the_chunk_and_nothing_else(
    spoil: Callable[[Work], None],
) -> None:
    answer = run(spoil, job([1, 2]), takes_work=True)

    # Every value must be readable.
    assert isinstance(answer, Failed)
    assert msgspec.json.decode(msgspec.json.encode(answer), type=Failed) == answer


@pytest.mark.parametrize("place", [0, 9, 13, -1])
def test_work__items_that_are_not_its_own__are_refused_where_the_mistake_is(place: int) -> None:
    answer = failed(lambda work: work.defer(place), job([1, 2, 3]), takes_work=True)
    assert (answer.error_class, str(place) in answer.message) == ("ValueError", True)

    answer = failed(lambda work: work.item_error(place, "bad"), job([1, 2, 3]), takes_work=True)
    assert answer.error_class == "ValueError"


def test_work__defer_in_the_slow_lane__is_refused() -> None:
    given = job(["a", "b"], lane="slow", items=1, places="[10]")

    assert failed(lambda work: work.defer(10), given, takes_work=True).error_class == "ValueError"


def test_work__progress__is_passed_on_about_twice_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(handlers, "perf_counter", lambda: now[0])
    said: list[int] = []

    def handler(work: Work) -> None:
        for number in range(1_000):
            now[0] += 0.01
            work.progress(number)

    perform(Loaded(handler, True), job([1]), said.append)

    assert 15 <= len(said) <= 21
    assert said == sorted(said)


# Item by item.


def each(given: list[Any], /, **changes: Any) -> Job:
    return job(given, each=True, **changes)


def test_each__one_bad_item__does_not_fail_the_others() -> None:
    answer = done(lambda item: 10 // item, each([5, 0, 2]))

    assert answer.output == "[2,null,5]"
    assert list(answer.item_errors) == [11]
    assert "ZeroDivisionError" in answer.item_errors[11]


def test_each__all_items_bad__has_failed_with_what_ails_them() -> None:
    answer = failed(raising(ValueError("no licence")), each([1, 2, 3]))

    assert (answer.error_class, answer.message) == ("ValueError", "no licence")
    assert list(answer.item_errors) == [10, 11, 12]


def test_each__out_of_memory__fails_the_chunk() -> None:
    assert failed(raising(MemoryError()), each([1, 2])).error_class == "OOM"


def test_each__an_item_that_takes_too_long__is_deferred_and_the_others_go_on() -> None:
    def handler(item: float) -> float:
        deadline = time.monotonic() + item
        while time.monotonic() < deadline:
            pass
        return item

    answer = done(handler, each([0, 60, 0], item_timeout_seconds=0.05))

    assert (answer.deferred, answer.item_errors, answer.output) == ([11], {}, "[0,null,0]")


@pytest.mark.integration
def test_each__an_item_that_catches_everything__is_deferred_all_the_same() -> None:
    def handler(item: int) -> str:
        try:
            time.sleep(60 * item)
        except Exception:
            return "caught"
        return "done"

    answer = done(handler, each([1, 0], item_timeout_seconds=0.05))

    assert (answer.deferred, answer.output) == ([10], '[null,"done"]')


@pytest.mark.integration
def test_each__the_alarm__never_goes_off_later() -> None:
    before = signal.getsignal(signal.SIGALRM)

    done(lambda item: item, each(list(range(50)), item_timeout_seconds=0.05))
    with pytest.raises(SystemExit):
        run(raising(SystemExit(1)), each([1], item_timeout_seconds=0.05))

    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before
    time.sleep(0.1)


def test_each__no_items_that_say_anything__no_output() -> None:
    assert done(lambda _: None, each([1, 2])).output is None


def test_perform__time_is_over_between_items__defers_those_that_are_left() -> None:
    seen: list[int] = []
    given = job([10, 20, 30, 40], each=True)

    answer = perform(
        Loaded(lambda item: seen.append(item) or item, takes_work=False),  # type: ignore[func-returns-value]
        given,
        lambda _: None,
        should_stop=lambda: len(seen) == 2,
    )

    assert isinstance(answer, Done)
    assert (seen, answer.output, answer.deferred) == ([10, 20], "[10,20,null,null]", [12, 13])
    slow = perform(
        Loaded(lambda item: item, takes_work=False),
        job([1, 2], each=True, lane="slow"),
        lambda _: None,
        should_stop=lambda: True,
    )
    assert isinstance(slow, Done)
    assert slow.output == "[1,2]"


def test_perform__time_runs_out_for_redriven_items__those_left_stay_failed_and_results_are_kept() -> None:
    seen: list[int] = []
    given = job([10, 20, 30, 40], each=True, places="[11,13]", is_rerun=True)

    answer = perform(
        Loaded(lambda item: seen.append(item) or item, takes_work=False),  # type: ignore[func-returns-value]
        given,
        lambda _: None,
        should_stop=lambda: bool(seen),
    )

    assert isinstance(answer, Done)
    assert (seen, answer.output, answer.deferred) == ([20], "[20,null]", [])
    assert answer.item_errors == {13: "TIMEOUT: its worker had no time left; redrive it again"}
