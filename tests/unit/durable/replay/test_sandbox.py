"""What keeps real I/O, threads and clocks out of workflow code."""

from __future__ import annotations

import asyncio
import concurrent.futures
import datetime as dt
import glob
import importlib
import linecache
import logging
import math
import os
import random
import secrets
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.request
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime
from math import ceil
from os import environ
from pathlib import Path
from random import choice
from random import random as draw
from threading import Lock as Mutex
from time import monotonic
from time import time as t
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import headgate
from headgate.durable.replay import sandbox
from headgate.durable.replay.determinism_lint import lint
from headgate.errors import UserError, WorkflowViolationError


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    sandbox.install()


@contextmanager
def _workflow(label: str = "fulfil e1") -> Iterator[None]:
    sandbox.enter(label)
    try:
        yield
    finally:
        sandbox.leave()


def _connect() -> None:
    with socket.socket() as client:
        client.connect(("127.0.0.1", 9))


def _calls() -> dict[str, tuple[Callable[[], object], str]]:
    return {
        "open": (lambda: open("/etc/hostname"), "open('/etc/hostname') is refused"),  # noqa: PTH123
        "write": (lambda: Path("/tmp/x").write_text("x"), "open("),
        "os.open": (lambda: os.open("/etc/hostname", os.O_RDONLY), "open('/etc/hostname')"),
        "listdir": (lambda: os.listdir("/"), "os.listdir('/') is refused"),  # noqa: PTH208
        "iterdir": (lambda: list(Path("/").iterdir()), "os.listdir" if sys.version_info < (3, 13) else "os.scandir"),
        "scandir": (lambda: os.scandir("/"), "os.scandir"),
        "glob": (lambda: glob.glob("/*"), "glob.glob"),  # noqa: PTH207
        "mkdir": (lambda: Path("/nowhere/x").mkdir(), "os.mkdir"),
        "unlink": (lambda: Path("/nowhere/x").unlink(), "os.remove"),
        "rename": (lambda: Path("/nowhere/x").rename("/nowhere/y"), "os.rename"),
        "chmod": (lambda: Path("/nowhere/x").chmod(0o600), "os.chmod is refused"),
        "putenv": (lambda: os.putenv("HEADGATE_TEST_GUARD", "1"), "pass settings as input"),
        "environ": (lambda: environ.__setitem__("HEADGATE_TEST_GUARD", "1"), "pass settings as input"),
        "copy": (lambda: shutil.copyfile("/nowhere/a", "/nowhere/b"), "shutil.copyfile"),
        "rmtree": (lambda: shutil.rmtree("/nowhere/x"), "shutil.rmtree"),
        "tempfile": (tempfile.mkdtemp, "tempfile.mkdtemp"),
        "socket": (_connect, "socket.__new__"),
        "resolve": (lambda: socket.getaddrinfo("localhost", 80), "socket.getaddrinfo"),
        "urllib": (lambda: urllib.request.urlopen("http://user:secret@127.0.0.1:9/"), "urllib.Request"),
        "sqlite": (lambda: sqlite3.connect(":memory:"), "sqlite3.connect"),
        "popen": (lambda: subprocess.run(["true"], check=False), "subprocess.Popen"),
        "system": (lambda: os.system("echo secret"), "os.system"),
        "fork": (os.fork, "os.fork"),
        "exec": (lambda: os.execv("/nowhere/program", ["program"]), "os.exec"),
        "spawn": (lambda: os.posix_spawn("/nowhere/program", ["program"], {}), "os.posix_spawn"),
        "kill": (lambda: os.kill(os.getpid(), 0), "os.kill"),
        "thread": (threading.Thread(target=int).start, "single thread: use asyncio.gather"),
        "pool": (lambda: concurrent.futures.ThreadPoolExecutor(1).submit(int), "_thread.start_"),
        "input": (input, "use hg.wait_signal()"),
    }


@pytest.mark.integration
@pytest.mark.parametrize("name", list(_calls()))
def test_watch__what_only_an_activity_may_do__is_refused_by_name(name: str) -> None:
    call, message = _calls()[name]
    with pytest.raises(WorkflowViolationError) as caught, _workflow():
        call()
    text = str(caught.value)
    assert text.startswith("fulfil e1: ")
    assert message in text
    assert "in workflow code; " in text
    assert "secret" not in text
    assert sandbox.violation() is caught.value
    assert isinstance(caught.value, UserError)


def test_watch__pure_code__goes_on() -> None:
    with _workflow():
        assert sorted({3, 1, 2}) == [1, 2, 3]
        assert id(object())
        print("a line")
        assert eval("1 + 1") == 2
        assert dt.timedelta(days=1).total_seconds() == 86_400
    assert sandbox.violation() is None


def test_watch__outside_of_workflow_code__allows_everything(tmp_path: Path) -> None:
    with _workflow():
        pass
    (tmp_path / "x").write_text("x")
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    assert sandbox.violation() is None


def test_watch__another_thread__is_not_meant(tmp_path: Path) -> None:
    inside = threading.Event()
    done = threading.Event()
    seen: list[WorkflowViolationError | None] = []

    def other() -> None:
        inside.wait(10)
        (tmp_path / "x").write_text("x")
        seen.append(sandbox.violation())
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with _workflow():
        inside.set()
        assert done.wait(10)
        with pytest.raises(WorkflowViolationError):
            (tmp_path / "y").write_text("y")
    thread.join()
    assert seen == [None]
    assert (tmp_path / "x").exists()
    assert not (tmp_path / "y").exists()


def test_violation__caught_by_user_code__is_still_known() -> None:
    with _workflow():
        try:
            open("/etc/hostname").close()  # noqa: PTH123
        except Exception:
            pass
        try:
            os.scandir("/")
        except Exception:
            pass
    found = sandbox.violation()
    assert found is not None
    assert "open('/etc/hostname')" in str(found)


def test_violation__next_enter__forgets_it() -> None:
    with pytest.raises(WorkflowViolationError), _workflow():
        os.scandir("/")
    assert sandbox.violation() is not None
    with _workflow():
        assert sandbox.violation() is None


def test_enter__nested__keeps_the_mark_and_the_first_violation() -> None:
    with _workflow("outer"):
        with pytest.raises(WorkflowViolationError, match=r"^outer: "):
            os.scandir("/")
        with _workflow("inner"), pytest.raises(WorkflowViolationError, match=r"^inner: "):
            os.scandir("/")
        with pytest.raises(WorkflowViolationError, match=r"^outer: "):
            os.scandir("/")
        first = sandbox.violation()
    assert first is not None
    assert str(first).startswith("outer: ")
    os.scandir("/").close()


def test_install__twice__adds_one_hook() -> None:
    program = (
        "import sys\n"
        "added = []\n"
        "add = sys.addaudithook\n"
        "sys.addaudithook = lambda hook: (added.append(hook), add(hook))\n"
        "from headgate.durable.replay import sandbox as guard\n"
        "guard.install(); guard.install()\n"
        "print(len(added))\n"
        "guard.enter('w')\n"
        "try:\n"
        "    open('/etc/hostname')\n"
        "except Exception as exc:\n"
        "    print(type(exc).__name__)\n"
        "guard.leave()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "WorkflowViolationError"]
    assert done.stderr == ""


def _write_module(folder: Path, name: str, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()


def test_watch__import__is_let_through_with_what_the_module_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data.txt"
    data.write_text("7")
    source = f"from pathlib import Path\nimport colorsys\nVALUE = Path({str(data)!r}).read_text()\n"
    _write_module(tmp_path, "guarded_module", source, monkeypatch)
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with _workflow():
        found: Any = importlib.import_module("guarded_module")
    assert found.VALUE == "7"
    assert sandbox.violation() is None


def test_watch__function_of_an_imported_module__is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write_module(tmp_path, "guarded_reader", "def read():\n    return open('/etc/hostname').read()\n", monkeypatch)
    with pytest.raises(WorkflowViolationError), _workflow():
        importlib.import_module("guarded_reader").read()


def test_watch__error_shown_with_its_source__is_let_through() -> None:
    linecache.clearcache()
    with _workflow():
        try:
            math.sqrt(-1)
        except ValueError:
            shown = traceback.format_exc()
    assert "math.sqrt(-1)" in shown
    assert sandbox.violation() is None


def test_watch__log_to_a_file_that_opens_late__is_let_through(tmp_path: Path) -> None:
    handler = logging.FileHandler(tmp_path / "log.txt", delay=True)
    logger = logging.Logger("guarded")
    logger.addHandler(handler)
    with _workflow():
        logger.warning("a line")
    handler.close()
    assert (tmp_path / "log.txt").read_text() == "a line\n"


def test_watch__warning__is_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    linecache.clearcache()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        # As outside of a test, where a warning is shown with its line of source.
        monkeypatch.setattr(warnings, "showwarning", lambda *found: shown.append(warnings.formatwarning(*found[:4])))
        with _workflow():
            warnings.warn("careful", stacklevel=1)
    assert len(shown) == 1
    assert 'warnings.warn("careful", stacklevel=1)' in shown[0]
    assert sandbox.violation() is None


def test_watch__time_zone__is_let_through() -> None:
    with _workflow():
        zone = ZoneInfo.no_cache("Europe/Berlin")
    assert datetime(2026, 7, 1, tzinfo=zone).utcoffset() == dt.timedelta(hours=2)


def test_watch__garbage_collected_meanwhile__is_let_through() -> None:
    class Closes:
        def __del__(self) -> None:
            open("/etc/hostname").close()  # noqa: PTH123

    with _workflow():
        Closes()
    assert sandbox.violation() is None


hg: Any = headgate


def _line_of(function: Callable[..., object], text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    first = function.__code__.co_firstlineno
    return next(number for number, line in enumerate(lines, 1) if number >= first and text in line)


async def _clocks(when: datetime = datetime.now()) -> object:  # noqa: B008, DTZ005 - a default is not workflow code
    a = time.time()
    b = t()
    c = monotonic()
    time.sleep(1)
    d = [dt.datetime.now(), datetime.utcnow(), date.today(), datetime.today()]  # noqa: DTZ002, DTZ003, DTZ005, DTZ011
    e = time.perf_counter_ns
    await asyncio.sleep(1)
    return a, b, c, d, e, when


async def _chance() -> object:
    return random.random(), draw(), choice([1]), random.Random(), uuid.uuid4(), uuid.uuid1(), secrets.token_hex()


async def _world() -> object:
    os.environ["A"] = environ.get("B", "")
    return os.getenv("C"), environ["D"]


async def _threads() -> object:
    lock = Mutex()
    threading.Thread(target=print).start()
    concurrent.futures.ThreadPoolExecutor()
    return lock


async def _network() -> object:
    urllib.request.urlopen("http://x")
    subprocess.run(["x"], check=False)
    socket.create_connection(("x", 1))
    return open("x").read()  # noqa: PTH123


async def _loops() -> object:
    asyncio.run(asyncio.sleep(0))
    await asyncio.to_thread(print)
    await asyncio.create_subprocess_exec("x")
    await asyncio.create_subprocess_shell("x")
    return asyncio.as_completed([asyncio.sleep(0)])


async def _local_imports() -> object:
    import secrets as s
    import urllib.request as client
    from time import time as clock
    from uuid import uuid4

    return s.token_hex(), client.urlopen("x"), clock(), uuid4()


async def _nested() -> object:
    def inner() -> float:
        return time.time()

    later: Callable[[], float] = lambda: random.random()  # noqa: E731
    return [inner(), later(), *[uuid.uuid4() for _ in range(3)]]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (
            _clocks,
            [
                "time.time(): use hg.now()",
                "time.time(): use hg.now()",
                "time.monotonic(): use hg.now()",
                "time.sleep(): use `await hg.sleep()`",
                "datetime.date.today(): use hg.now()",
                "datetime.datetime.now(): use hg.now()",
                "datetime.datetime.today(): use hg.now()",
                "datetime.datetime.utcnow(): use hg.now()",
                "time.perf_counter_ns(): use hg.now()",
            ],
        ),
        (
            _chance,
            [
                "random.Random(): use hg.random()",
                "random.choice(): use hg.random()",
                "random.random(): use hg.random()",
                "secrets.token_hex(): use hg.random()",
                "uuid.uuid1(): use hg.uuid()",
                "uuid.uuid4(): use hg.uuid()",
            ],
        ),
        (_world, ["os.environ: ", "os.environ: ", "os.getenv(): "]),
        (
            _threads,
            [
                ("threading.Lock(): ", "_thread.lock(): "),
                "threading.Thread(): ",
                "concurrent.futures.ThreadPoolExecutor(): ",
            ],
        ),
        (
            _network,
            [
                "urllib.request.urlopen(): call it in an activity",
                "subprocess.run(): ",
                "socket.create_connection(): ",
                "open(): call it in an activity",
            ],
        ),
        (
            _loops,
            [
                "asyncio.run(): await the coroutine",
                "asyncio.to_thread(): ",
                "asyncio.create_subprocess_exec(): ",
                "asyncio.create_subprocess_shell(): ",
                "asyncio.as_completed(): its order is not the same twice; use asyncio.wait()",
            ],
        ),
        (
            _local_imports,
            ["secrets.token_hex(): ", "time.time(): ", "urllib.request.urlopen(): ", "uuid.uuid4(): use hg.uuid()"],
        ),
        (_nested, ["time.time(): use hg.now()", "random.random(): use hg.random()", "uuid.uuid4(): use hg.uuid()"]),
    ],
)
def test_lint__what_replay_would_not_repeat__is_found(
    function: Callable[..., object], expected: list[str | tuple[str, ...]]
) -> None:
    found = [finding.partition(": ")[2] for finding in lint(function).findings]
    assert len(found) == len(expected)
    assert all(finding.startswith(start) for finding, start in zip(found, expected, strict=True)), found


def test_lint__finding__has_the_line_of_the_file() -> None:
    expected = [
        f"line {_line_of(_nested, 'return time.time()')}: time.time(): use hg.now()",
        f"line {_line_of(_nested, 'later: Callable')}: random.random(): use hg.random()",
        f"line {_line_of(_nested, 'return [inner()')}: uuid.uuid4(): use hg.uuid()",
    ]
    assert lint(_nested).findings == expected


class Clock:
    def time(self) -> float:
        return 1.0

    def now(self) -> float:
        return 1.0

    random = time
    environ = {"a": 1}


clock = Clock()
BPF = random.BPF  # type: ignore[attr-defined]


async def _innocent(random: Clock, uuid: Any, os: Any, order: time.struct_time) -> object:
    when: datetime = order  # type: ignore[assignment]
    lock: threading.Lock | None = None
    try:
        time = clock.time() + clock.now() + random.random()
        open = uuid.uuid4
        print(time, open(), os.environ, BPF, ceil(1.5), deque([1]), math.floor(2.5))
        if isinstance(order, sqlite3.Error):
            raise subprocess.SubprocessError("x")
        raise socket.timeout("x")  # noqa: UP041
    except subprocess.CalledProcessError as secrets:
        secrets.add_note("x")
    for threading_ in [SimpleNamespace(Thread=print)]:
        threading_.Thread()
    await asyncio.wait([asyncio.ensure_future(asyncio.sleep(1))])
    await asyncio.gather(asyncio.sleep(1))
    rng = __import__("random").Random(7)
    return when, lock, rng, uuid5(), dt.datetime(2026, 1, 1)  # noqa: DTZ001


def uuid5() -> str:
    return "x"


async def _seeded() -> object:
    return random.Random(7).random(), secrets.compare_digest("a", "b"), uuid.uuid5(uuid.NAMESPACE_DNS, "x")


async def _side_effects() -> object:
    def roll() -> float:
        return random.random()

    a = hg.side_effect(lambda: random.random())
    b = hg.side_effect(roll)
    return a, b, hg.side_effect(uuid.uuid4)


@pytest.mark.parametrize("function", [_innocent, _seeded, _side_effects])
def test_lint__names_that_only_look_alike__are_passed_over(function: Callable[..., object]) -> None:
    assert lint(function).findings == []


def test_lint__inside_a_function_and_a_closure__is_found() -> None:
    watch = time.time
    text = """
not indented"""

    async def workflow() -> object:
        shown = """
also not indented"""
        return watch(), text, shown

    (finding,) = lint(workflow).findings
    assert finding.endswith(": time.time(): use hg.now()")
    assert finding.startswith(f"line {_line_of(workflow, 'return watch()')}:")


def test_lint__no_source__says_nothing() -> None:
    scope: dict[str, Any] = {}
    exec("import time\nasync def f():\n    return time.time()", scope)
    assert lint(scope["f"]).findings == []
    assert lint(len).findings == []
    assert lint(lambda: time.time()).findings == []
    assert lint(Clock).findings == []


def test_lint__wrapped__looks_below() -> None:
    import functools

    @functools.wraps(_nested)
    def outer() -> object:
        return _nested()

    assert lint(outer).findings == lint(_nested).findings
