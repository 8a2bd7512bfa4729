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
from msgspec.structs import replace

from headgate.clock import SystemClock
from headgate.triggers.contract import (
    FailureCategory,
    Job,
    JobState,
    Started,
    StartStatus,
    TriggerFailedError,
)
from headgate.triggers.local.command import CommandConfig, CommandKind
from headgate.triggers.local.command_records import CommandRecord
from tests.unit.triggers.rigs import RUN_ID, kinds, order

ENVIRON = {
    "PATH": "/usr/bin:/bin",
    "AWS_SECRET_ACCESS_KEY": "no",
    "HEADGATE_CACHE_REDIS_URL": "redis://secret",
    "HG_SECRET_TOKEN": "no",
    "TEAM": "blue",
}


def run(tmp_path: Path, command: str | list[str], *, date: str = "2026-03-03T07", **config: Any) -> Started:
    return kinds(tmp_path, environ=ENVIRON).start(order("command", {"command": command, **config}, date=date))


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def failure(tmp_path: Path, command: str | list[str], **config: Any) -> TriggerFailedError:
    with pytest.raises(TriggerFailedError) as caught:
        run(tmp_path, command, **config)
    return caught.value


def eventually(condition: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < ends_at, "not in ten seconds"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie counts as dead.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_start__command_that_succeeds__is_completed_with_an_id(tmp_path: Path) -> None:
    # bugs 30, 31, 32: what is over at once says so, has an id, and is never polled for ever.
    started = run(tmp_path, "echo load ${date}")

    assert (started.status, started.external_id) == (StartStatus.COMPLETED, RUN_ID)
    assert started.metadata == {"external_id": RUN_ID, "exit_code": "0", "output": "load 2026-03-03T07\n"}
    polled = kinds(tmp_path).poll(order("command", {"command": "echo load ${date}"}), started.metadata)
    assert polled.state is JobState.SUCCEEDED


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
    started = run(tmp_path, command, date="$(touch x);touch x", folder=str(tmp_path))

    assert started.metadata["output"] == output
    assert not (tmp_path / "x").exists()


def test_start__value_with_spaces__stays_one_argument_of_a_list(tmp_path: Path) -> None:
    started = run(tmp_path, ["printf", "[%s]", "${date}"], date="a b")

    assert started.metadata["output"] == "[a b]"


def test_environment__of_a_command__holds_what_is_allowed_and_nothing_else(tmp_path: Path) -> None:
    # bug 77
    started = run(tmp_path, "env", inherit=["TEAM"], environment={"DAY": "${day_compact}"})

    assert dict(line.split("=", 1) for line in started.metadata["output"].splitlines()) == {
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
    ],
)
def test_start__command_that_fails__has_a_category(
    tmp_path: Path, command: list[str], category: FailureCategory, said: str
) -> None:
    # D27
    error = failure(tmp_path, command)

    assert (error.category, error.was_started) == (category, True)
    assert said in str(error)


def test_start__exit_code_that_the_user_calls_permanent__is(tmp_path: Path) -> None:
    assert failure(tmp_path, "false", permanent_exits=[1]).category is FailureCategory.PERMANENT


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

    error = failure(tmp_path, python(code), timeout=1, grace=0.2)

    assert error.category is FailureCategory.TIMEOUT
    assert time.monotonic() - begun < 10
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    eventually(lambda: not any(map(is_alive, pids)))


def test_start__background_process_that_keeps_the_output_open__does_not_hold_up_the_end(tmp_path: Path) -> None:
    begun = time.monotonic()

    started = run(tmp_path, ["sh", "-c", f"sleep 60 & echo $! > {tmp_path}/pid; echo done"], timeout=30)

    assert started.metadata["output"] == "done\n"
    assert time.monotonic() - begun < 10
    eventually(lambda: not is_alive(int((tmp_path / "pid").read_text())))


def test_start__ten_megabytes_of_output__keeps_its_end(tmp_path: Path) -> None:
    started = run(tmp_path, python("print('x' * 10_000_000); print('the end')"), output_bytes_max=1000)

    assert started.metadata["output"].endswith("xxx\nthe end\n")
    assert len(started.metadata["output"]) <= 1000


def test_start__output_that_is_not_utf_8__is_kept_as_far_as_it_can_be_read(tmp_path: Path) -> None:
    started = run(tmp_path, python("import sys; sys.stdout.buffer.write(b'a\\xff\\x00b')"))

    assert started.metadata["output"] == "a\ufffd\x00b"


def test_start__again_for_the_same_run__does_not_run_it_again(tmp_path: Path) -> None:
    # D20
    command = ["sh", "-c", f"echo x >> {tmp_path}/times"]

    first, second = run(tmp_path, command), run(tmp_path, command)
    other = kinds(tmp_path).start(order("command", {"command": command}, attempt=2))

    assert first == second
    assert other.external_id == f"{RUN_ID}-2"
    assert (tmp_path / "times").read_text() == "x\nx\n"


def test_start__again_after_it_failed__fails_the_same_way_without_running(tmp_path: Path) -> None:
    command = ["sh", "-c", f"echo x >> {tmp_path}/times; exit 65"]

    first, second = failure(tmp_path, command), failure(tmp_path, command)

    assert (str(first), first.category) == (str(second), second.category)
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

    assert len(started) == 4
    assert (tmp_path / "times").read_text() == "x\n"


SERVER = """
import sys
from pathlib import Path
from tests.unit.triggers.rigs import kinds, order
kinds(Path(sys.argv[1])).start(order("command", {"command": sys.argv[2:]}))
"""


def test_start__server_killed_meanwhile__waits_for_the_command_that_still_runs(tmp_path: Path) -> None:
    # D20: a retry after a crash does not run beside what the crash has left.
    go = tmp_path / "go"
    command = ["sh", "-c", f"echo x >> {tmp_path}/times; while [ ! -e {go} ]; do sleep 0.02; done; echo y >> {go}"]
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(tmp_path), *command])
    eventually(lambda: (tmp_path / "times").exists())
    server.kill()
    server.wait()
    registry, config = kinds(tmp_path), {"command": command}
    while_running = registry.poll(order("command", config), {}).state
    retry = threading.Thread(target=lambda: registry.start(order("command", config)))
    retry.start()
    time.sleep(0.2)
    times_meanwhile = (tmp_path / "times").read_text()
    go.touch()
    retry.join()

    assert while_running is JobState.RUNNING
    assert times_meanwhile == "x\n"
    # The end of the first one was not observed, so it was run once more after that.
    assert (tmp_path / "times").read_text() == "x\nx\n"
    assert registry.poll(order("command", config), {}).state is JobState.SUCCEEDED


def test_poll__command_whose_end_no_one_saw__has_failed(tmp_path: Path) -> None:
    # bug 42: what is not there is an answer and no crash.
    registry = kinds(tmp_path)

    before = registry.poll(order("command", {"command": "true"}), {})
    (tmp_path / "commands").mkdir()
    after = registry.poll(order("command", {"command": "true"}), {})

    assert {before.state, after.state} == {JobState.FAILED}
    assert {before.category, after.category} == {FailureCategory.TRANSIENT}


def test_cancel__from_another_process__ends_the_command_and_its_start(tmp_path: Path) -> None:
    config = {"command": ["sh", "-c", f"touch {tmp_path}/up; sleep 60"], "grace": 1}
    errors: list[TriggerFailedError] = []

    def start() -> None:
        with pytest.raises(TriggerFailedError) as caught:
            kinds(tmp_path).start(order("command", config))
        errors.append(caught.value)

    thread = threading.Thread(target=start)
    thread.start()
    eventually((tmp_path / "up").exists)
    canceller = kinds(tmp_path)
    canceller.cancel(order("command", config), {})
    thread.join(10)

    assert "it was cancelled" in str(errors[0])
    assert canceller.poll(order("command", config), {}).state is JobState.FAILED
    canceller.cancel(order("command", config), {})


def test_cancel__before_it_began__keeps_it_from_beginning(tmp_path: Path) -> None:
    (tmp_path / "commands").mkdir()
    config = {"command": f"touch {tmp_path}/x"}
    kinds(tmp_path).cancel(order("command", config), {})

    assert "cancelled before it began" in str(failure(tmp_path, config["command"]))
    assert not (tmp_path / "x").exists()


def test_records__older_than_anyone_asks_for__are_removed(tmp_path: Path) -> None:
    kind = CommandKind(SystemClock(), tmp_path / "commands", ENVIRON)
    run(tmp_path, "true")
    for path in (tmp_path / "commands").iterdir():
        os.utime(path, (0, 0))
    new = order("command", {"command": "true"}, run_id="run_new")

    kind.start(Job(new, CommandConfig(command="true")))

    assert CommandRecord(tmp_path / "commands", RUN_ID).ended() is None
    assert CommandRecord(tmp_path / "commands", "run_new").ended() is not None


def test_signal_names__every_way_to_be_killed__can_be_said(tmp_path: Path) -> None:
    code = f"import os; os.kill(os.getpid(), {int(signal.SIGRTMIN) + 3})"

    assert "killed by signal" in str(failure(tmp_path, python(code)))


def test_start__definition_that_is_not_from_the_project_folder__runs_nothing(tmp_path: Path) -> None:
    made = tmp_path / "made"
    asked = replace(order("command", {"command": ["touch", str(made)]}), is_from_folder=False)
    with pytest.raises(TriggerFailedError, match="project folder") as failed:
        kinds(tmp_path).start(asked)
    assert (failed.value.category, failed.value.was_started) == (FailureCategory.PERMANENT, False)
    assert not made.exists()
