"""Fits: thousands of Gaussian fits as the fan-out of a pipeline, with handlers that do what handlers do wrong.

Some chunks raise, hang, leak memory, leave a process behind, crash or print megabytes. Meanwhile the server is killed
with kill -9, and once the server and its children are stopped with SIGSTOP. At the end every failure has a traceback,
the code is fixed, the failures are redriven, and the run of the pipeline completes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tests.acceptance import program
from tests.acceptance.program import Server, until
from tests.soak.figures import Figure

PIPELINE: Final = "fits"
DATE: Final = "2026-01-05"
CHUNK_SIZE: Final = 20
# Which chunk of each fifty does what. The last two end well all the same.
RAISES, HANGS, LEAKS, CRASHES, FORKS, PRINTS = 7, 17, 23, 31, 37, 43
EVERY: Final = 50
ERROR_CLASSES: Final = {RAISES: "ValueError", HANGS: "TIMEOUT", LEAKS: "OOM", CRASHES: "CRASH"}
END_SECONDS_MAX: Final = 1_800.0

FITS: Final = """\
import json
import math
import random
from pathlib import Path

import faults

CHANNELS = 40


def spectrum(number):
    draw = random.Random(number)
    truth = (draw.uniform(5, 20), draw.uniform(12, 28), draw.uniform(2, 5))
    return truth, [model(truth, x) + draw.gauss(0, 0.1) for x in range(CHANNELS)]


def model(parameters, x):
    height, centre, width = parameters
    return height * math.exp(-0.5 * ((x - centre) / width) ** 2)


def fit(values):
    peak = max(range(CHANNELS), key=values.__getitem__)
    found, damping = (values[peak], float(peak), 3.0), 1e-3
    error = squares(found, values)
    for _ in range(30):
        tried = step(found, values, damping)
        if tried[2] > 0 and (less := squares(tried, values)) < error:
            if error - less < 1e-9:
                return tried
            found, error, damping = tried, less, damping / 10
        else:
            damping *= 10
    return found


def squares(parameters, values):
    return sum((value - model(parameters, x)) ** 2 for x, value in enumerate(values))


def step(parameters, values, damping):
    height, centre, width = parameters
    normal, right = [[0.0] * 3 for _ in range(3)], [0.0] * 3
    for x, value in enumerate(values):
        there = model(parameters, x)
        away = (x - centre) / width
        slopes = (there / height, there * away / width, there * away * away / width)
        for i in range(3):
            right[i] += slopes[i] * (value - there)
            for j in range(3):
                normal[i][j] += slopes[i] * slopes[j]
    for i in range(3):
        normal[i][i] *= 1 + damping
    return tuple(old + change for old, change in zip(parameters, solved(normal, right)))


def solved(matrix, right):
    rows = [[*row, value] for row, value in zip(matrix, right)]
    for i in range(3):
        pivot = max(range(i, 3), key=lambda row: abs(rows[row][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for below in range(i + 1, 3):
            factor = rows[below][i] / rows[i][i]
            rows[below] = [a - factor * b for a, b in zip(rows[below], rows[i])]
    answer = [0.0] * 3
    for i in (2, 1, 0):
        answer[i] = (rows[i][3] - sum(rows[i][j] * answer[j] for j in range(i + 1, 3))) / rows[i][i]
    return answer


def run(numbers):
    faults.act(numbers[0])
    fitted = {}
    for number in numbers:
        truth, values = spectrum(number)
        found = fit(values)
        fitted[number] = max(abs(a - b) for a, b in zip(found, truth))
    target = Path("fitted") / f"{numbers[0]}.json"
    written = target.with_suffix(f".{id(fitted)}.new")
    written.write_text(json.dumps(fitted))
    written.replace(target)
    return len(fitted)
"""
FAULTS: Final = f"""\
import ctypes
import os
import sys
import time


def act(first):
    place = first // {CHUNK_SIZE} % {EVERY}
    if place == {RAISES}:
        raise ValueError(f"spectrum {{first}} has no peak")
    if place == {HANGS}:
        wait_for_ever()
    if place == {LEAKS}:
        leak()
    if place == {CRASHES}:
        ctypes.string_at(0)
    if place == {FORKS} and os.fork() == 0:
        time.sleep(600)
        os._exit(0)
    if place == {PRINTS}:
        for line in range(20_000):
            print("channel", line, "of", first, "x" * 80)
        print("the last line", file=sys.stderr)


def wait_for_ever():
    while True:
        time.sleep(1)


def leak():
    held = []
    while True:
        held.append(bytearray(16_000_000))
"""
FIXED: Final = "def act(first):\n    pass\n"
DEFINITION: Final = """\
id: fits
writes: [urn:dp:survey:fits:v1]
trigger:
  type: fan-out
  check_interval: 1s
  config:
    handler: fits:run
    range: [0, {items}]
    chunk_size: {size}
    policy: {{max_attempts: 1, timeout_seconds: {timeout:g}, memory_mb: 400}}
retry: {{attempts: 1}}
"""


class Survey:
    """A project folder with the pipeline, and its server, which may be killed and started again."""

    def __init__(self, folder: Path, items: int, timeout_seconds: float) -> None:
        self.folder, self.items = folder, items
        (folder / "pipelines").mkdir(parents=True)
        (folder / "fitted").mkdir()
        (folder / "fits.py").write_text(FITS)
        (folder / "faults.py").write_text(FAULTS)
        definition = DEFINITION.format(items=items, size=CHUNK_SIZE, timeout=timeout_seconds)
        (folder / "pipelines" / "fits.yaml").write_text(definition)
        self.server = self._up()
        self.started = 0
        self.run_id = ""

    def __enter__(self) -> Survey:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.__exit__(None, None, None)

    def start(self) -> None:
        """Start the run of a day."""
        self.printed("run", "start", PIPELINE, "--date", DATE, "--reason", "the survey of Monday")
        until(lambda: bool(self._runs() and self._runs()[0].get("run_id")), "the run has an id", 60)
        self.run_id = str(self._runs()[0]["run_id"])

    def printed(self, *arguments: str) -> str:
        """Return the output of a command, which must succeed."""
        ended = program.run(*arguments, folder=self.folder)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def kill(self) -> None:
        """Kill the server, and start another."""
        self.server.process.kill()
        self.server.process.wait()
        self.server = self._up()
        self.started += 1

    def freeze(self, seconds: float) -> None:
        """Stop the server and its children for a while, as the suspension of a laptop does."""
        stopped = family_of(self.server.process.pid)
        for pid in stopped:
            _send(pid, signal.SIGSTOP)
        time.sleep(seconds)
        for pid in reversed(stopped):
            _send(pid, signal.SIGCONT)

    def shown(self) -> dict[str, Any]:
        """Return the fan-out as the API shows it."""
        found: dict[str, Any] = self.server.get(f"/fanouts/{self.run_id}")
        return found

    def status(self) -> str:
        """Return the status of the run."""
        return str(self._runs()[0]["status"])

    def done(self) -> int:
        """Return how many chunks have ended."""
        counts = self.shown()["counts"]
        return int(counts["done"]) + int(counts["dead"])

    def failures(self) -> list[dict[str, Any]]:
        """Return all failed chunks."""
        found: list[dict[str, Any]] = json.loads(
            self.printed("fanout", "failures", self.run_id, "--limit", "1000", "--json")
        )["chunks"]
        return found

    def chunks(self) -> list[dict[str, Any]]:
        """Return up to a hundred chunks, the first ones."""
        found: list[dict[str, Any]] = self.server.get(f"/fanouts/{self.run_id}/chunks?limit=100")["chunks"]
        return found

    def fix(self) -> None:
        """Replace the code that fails."""
        (self.folder / "faults.py").write_text(FIXED)

    def until_status(self, status: str) -> None:
        """Wait for the status of the run."""
        until(lambda: self.status() == status, f"the run is {status}", END_SECONDS_MAX)

    def _runs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.server.get(f"/pipelines/{PIPELINE}/runs")["runs"]
        return found

    def _up(self) -> Server:
        return Server(self.folder, "--pipelines", "pipelines")


def run_story(survey: Survey, kills: int, freeze_seconds: float) -> dict[str, Any]:
    """Run the fan-out under kills and one freeze until it has ended with failures, and return what it shows then."""
    draw = random.Random(11)
    survey.start()
    chunks = -(-survey.items // CHUNK_SIZE)
    # The kills and the freeze come at moments spread over the first two thirds of the work.
    moments = sorted(draw.sample(range(chunks // 20, 2 * chunks // 3), kills + 1))
    for number, moment in enumerate(moments):
        until(lambda moment=moment: survey.done() >= moment, f"{moment} chunks have ended", END_SECONDS_MAX)  # type: ignore[misc]
        if number == kills // 2:
            survey.freeze(freeze_seconds)
        else:
            survey.kill()
    survey.until_status("FAILED")
    return survey.shown()


def expected_failures(items: int) -> Counter[str]:
    """Return how many chunks fail with each error class."""
    places = (start // CHUNK_SIZE % EVERY for start in range(0, items, CHUNK_SIZE))
    return Counter(ERROR_CLASSES[place] for place in places if place in ERROR_CLASSES)


def wrong_failures(survey: Survey, failures: list[dict[str, Any]]) -> list[str]:
    """Return what is wrong with the failures: one that should not be, one that is missing, one without a stack."""
    found = []
    for failure in failures:
        chunk_id, error_class = failure["chunk_id"], failure["error_class"]
        place = int(failure["start"]) // CHUNK_SIZE % EVERY
        if ERROR_CLASSES.get(place) != error_class:
            found.append(f"{chunk_id}: {error_class}: {failure.get('error')}")
        logs = survey.printed("chunk", "logs", survey.run_id, chunk_id)
        if "faults.py" not in logs or "in act" not in logs:
            found.append(f"{chunk_id}: no stack in its log: {logs[:500]}")
    wanted, there = expected_failures(survey.items), Counter(failure["error_class"] for failure in failures)
    if wanted != there:
        found.append(f"failures are {dict(there)}, not {dict(wanted)}")
    return found


def wrong_fits(survey: Survey) -> list[str]:
    """Return the spectra that were not fitted, and those whose fit is off."""
    fitted: dict[int, float] = {}
    for file in (survey.folder / "fitted").glob("*.json"):
        fitted |= {int(number): off for number, off in json.loads(file.read_text()).items()}
    missing = [f"{number}: not fitted" for number in range(survey.items) if number not in fitted]
    return missing + [f"{number}: off by {off:.2f}" for number, off in fitted.items() if off > 1.0]


def run(folder: Path, items: int = 20_000, kills: int = 6, freeze_seconds: float = 40.0) -> list[Figure]:
    """Return what was wrong in the whole story."""
    began = time.monotonic()
    with Survey(folder / "survey", items, timeout_seconds=8.0) as survey:
        partial = run_story(survey, kills, freeze_seconds)
        failed_after = time.monotonic() - began
        failures = survey.failures()
        wrong = wrong_failures(survey, failures)
        survey.fix()
        survey.printed("fanout", "redrive", survey.run_id, "--failed")
        survey.until_status("COMPLETED")
        whole = survey.shown()
        unfitted = wrong_fits(survey)
        survey.server.signal(signal.SIGTERM)
        survey.server.exit_code(60.0)
    left = left_behind(survey.folder)
    chunks = -(-items // CHUNK_SIZE)
    counts, before = whole["counts"], partial["counts"]
    return [
        Figure("fits", f"{items:,} in {chunks:,} chunks, {failed_after:.0f} s to the first end", True),
        Figure("kill -9 of the server; SIGSTOP", f"{survey.started}; {freeze_seconds:g} s", survey.started == kills),
        Figure("attempts lost with a server or in the freeze", f"{before['lost']}", True),
        Figure(
            "chunks at the first end: done, failed",
            f"{before['done']}, {before['dead']}",
            (before["done"], before["dead"]) == (chunks - len(failures), len(failures)),
        ),
        Figure(
            "failures that are wrong or have no stack", f"{len(wrong)} of {len(failures)}" + _first(wrong), not wrong
        ),
        Figure("chunks done after the redrive", f"{counts['done']} of {chunks}", counts["done"] == chunks),
        Figure("spectra without a right fit", f"{len(unfitted)}" + _first(unfitted), not unfitted),
        Figure("processes left behind", f"{len(left)}" + _first(left), not left),
    ]


def family_of(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    found = [pid]
    for parent in found:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            with suppress(OSError):
                found += [int(child) for child in children.read_text().split()]
    return found


def left_behind(folder: Path, seconds_max: float = 20.0) -> list[str]:
    """Return the processes that still work in a folder some seconds after its server has ended."""
    ends_at = time.monotonic() + seconds_max
    while (found := _working_in(folder)) and time.monotonic() < ends_at:
        time.sleep(0.1)
    return found


def _working_in(folder: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cwd").resolve() == folder.resolve():
                found.append(f"{process.name} {(process / 'cmdline').read_bytes().replace(bytes(1), b' ').decode()}")
    return found


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _first(problems: list[str]) -> str:
    return f": {problems[0]}" if problems else ""
