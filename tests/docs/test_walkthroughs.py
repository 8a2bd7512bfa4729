"""Pages to follow work as they are written: commands are typed into one shell, and what is shown is compared."""

from __future__ import annotations

import os
import queue
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.acceptance.program import PROGRAM
from tests.ports import free_port

DOCS = Path(__file__).parents[2] / "docs"
ANSWER_SECONDS_MAX = 60.0
# Between two looks, so that what is looked at gets on with it.
LOOK_SECONDS = 0.5
PORT_SHOWN, GRPC_PORT_SHOWN = "8400", "8401"
# Those only look, so a test, which is faster than a reader, may ask again until all is as shown.
LOOKS = re.compile(
    r"headgate (execution|fanout) (ls|show|history|failures|errors)\b|headgate asl show-execution\b|curl -s \S+/orders/"
    r"|headgate (run|check|incident|period) ls\b|headgate period why\b|headgate pipeline (events|evaluate)\b"
    r"|headgate lineage downstream\b"
)
# What the shell says of a process that was killed, sooner or later.
KILLED = re.compile(r"bash: line \d+: +\d+ Killed")
# What differs each time, and what stands for it.
VARIES = (
    (re.compile(r"\b(evt|wrk|ovr)_[0-9A-Z]{26}\b"), r"\1_ID"),
    (re.compile(r"\bINC-[0-9A-Z]{26}\b"), "INC-ID"),
    (re.compile(r"\((resolved )?\d+[smh] ago\)"), "(AGO)"),
    (re.compile(r"\b\d+[smh] ago\b"), "AGO"),
    (re.compile(r"entries in \d+ chains"), "entries in chains"),
    (re.compile(r"@[0-9a-f]{12}\b"), "@DIGEST"),
    (re.compile(r'"seed":"[0-9A-Z]{26}"'), '"seed":"ID"'),
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?Z?"), "TIME"),
    (re.compile(r'_ms":\d+'), '_ms":TIME'),
    (re.compile(r"home=\S+"), "home=HOME"),
    (re.compile(r"passed in [\d.]+s"), "passed in TIME"),
    (re.compile(r"(completed in|failed in|duration) +[\dms.]+"), r"\1 TIME"),
    (re.compile(r"\b\d+\.\d\ds\b|\b\d\d:\d\d:\d\d\.\d{3}\b"), "TIME"),
    (re.compile(r"\b(run|rerun|readiness|backfill)_[0-9A-Z]{26}\b"), r"\1_ID"),
    # By the time of the answer it may have ended.
    (re.compile(r"\b(ACCEPTED|COMPLETED), within"), "STATUS, within"),
    # On the wall of a pipeline: with the day, if that is another one.
    (re.compile(r"(\d{4}-\d\d-\d\d )?\b\d\d:\d\d\b"), "CLOCK"),
    (re.compile(r"\bCES?T\b"), "ZONE"),
    (re.compile(r"\b\d+(\.\d+)?(ms|s)(?=[ \t]*$)", re.MULTILINE), "TIME"),
    (re.compile(r"\b\d+(\.\d+)?(ms|s)[ \t]+TIME\b"), "TIME TIME"),
    (re.compile(r"[ \t]+"), " "),
)


class File(NamedTuple):
    """A file that the page has its reader write."""

    name: str
    text: str


class Command(NamedTuple):
    """A line that the page has its reader type, and what it shows below."""

    line: str
    shown: str


def steps(page: Path, *, after: str = "") -> Iterator[File | Command]:
    """Give what a page has its reader do, from a heading on if one is named."""
    _, _, rest = page.read_text().partition(after) if after else ("", "", page.read_text())
    for language, text in re.findall(r"^```(\w+)\n(.*?)^```", rest, re.MULTILINE | re.DOTALL):
        if language in ("python", "yaml"):
            name = re.match(r"# ([\w/-]+\.(?:py|yaml))\n", text)
            assert name is not None, f"a file needs its name in the first line: {text}"
            yield File(name.group(1), text)
        else:
            assert (language, text[:2]) == ("console", "$ "), text
            for command in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                line, _, shown = command.partition("\n")
                yield Command(line, shown)


def constant(text: str) -> str:
    for pattern, name in VARIES:
        text = pattern.sub(name, text)
    return "\n".join(line.strip() for line in text.strip().splitlines())


def is_as_shown(output: str, shown: str) -> bool:
    """Whether they are the same but for what varies. A line "…" stands for any number of lines."""
    pattern = re.escape(constant(shown) + "\n").replace(re.escape("…\n"), r"(?:.*\n)*?")
    return re.fullmatch(pattern, constant(output) + "\n") is not None


class Shell:
    """One shell, in which commands are typed one after the other."""

    def __init__(
        self,
        folder: Path,
        ports: tuple[str, str],
        environ: Mapping[str, str] | None = None,
        *,
        within_seconds: float = ANSWER_SECONDS_MAX,
    ) -> None:
        self._ports = ports
        self._within_seconds = within_seconds
        self._marks = 0
        self._lines: queue.Queue[str] = queue.Queue()
        http, grpc = ports
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env={
                "PATH": f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}",
                "COLUMNS": "400",
                "HEADGATE_HTTP": f"127.0.0.1:{http}",
                "HEADGATE_GRPC": f"127.0.0.1:{grpc}",
                **(environ or {}),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name="reads the shell")
        self._reader.start()

    def ask(self, command: Command) -> str:
        """Type a command, and return what it says."""
        return self._output(command, time.monotonic() + self._within_seconds)

    def run(self, command: Command) -> None:
        """Type a command, and fail unless its output is as shown."""
        deadline = time.monotonic() + self._within_seconds
        output = ""
        while True:
            try:
                output = self._output(command, deadline)
            except queue.Empty:
                said = f"{output}\nis what it said before" if output else "nothing"
                pytest.fail(f"$ {command.line}\nis not over in {self._within_seconds:g} s, and said {said}")
            if is_as_shown(output, command.shown):
                return
            assert LOOKS.match(command.line), f"$ {command.line}\n{output}\nis not as shown:\n{command.shown}"
            assert time.monotonic() < deadline, f"$ {command.line}\n{output}\nis never as shown:\n{command.shown}"
            time.sleep(LOOK_SECONDS)

    def _output(self, command: Command, deadline: float) -> str:
        self._marks += 1
        mark = f"--- {self._marks} ---"
        self._type(command.line.replace(f":{PORT_SHOWN}", f":{self._ports[0]}"))
        self._type(f"echo; echo '{mark}'")
        lines: list[str] = []
        is_over = False
        # What runs in the background says what it has to say after its command is over.
        while not is_over or (command.line.endswith("&") and len(lines) < len(command.shown.splitlines())):
            line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            if line.rstrip("\n") == mark:
                is_over = True
            elif line.strip() and not KILLED.match(line):
                lines.append(line)
        for real, shown in zip(self._ports, (PORT_SHOWN, GRPC_PORT_SHOWN), strict=True):
            lines = [line.replace(f":{real}", f":{shown}") for line in lines]
        return "".join(lines)

    def _type(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # With what it has in the background, if the page was not read to its end.
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.stdin.close()
        self._process.wait(ANSWER_SECONDS_MAX)
        self._reader.join(ANSWER_SECONDS_MAX)
        self._process.stdout.close()


def free_ports() -> tuple[str, str]:
    return str(free_port()), str(free_port())


@pytest.mark.timeout(240)
def test_tutorial__every_file_and_command__does_what_the_page_shows(tmp_path: Path) -> None:
    typed: list[str] = []
    with ExitStack() as exits:
        shell = Shell(tmp_path, free_ports())
        exits.callback(shell.close)
        for step in steps(DOCS / "tutorial.md"):
            if isinstance(step, File):
                (tmp_path / "orders" / step.name).write_text(step.text)
            else:
                shell.run(step)
                typed.append(step.line)

    assert (tmp_path / "orders" / ".headgate" / "headgate.db").exists()
    assert typed.count("kill -9 $!") == 2


@pytest.mark.timeout(240)
def test_loop_tutorial__every_file_and_command__does_what_the_page_shows(tmp_path: Path) -> None:
    with ExitStack() as exits:
        shell = Shell(tmp_path, free_ports())
        exits.callback(shell.close)
        for step in steps(DOCS / "tutorial-loop.md"):
            if isinstance(step, File):
                (tmp_path / "shop" / step.name).write_text(step.text)
            else:
                shell.run(step)

    assert (tmp_path / "shop" / "shop.db").exists()


@pytest.mark.timeout(240)
def test_fan_out_page__every_file_and_command__does_what_the_page_shows(tmp_path: Path) -> None:
    with ExitStack() as exits:
        shell = Shell(tmp_path, free_ports())
        exits.callback(shell.close)
        for step in steps(DOCS / "how-to" / "run-a-fan-out.md"):
            if isinstance(step, File):
                (tmp_path / step.name).write_text(step.text)
            else:
                shell.run(step)

    assert (tmp_path / ".headgate" / "headgate.db").exists()


@pytest.mark.timeout(240)
def test_workflow_page__every_command_from_outside__does_what_the_page_shows(tmp_path: Path) -> None:
    with ExitStack() as exits:
        shell = Shell(tmp_path, free_ports())
        exits.callback(shell.close)
        for step in steps(DOCS / "how-to" / "write-workflows.md", after="\n## From outside\n"):
            if isinstance(step, File):
                (tmp_path / step.name).write_text(step.text)
            else:
                shell.run(step)

    assert (tmp_path / "token").exists()


@pytest.mark.timeout(240)
def test_client_page__every_file_and_command__does_what_the_page_shows(tmp_path: Path) -> None:
    with ExitStack() as exits:
        shell = Shell(tmp_path, free_ports())
        exits.callback(shell.close)
        for step in steps(DOCS / "how-to" / "call-from-a-program.md"):
            if isinstance(step, File):
                (tmp_path / step.name).write_text(step.text)
            else:
                shell.run(step)


@pytest.mark.timeout(240)
def test_dataset_page__every_command__does_what_the_page_shows(tmp_path: Path) -> None:
    with ExitStack() as exits:
        shell = Shell(tmp_path, free_ports())
        exits.callback(shell.close)
        for step in steps(DOCS / "how-to" / "watch-a-dataset.md"):
            assert isinstance(step, Command)
            shell.run(step)


@pytest.mark.timeout(240)
def test_state_machine_page__every_command__does_what_the_page_shows(tmp_path: Path) -> None:
    shutil.copytree(DOCS.parent / "examples", tmp_path / "examples")
    with ExitStack() as exits:
        shell = Shell(tmp_path, free_ports())
        exits.callback(shell.close)
        for step in steps(DOCS / "how-to" / "run-a-state-machine.md"):
            assert isinstance(step, Command)
            shell.run(step)

    assert (tmp_path / "check-partitions.svg").read_text().startswith("<svg")


@pytest.mark.timeout(240)
def test_pipeline_page__every_command__does_what_the_page_shows(tmp_path: Path) -> None:
    with ExitStack() as exits:
        shell = Shell(tmp_path, free_ports())
        exits.callback(shell.close)
        for step in steps(DOCS / "how-to" / "run-a-pipeline.md"):
            assert isinstance(step, Command)
            shell.run(step)

    assert (tmp_path / "shop" / ".headgate" / "headgate.db").exists()


@pytest.mark.timeout(240)
def test_archetypes_page__every_command__does_what_the_page_shows(tmp_path: Path) -> None:
    with ExitStack() as exits:
        shell = Shell(tmp_path, free_ports())
        exits.callback(shell.close)
        for step in steps(DOCS / "how-to" / "share-checks-with-archetypes.md"):
            assert isinstance(step, Command)
            shell.run(step)


@pytest.mark.timeout(240)
def test_http_jobs_page__every_mode__does_what_the_page_shows(tmp_path: Path) -> None:
    # The port of the page may be in use.
    http, jobs = free_ports()
    (tmp_path / "pipelines").mkdir()
    with ExitStack() as exits:
        shell = Shell(tmp_path, (http, free_ports()[1]))
        exits.callback(shell.close)
        for step in steps(DOCS / "how-to" / "run-a-job-over-http.md"):
            if isinstance(step, File):
                (tmp_path / step.name).write_text(step.text.replace("8410", jobs))
            else:
                shell.run(step)


@pytest.mark.long
@pytest.mark.timeout(240)
def test_medallion_page__every_command__does_what_the_page_shows(tmp_path: Path) -> None:
    shutil.copytree(DOCS.parent / "examples", tmp_path / "examples")
    # Times in the page, and the same times today.
    today: dict[str, str] = {}
    with ExitStack() as exits:
        shell = Shell(tmp_path, free_ports())
        exits.callback(shell.close)
        for step in steps(DOCS.parent / "examples" / "medallion" / "README.md"):
            assert isinstance(step, Command)
            if step.line.startswith("echo $"):
                today[step.shown.strip()] = shell.ask(step).strip()
                continue
            if "24" in today:
                today["300.0"] = str(12.5 * int(today["24"]))
            names = "|".join(re.escape(name) for name in sorted(today, key=len, reverse=True))
            # A day is also where its hours begin.
            named = rf"\b({names})(?:\b|(?=T\d\d\b))"
            shown = re.sub(named, lambda found: today[found[0]], step.shown) if names else step.shown
            shell.run(step._replace(shown=shown))

    assert {"2026-11-15", "2026-11-16", "24"} <= today.keys()


@pytest.mark.parametrize(
    ("output", "shown", "expected"),
    [
        ("o-1  RUNNING  2026-01-31 10:00:00  \n", "o-1  RUNNING  2020-12-24 20:15:00\n", True),
        ("o-1  FAILED  2026-01-31 10:00:00\n", "o-1  RUNNING  2026-01-31 10:00:00\n", False),
        ("done since 2026-01-31 23:59\n", "done since 00:00\n", True),
        ("one\ntwo\nthree\n", "one\n…\nthree\n", True),
        ("one\nthree\n", "one\n…\nthree\n", True),
        ("one\ntwo\n", "one\n…\nthree\n", False),
        ("one\ntwo\nthree\n", "one\n…\n", True),
        ("one\ntwo\n", "one\n", False),
        ("", "one\n", False),
    ],
)
def test_comparison__output_and_what_is_shown__ignores_what_varies_and_nothing_else(
    output: str, shown: str, expected: bool
) -> None:
    assert is_as_shown(output, shown) is expected
