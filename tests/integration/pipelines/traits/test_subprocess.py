"""Evaluators that are programs: real ones, that answer, fail, hang, fork and talk too much."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from pathlib import Path

import pytest

from headgate.pipelines.enums import FailureCategory, TraitStatus
from headgate.pipelines.traits.protocol import ANSWER_BYTES_MAX, Answer
from headgate.pipelines.traits.subprocess import ProcessEvaluator
from tests.process_state import is_alive
from tests.unit.pipelines.evaluator_rig import question

PASS = '{"status": "PASS"}'


def command(script: str, *arguments: str) -> str:
    return "command:" + shlex.join([sys.executable, "-S", "-c", script, *arguments])


def run(script: str, *arguments: str, timeout: float = 20.0, environ: dict[str, str] | None = None) -> Answer:
    evaluator = ProcessEvaluator({} if environ is None else environ)
    return evaluator.evaluate(question(command(script, *arguments), timeout=timeout, maxLag=300))


def gone(pid: int) -> bool:
    ends_at = time.monotonic() + 5
    while is_alive(pid) and time.monotonic() < ends_at:
        time.sleep(0.01)
    return not is_alive(pid)


def test_process__answers_on_standard_output__is_what_it_says() -> None:
    script = """
import json, sys
asked = json.load(sys.stdin)
json.dump({"status": "FAIL", "value": asked, "reason": "not yet", "more": 1}, sys.stdout)
"""
    answer = run(script)
    assert (answer.status, answer.reason, answer.category) == (TraitStatus.FAIL, "not yet", None)
    assert answer.value == {"pipelineId": "orders", "traitType": "fresh", "config": {"maxLag": 300}}
    assert not answer.is_setback


@pytest.mark.parametrize(
    ("code", "category"),
    [
        (1, FailureCategory.TRANSIENT),
        (2, FailureCategory.PERMANENT),
        (3, FailureCategory.TRANSIENT),
        (127, FailureCategory.TRANSIENT),
        (128, FailureCategory.EVALUATOR_CRASH),
        (139, FailureCategory.EVALUATOR_CRASH),
    ],
)
def test_process__ends_with_a_code__is_an_error_of_its_category(code: int, category: FailureCategory) -> None:
    answer = run(f"import sys; print('{PASS}'); print('no such\\x1b[31m table', file=sys.stderr); sys.exit({code})")
    assert (answer.status, answer.category) == (TraitStatus.ERROR, category)
    # bug 82: its output is reported without terminal escapes.
    assert f"ended with {code}" in answer.reason
    assert "no such [31m table" in answer.reason
    assert "\x1b" not in answer.reason


def test_process__killed_by_a_signal__has_crashed() -> None:
    answer = run("import os; os.kill(os.getpid(), 11)")
    assert (answer.status, answer.category) == (TraitStatus.ERROR, FailureCategory.EVALUATOR_CRASH)
    assert "signal 11" in answer.reason


@pytest.mark.parametrize(
    "said",
    [
        "",
        "not json",
        "[]",
        '{"status": 1}',
        '{"status": "MAYBE"}',
        '{"status": "FAIL", "failureCategory": "BAD"}',
        "[" * 9000,
    ],
)
def test_process__says_what_is_no_answer__is_a_permanent_error(said: str) -> None:
    answer = run("import sys; sys.stdout.write(sys.argv[1])", said)
    assert (answer.status, answer.category) == (TraitStatus.ERROR, FailureCategory.PERMANENT)
    assert not answer.is_setback


@pytest.mark.parametrize(
    ("said", "status", "category"),
    [
        ({"status": "pass", "failureCategory": "TRANSIENT"}, TraitStatus.PASS, None),
        ({"status": "FAIL", "failureCategory": "TIMEOUT"}, TraitStatus.FAIL, FailureCategory.TIMEOUT),
        ({"status": "FAIL", "failureCategory": ""}, TraitStatus.FAIL, None),
        ({"status": "ERROR"}, TraitStatus.ERROR, FailureCategory.TRANSIENT),
        ({"status": "ERROR", "failureCategory": "PERMANENT"}, TraitStatus.ERROR, FailureCategory.PERMANENT),
        ({"status": "STALE", "value": None, "reason": None}, TraitStatus.STALE, None),
    ],
)
def test_process__says_a_status_and_a_category__both_are_kept_where_they_belong(
    said: dict[str, object], status: TraitStatus, category: FailureCategory | None
) -> None:
    answer = run("import sys; sys.stdout.write(sys.argv[1])", json.dumps(said))
    assert (answer.status, answer.category) == (status, category)


def test_process__hangs__is_timed_out_and_its_whole_group_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
with open(sys.argv[1], "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
time.sleep(600)
"""
    began = time.monotonic()
    answer = run(script, str(pids), timeout=1.5)
    assert time.monotonic() - began < 6
    assert (answer.status, answer.category) == (TraitStatus.FAIL, FailureCategory.TIMEOUT)
    assert answer.reason.startswith("EVALUATOR_TIMEOUT")
    own, child = map(int, pids.read_text().split())
    assert gone(own)
    assert gone(child)


def test_process__ignores_gentle_signals_and_closes_its_output__is_killed_all_the_same() -> None:
    script = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.close(1), os.close(2)
time.sleep(600)
"""
    began = time.monotonic()
    assert run(script, timeout=0.7).category is FailureCategory.TIMEOUT
    assert time.monotonic() - began < 5


def test_process__leaves_a_child_with_its_output_open__is_not_waited_for(tmp_path: Path) -> None:
    script = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
open(sys.argv[1], "w").write(str(child.pid))
sys.stdout.write('{PASS}')
"""
    began = time.monotonic()
    answer = run(script, str(tmp_path / "pid"))
    assert answer.status is TraitStatus.PASS
    assert time.monotonic() - began < 10
    assert gone(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_process__says_ten_megabytes__is_cut(stream: str) -> None:
    script = f"""
import sys
for _ in range(160):
    sys.{stream}.write("x" * 65536)
sys.stdout.write('{PASS}')
"""
    answer = run(script)
    if stream == "stderr":
        assert answer.status is TraitStatus.PASS
        return
    assert (answer.status, answer.category) == (TraitStatus.ERROR, FailureCategory.PERMANENT)
    assert str(ANSWER_BYTES_MAX) in answer.reason


def test_process__says_the_most_an_answer_may_have__is_read_to_its_end() -> None:
    script = "import sys; text = sys.argv[1]; sys.stdout.write(text + ' ' * (int(sys.argv[2]) - len(text)))"
    assert run(script, PASS, str(ANSWER_BYTES_MAX)).status is TraitStatus.PASS


def test_process__never_reads_a_large_question__is_not_waited_for() -> None:
    evaluator = ProcessEvaluator({})
    asked = question(command(f"print('{PASS}')"), timeout=20, padding="x" * 1_000_000)
    assert evaluator.evaluate(asked).status is TraitStatus.PASS


def test_process__reads_a_large_question__gets_all_of_it() -> None:
    script = """
import json, sys
asked = json.load(sys.stdin)
json.dump({"status": "PASS", "reason": str(len(asked["config"]["padding"]))}, sys.stdout)
"""
    evaluator = ProcessEvaluator({})
    assert evaluator.evaluate(question(command(script), timeout=20, padding="x" * 1_000_000)).reason == "1000000"


def test_process__shell_words_in_the_command__mean_nothing__bug_78(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    answer = run(
        "import json, sys; print(json.dumps({'status': 'PASS', 'reason': ' '.join(sys.argv[1:])}))",
        f"; touch {witness}", "$(id)", "*",
    )  # fmt: skip
    assert answer.reason == f"; touch {witness} $(id) *"
    assert not witness.exists()


def test_process__environment_of_the_server__is_passed_on_only_as_allowed__bug_77() -> None:
    environ = {
        "PATH": os.defpath, "HOME": "/h", "TZ": "UTC", "EVALUATOR_TOKEN": "t",
        "AWS_SECRET_ACCESS_KEY": "s", "HEADGATE_KEY": "s", "DATABASE_URL": "s",
    }  # fmt: skip
    answer = run("import json, os; print(json.dumps({'status': 'PASS', 'value': dict(os.environ)}))", environ=environ)
    assert answer.value is not None
    assert {name for name in answer.value if name != "LC_CTYPE"} == {"PATH", "HOME", "TZ", "EVALUATOR_TOKEN"}


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("command:", "empty"),
        ("command:   ", "empty"),
        ("command:'unclosed", "split"),
        ("command:/nowhere/at-all --now", "/nowhere/at-all"),
        ("command:/etc/passwd", "cannot be run"),
        ("command:prog\x00ram", "cannot be run"),
    ],
)
def test_process__cannot_be_run__is_a_permanent_error(reference: str, said: str) -> None:
    answer = ProcessEvaluator({}).evaluate(question(reference))
    assert (answer.status, answer.category) == (TraitStatus.ERROR, FailureCategory.PERMANENT)
    assert said in answer.reason
