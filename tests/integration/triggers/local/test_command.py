"""Commands: real processes, what they inherit, how they end, and that they are run once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import SystemClock
from headgate.triggers.contract import (
    FailureCategory,
    Job,
    JobState,
    PollResult,
    Started,
    StartStatus,
    TriggerFailedError,
)
from headgate.triggers.local.command import CommandConfig, CommandKind
from headgate.triggers.local.command_records import CommandRecord
from tests.process_state import is_alive
from tests.unit.triggers.rigs import RUN_ID, kinds, order

ENVIRON = {
    "PATH": "/usr/bin:/bin",
    "AWS_SECRET_ACCESS_KEY": "no",
    "HEADGATE_CACHE_REDIS_URL": "redis://secret",
    "HG_SECRET_TOKEN": "no",
    "TEAM": "blue",
}


class Ran(Struct):
    """A command that was started and has ended."""

    started: Started
    polled: PollResult
    output: str


def run(tmp_path: Path, command: str | list[str], *, date: str = "2026-03-03T07", **config: Any) -> Ran:
    registry = kinds(tmp_path, environ=ENVIRON)
    asked = order("command", {"command": command, **config}, date=date)
    started = registry.start(asked)
    eventually(lambda: registry.poll(asked, {}).state is not JobState.RUNNING)
    output = registry.read_output(asked, offset=0, limit=1_000_000)
    return Ran(started, registry.poll(asked, {}), output.text)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def failure(tmp_path: Path, command: str | list[str], **config: Any) -> TriggerFailedError:
    with pytest.raises(TriggerFailedError) as caught:
        run(tmp_path, command, **config)
    return caught.value


def eventually(condition: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < ends_at, "not in thirty seconds"
        time.sleep(0.01)


def test_start__command_that_succeeds__is_running_with_an_id_and_then_succeeded(tmp_path: Path) -> None:
    # bugs 30, 31, 32: it has an id, and is never polled for ever.
    before_ms = int(time.time() * 1000)
    ran = run(tmp_path, "echo load ${date}")

    assert (ran.started.status, ran.started.external_id) == (StartStatus.RUNNING, RUN_ID)
    assert ran.started.tells_end
    assert (ran.polled.state, ran.output) == (JobState.SUCCEEDED, "load 2026-03-03T07\n")
    assert ran.started.started_at_ms is not None
    assert ran.polled.ended_at_ms is not None
    assert before_ms <= ran.started.started_at_ms <= ran.polled.ended_at_ms <= time.time() * 1000


def test_start__command_that_takes_long__returns_at_once(tmp_path: Path) -> None:
    registry, asked = kinds(tmp_path), order("command", {"command": "sleep 60", "grace": 1})
    started = registry.start(asked)

    assert registry.poll(asked, {}).state is JobState.RUNNING
    assert is_alive(int(started.metadata["pid"]))
    registry.cancel(asked, {})
    assert not is_alive(int(started.metadata["pid"]))


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("echo 'a b'; touch x && `touch x` $(touch x) > x | cat", "a b; touch x && `touch x` $(touch x) > x | cat\n"),
        (["echo", "$HOME; rm -rf /", "${date}"], "$HOME; rm -rf / $(touch x);touch x\n"),
    ],
)
def test_start__text_that_a_shell_would_obey__is_passed_on_as_it_is(
    tmp_path: Path, command: str | list[str], output: str
) -> None:
    # bug 78: no shell, neither for the command nor for what is filled into it.
    assert run(tmp_path, command, date="$(touch x);touch x", folder=str(tmp_path)).output == output
    assert not (tmp_path / "x").exists()


def test_start__value_with_spaces__stays_one_argument_of_a_list(tmp_path: Path) -> None:
    assert run(tmp_path, ["printf", "[%s]", "${date}"], date="a b").output == "[a b]"


def test_environment__of_a_command__holds_what_is_allowed_and_nothing_else(tmp_path: Path) -> None:
    # bug 77
    ran = run(tmp_path, "env", inherit=["TEAM"], environment={"DAY": "${day_compact}"})

    assert dict(line.split("=", 1) for line in ran.output.splitlines()) == {
        "PATH": "/usr/bin:/bin",
        "TEAM": "blue",
        "DAY": "20260303",
        "HEADGATE_PIPELINE": "orders",
        "HEADGATE_SCHEDULE": "hourly",
        "HEADGATE_DATE": "2026-03-03T07",
        "HEADGATE_RUN_ID": RUN_ID,
        "HEADGATE_ATTEMPT": "1",
    }


@pytest.mark.parametrize(
    ("command", "category", "said"),
    [
        (python("raise SystemExit(1)"), FailureCategory.TRANSIENT, "exit code 1"),
        (python("raise SystemExit(75)"), FailureCategory.TRANSIENT, "exit code 75"),
        (python("raise SystemExit(65)"), FailureCategory.PERMANENT, "exit code 65"),
        (python("import os; os.kill(os.getpid(), 9)"), FailureCategory.TRANSIENT, "killed by SIGKILL"),
        (python("print('what went wrong'); raise SystemExit(3)"), FailureCategory.TRANSIENT, "what went wrong"),
        (python("def f():\n  {}['amount']\nf()"), FailureCategory.TRANSIENT, "exit code 1: KeyError: 'amount'"),
    ],
)
def test_start__command_that_fails__has_a_category(
    tmp_path: Path, command: list[str], category: FailureCategory, said: str
) -> None:
    # D27
    polled = run(tmp_path, command).polled

    assert (polled.state, polled.category) == (JobState.FAILED, category)
    assert said in polled.reason


def test_start__exit_code_that_the_user_calls_permanent__is(tmp_path: Path) -> None:
    assert run(tmp_path, "false", permanent_exits=[1]).polled.category is FailureCategory.PERMANENT


@pytest.mark.parametrize("command", ["no-such-program --x", "./forbidden", "./nonsense", "/nowhere/at/all", "."])
def test_start__program_that_cannot_be_run__fails_for_good_and_was_not_started(tmp_path: Path, command: str) -> None:
    (tmp_path / "forbidden").touch(0o600)
    (tmp_path / "nonsense").touch(0o700)
    (tmp_path / "nonsense").write_bytes(b"\x00\x01\x02")
    error = failure(tmp_path, command, folder=str(tmp_path))

    assert (error.category, error.was_started) == (FailureCategory.PERMANENT, False)
    assert "cannot be started" in str(error)


def test_start__out_of_time__kills_grandchildren_too(tmp_path: Path) -> None:
    # bug 33: nothing outlives its time.
    code = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal, time;"
        'signal.signal(signal.SIGTERM, signal.SIG_IGN); print("up", flush=True); time.sleep(60)\'])\n'
        f"open({str(tmp_path / 'pids')!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(60)\n"
    )
    begun = time.monotonic()

    polled = run(tmp_path, python(code), timeout=1, grace=0.2).polled

    assert polled.category is FailureCategory.TIMEOUT
    assert time.monotonic() - begun < 30
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    eventually(lambda: not any(map(is_alive, pids)))


def test_start__background_process_that_keeps_the_output_open__does_not_hold_up_the_end(tmp_path: Path) -> None:
    begun = time.monotonic()

    ran = run(tmp_path, ["sh", "-c", f"sleep 60 & echo $! > {tmp_path}/pid; echo done"], timeout=30)

    assert ran.output == "done\n"
    assert time.monotonic() - begun < 30
    eventually(lambda: not is_alive(int((tmp_path / "pid").read_text())))


def test_start__output_that_is_not_utf_8__is_kept_as_far_as_it_can_be_read(tmp_path: Path) -> None:
    assert run(tmp_path, python("import sys; sys.stdout.buffer.write(b'a\\xff\\x00b')")).output == "a\ufffd\x00b"


def test_start__again_for_the_same_run__does_not_run_it_again(tmp_path: Path) -> None:
    # D20
    command = ["sh", "-c", f"echo x >> {tmp_path}/times"]

    first, second = run(tmp_path, command), run(tmp_path, command)
    other = order("command", {"command": command}, run_id="run_other", attempt=2)
    kinds(tmp_path).start(other)
    eventually(lambda: kinds(tmp_path).poll(other, {}).state is JobState.SUCCEEDED)

    assert first == second
    assert (tmp_path / "times").read_text() == "x\nx\n"


def test_start__again_after_it_failed__fails_the_same_way_without_running(tmp_path: Path) -> None:
    command = ["sh", "-c", f"echo x >> {tmp_path}/times; exit 65"]

    first, second = run(tmp_path, command), run(tmp_path, command)

    assert first.polled == second.polled
    assert (tmp_path / "times").read_text() == "x\n"


def test_start__twice_at_once__runs_it_once(tmp_path: Path) -> None:
    command = ["sh", "-c", f"echo x >> {tmp_path}/times; sleep 0.3"]
    registry, started = kinds(tmp_path), []
    threads = [
        threading.Thread(target=lambda: started.append(registry.start(order("command", {"command": command}))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(map(repr, started))) == 1
    eventually(lambda: registry.poll(order("command", {"command": command}), {}).state is JobState.SUCCEEDED)
    assert (tmp_path / "times").read_text() == "x\n"


def test_poll__jobs_of_a_build_without_supervisors__are_found_again(tmp_path: Path) -> None:
    registry, asked = kinds(tmp_path), order("command", {"command": "true"})
    name = CommandRecord(tmp_path / "commands", RUN_ID).folder.name
    (tmp_path / "commands").mkdir()
    (tmp_path / "commands" / f"{name}.begun").write_text('{"group": 1, "ends_by_seconds": 1.0}')
    holder = subprocess.Popen(
        ["flock", str(tmp_path / "commands" / f"{name}.lock"), "sh", "-c", "echo up; read line"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"up\n"
    started = registry.start(asked)
    while_running = registry.poll(asked, {}).state
    holder.communicate(b"go\n")
    unknown = registry.poll(asked, {})
    (tmp_path / "commands" / f"{name}.ended").write_text('{"exit_code": 0, "output": "done"}')

    assert (started.status, while_running) == (StartStatus.RUNNING, JobState.RUNNING)
    assert "exit code is unknown" in unknown.reason
    assert registry.poll(asked, {}).state is JobState.SUCCEEDED
    assert registry.read_output(asked, offset=0, limit=100).text == "done"


def test_poll__command_whose_end_no_one_saw__has_failed(tmp_path: Path) -> None:
    # bug 42: what is not there is an answer and no crash.
    registry = kinds(tmp_path)

    before = registry.poll(order("command", {"command": "true"}), {})
    (tmp_path / "commands").mkdir()
    after = registry.poll(order("command", {"command": "true"}), {})

    assert {before.state, after.state} == {JobState.FAILED}
    assert {before.category, after.category} == {FailureCategory.TRANSIENT}


def test_cancel__from_another_process__ends_the_process_group(tmp_path: Path) -> None:
    config = {"command": ["sh", "-c", f"sleep 60 & echo $! > {tmp_path}/up; wait"], "grace": 1}
    asked = order("command", config)
    leader = int(kinds(tmp_path).start(asked).metadata["pid"])
    eventually(lambda: (tmp_path / "up").exists() and bool((tmp_path / "up").read_text()))
    canceller = kinds(tmp_path)
    canceller.cancel(asked, {})

    assert not is_alive(leader)
    assert not is_alive(int((tmp_path / "up").read_text()))
    assert "it was cancelled" in canceller.poll(asked, {}).reason
    canceller.cancel(asked, {})


def test_cancel__command_that_ignores_sigterm__is_killed_after_the_grace(tmp_path: Path) -> None:
    config = {"command": ["sh", "-c", f"trap '' TERM; touch {tmp_path}/up; while :; do sleep 1; done"], "grace": 0.3}
    asked = order("command", config)
    registry = kinds(tmp_path)
    leader = int(registry.start(asked).metadata["pid"])
    eventually((tmp_path / "up").exists)
    registry.cancel(asked, {})

    assert not is_alive(leader)


def test_cancel__before_it_began__keeps_it_from_beginning(tmp_path: Path) -> None:
    (tmp_path / "commands").mkdir()
    config = {"command": f"touch {tmp_path}/x"}
    kinds(tmp_path).cancel(order("command", config), {})

    assert "cancelled before it began" in str(failure(tmp_path, config["command"]))
    assert not (tmp_path / "x").exists()


def test_memory_max__command_that_takes_more__is_ended_with_that_reason(tmp_path: Path) -> None:
    code = "data = bytearray(200_000_000); import time; time.sleep(60)"
    polled = run(tmp_path, python(code), memory_max="64MB", grace=1).polled

    assert polled.category is FailureCategory.PERMANENT
    assert "more memory than memory_max (64MB)" in polled.reason


def test_records__older_than_anyone_asks_for__are_removed(tmp_path: Path) -> None:
    kind = CommandKind(SystemClock(), tmp_path / "commands", ENVIRON)
    run(tmp_path, "true")
    new = order("command", {"command": "true"}, run_id="run_new")

    for path in (tmp_path / "commands").rglob("*"):
        os.utime(path, (0, 0))
    kind.start(Job(new, CommandConfig(command="true")))

    assert CommandRecord(tmp_path / "commands", RUN_ID).ended() is None
    assert CommandRecord(tmp_path / "commands", "run_new").begun() is not None


def test_signal_names__every_way_to_be_killed__can_be_said(tmp_path: Path) -> None:
    code = f"import os; os.kill(os.getpid(), {int(signal.SIGRTMIN) + 3})"

    assert "killed by signal" in run(tmp_path, python(code)).polled.reason


def test_start__definition_that_is_not_from_the_project_folder__runs_nothing(tmp_path: Path) -> None:
    made = tmp_path / "made"
    asked = replace(order("command", {"command": ["touch", str(made)]}), is_from_folder=False)
    with pytest.raises(TriggerFailedError, match="project folder") as failed:
        kinds(tmp_path).start(asked)
    assert (failed.value.category, failed.value.was_started) == (FailureCategory.PERMANENT, False)
    assert not made.exists()
