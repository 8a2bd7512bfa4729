"""The command line: help that is fast, errors that say what to do, and exit codes that programs can rely on."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from importlib.metadata import version
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from headgate.cli.admin import key
from headgate.clock import SystemClock
from headgate.exit_codes import ExitCode
from headgate.store.keyring import Keyring, Purpose
from tests.acceptance.program import run, run_as_nobody


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with keys, and nothing else."""
    Keyring.open(tmp_path / "home" / "keys.json", SystemClock())
    return tmp_path / "home"


@pytest.mark.parametrize("arguments", [["--version"], ["version"]])
def test_version__asked_for__names_program_and_version(tmp_path: Path, arguments: list[str]) -> None:
    ended = run(*arguments, folder=tmp_path)

    assert (ended.returncode, ended.stdout) == (0, f"headgate {version('headgate')}\n")


def test_version__json__is_one_object(tmp_path: Path) -> None:
    assert json.loads(run("version", "--json", folder=tmp_path).stdout) == {
        "name": "headgate",
        "version": version("headgate"),
    }


def test_module__run_with_python_m__is_the_same_program(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "headgate", "--version"], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert ended.stdout == f"headgate {version('headgate')}\n"


def test_help__asked_for__lists_the_commands(tmp_path: Path) -> None:
    ended = run("--help", folder=tmp_path)

    assert ended.returncode == 0
    assert all(command in ended.stdout for command in ("up", "doctor", "key", "version"))
    _, _, table = ended.stdout.partition("\nExit codes:\n")
    assert [int(line[:6]) for line in table.splitlines() if line[2:3].isdigit()] == list(ExitCode)


def test_help__asked_for__loads_nothing_heavy() -> None:
    program = """
import sys
from headgate.cli.main import load
try:
    load()(["--help"])
except SystemExit:
    pass
heavy = ("litestar", "uvicorn", "grpc", "msgspec", "structlog", "prometheus_client", "sqlite3", "boto3", "asyncio")
print([name for name in heavy if name in sys.modules], file=sys.stderr)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert ended.stderr.strip() == "[]"


def test_import__headgate_itself__loads_next_to_nothing() -> None:
    program = "import sys; before = set(sys.modules); import headgate; print(sorted(set(sys.modules) - before))"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert ended.stdout.strip() == "['headgate']"


@pytest.mark.parametrize(
    "arguments", [["fly"], ["up", "--colour"], ["key", "rotate", "house"], ["key", "rotate"], ["fanout", "fly"]]
)
def test_usage__wrong__exits_2_and_leaves_stdout_alone(tmp_path: Path, arguments: list[str]) -> None:
    ended = run(*arguments, folder=tmp_path)

    assert ended.returncode == 2
    assert ended.stdout == ""


@pytest.mark.parametrize(
    ("environ", "arguments", "said"),
    [
        ({"HEADGATE_STORE_BACKENDS": "x"}, [], "did you mean 'HEADGATE_STORE_BACKEND'?"),
        ({"HEADGATE_DRAIN_SECONDS": "soon"}, [], "drain_seconds (variable HEADGATE_DRAIN_SECONDS): 'soon'"),
        ({}, ["--http", "8400"], "http (flag --http): '8400' is not allowed; use HOST:PORT"),
        ({}, ["--config", "missing.toml"], "missing.toml: there is no such file"),
        ({"HEADGATE_CACHE_REDIS_URL": "hunter2"}, [], "cache.redis_url (variable HEADGATE_CACHE_REDIS_URL): the value"),
    ],
)
def test_settings__wrong__exit_2_with_the_place_and_the_remedy(
    tmp_path: Path, environ: dict[str, str], arguments: list[str], said: str
) -> None:
    ended = run("up", *arguments, folder=tmp_path, **environ)

    assert ended.returncode == 2
    assert ended.stderr.startswith("error: ")
    assert said in ended.stderr
    assert ended.stderr.endswith("code: bad_setting\n")
    assert "hunter2" not in ended.stderr
    assert "Traceback" not in ended.stderr


def test_settings__wrong_in_the_file__names_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "headgate.toml").write_text('[log]\nlevel = "loud"\n')

    ended = run("up", folder=tmp_path)

    assert ended.returncode == 2
    assert "log.level (headgate.toml line 2): 'loud' is not allowed" in ended.stderr


def test_debug__with_an_error__shows_where_it_comes_from(tmp_path: Path) -> None:
    ended = run("--debug", "up", "--http", "8400", folder=tmp_path)

    assert ended.returncode == 2
    assert "Traceback" in ended.stderr
    assert ended.stderr.endswith("code: bad_setting\n")


def test_key_ls__a_home_with_keys__shows_ids_and_no_secrets(home: Path, tmp_path: Path) -> None:
    secrets = [key["secret"] for held in json.loads((home / "keys.json").read_text())["keys"].values() for key in held]

    for_people = run("key", "ls", "--home", home, folder=tmp_path)
    for_programs = run("key", "ls", "--home", home, "--json", folder=tmp_path)

    rows = json.loads(for_programs.stdout)
    assert [row["purpose"] for row in rows] == ["cursor", "token", "field"]
    assert all(row["id"] in for_people.stdout for row in rows)
    assert len(secrets) == 3
    assert not [secret for secret in secrets if secret in for_people.stdout + for_programs.stdout]


def test_key_rotate__a_purpose__makes_a_new_key_active_and_keeps_the_old(home: Path, tmp_path: Path) -> None:
    signed = Keyring.open(home / "keys.json", SystemClock()).sign(Purpose.TOKEN, b"run 7")

    ended = run("key", "rotate", "token", "--home", home, "--json", folder=tmp_path)

    answer = json.loads(ended.stdout)
    keyring = Keyring.open(home / "keys.json", SystemClock())
    assert [kept.id for kept in keyring.keys(Purpose.TOKEN)] == [answer["retired"], answer["active"]]
    assert keyring.verify(Purpose.TOKEN, signed) == b"run 7"
    assert len(keyring.keys(Purpose.CURSOR)) == 1
    assert stat.S_IMODE((home / "keys.json").stat().st_mode) == 0o600
    assert keyring.keys(Purpose.TOKEN)[-1].secret not in ended.stdout


def test_key_rotate__several_at_once__none_is_lost(home: Path, tmp_path: Path) -> None:
    threads = [
        threading.Thread(target=run, args=("key", "rotate", "field", "--home", home), kwargs={"folder": tmp_path})
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(Keyring.open(home / "keys.json", SystemClock()).keys(Purpose.FIELD)) == 5


def test_key_rotate__every_purpose__can_be_named() -> None:
    hint = get_type_hints(key.rotate)["purpose"]

    assert set(get_args(hint)) == {purpose.value for purpose in Purpose}


@pytest.mark.parametrize("arguments", [["key", "ls"], ["key", "rotate", "token"]])
def test_key__no_home_yet__exits_4_and_makes_nothing(tmp_path: Path, arguments: list[str]) -> None:
    ended = run(*arguments, folder=tmp_path)

    assert ended.returncode == 4
    assert ended.stderr.endswith("code: not_found\n")
    assert list(tmp_path.iterdir()) == []


def test_stdout__closed_by_the_reader__is_not_an_error_of_ours(home: Path, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [Path(sys.executable).parent / "headgate", "key", "ls", "--home", home],
        cwd=tmp_path,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)

    assert "bug" not in ended.stderr
    assert "Traceback" not in ended.stderr


def test_table_ls__prefix_and_names__are_those_of_the_settings(tmp_path: Path) -> None:
    names = '{"headgate-fanout": "phspectra-runs"}'
    ended = run(
        "table", "ls", "--json", folder=tmp_path, HEADGATE_STORE_TABLE_PREFIX="prod-", HEADGATE_STORE_TABLE_NAMES=names
    )

    tables = {row["table"]: row for row in json.loads(ended.stdout)}
    assert tables["phspectra-runs"]["key"] == ["PK", "SK"]
    assert "attention-index" in tables["phspectra-runs"]["indexes"]
    assert "prod-observability-signal-state" in tables


def test_table_create__sqlite__says_there_is_nothing_to_do(tmp_path: Path) -> None:
    ended = run("table", "create", folder=tmp_path)

    assert ended.returncode == 2
    assert "creates its tables itself" in ended.stderr


@pytest.mark.parametrize("command", ["up", "doctor"])
def test_help__of_a_command__shows_the_defaults(tmp_path: Path, command: str) -> None:
    said = run(command, "--help", folder=tmp_path).stdout

    assert "[default: headgate.toml, if it exists]" in said
    assert command != "up" or "[default: 127.0.0.1:8400]" in said


@pytest.mark.parametrize("command", ["key", "table"])
def test_help__of_a_command_below__shows_the_defaults(tmp_path: Path, command: str) -> None:
    assert "[default: headgate.toml, if it exists]" in run(command, "ls", "--help", folder=tmp_path).stdout


def test_key_ls__narrow_terminal__cuts_nothing_off(home: Path, tmp_path: Path) -> None:
    run("key", "rotate", "token", "--home", home, folder=tmp_path)

    rows = json.loads(run("key", "ls", "--home", home, "--json", folder=tmp_path).stdout)
    lines = run("key", "ls", "--home", home, folder=tmp_path, COLUMNS="80").stdout.splitlines()

    shown = [[row["purpose"], row["id"], row["created_at"], row["retired_at"] or "active"] for row in rows]
    assert [line.split() for line in lines] == [["PURPOSE", "ID", "CREATED", "RETIRED"], *shown]


@pytest.mark.parametrize("arguments", [["key", "ls"], ["key", "rotate", "token"]])
def test_key__home_cannot_be_entered__says_so_and_is_no_bug(home: Path, tmp_path: Path, arguments: list[str]) -> None:
    home.chmod(0)

    ended = run_as_nobody(*arguments, "--home", home, folder=tmp_path)

    home.chmod(0o700)
    assert ended.returncode == 2
    assert f"error: {home / 'keys.json'}: cannot be used: Permission denied; " in ended.stderr


def test_up__host_that_is_no_name__is_a_setting_and_no_bug(tmp_path: Path) -> None:
    environ = {"HEADGATE_BEHIND_PROXY": "true", "HEADGATE_ALLOWED_HOSTS": "gate.example"}

    ended = run("up", "--http", "gate..example:0", folder=tmp_path, **environ)

    assert ended.returncode == 2
    assert "error: http = gate..example:0: unknown host name" in ended.stderr
