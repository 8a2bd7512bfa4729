"""What a person types less: words completed by the shell, pages opened by id, and errors that programs can read."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.acceptance.program import PROGRAM, Server, run

URN = "urn:dp:shop:orders:v1"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Server]]:
    folder = tmp_path_factory.mktemp("site")
    (folder / "pipelines").mkdir()
    for name in ("bronze", "silver"):
        definition = f"id: {name}\ntrigger: {{type: command, config: {{command: ['true']}}}}\n"
        (folder / "pipelines" / f"{name}.yaml").write_text(definition)
    with Server(folder, "--pipelines", "pipelines") as server:
        made = run("dataset", "register", URN, "--tier", "TIER_2", "--team", "shop", folder=folder)
        assert made.returncode == 0, made.stderr
        started = run("run", "start", "bronze", "--date", "2026-01-05", "--reason", "tried", folder=folder)
        assert started.returncode == 0, started.stderr
        yield folder, server


@cache
def script_of(shell: str, folder: Path) -> str:
    """Return the script that the program prints for a shell; it is the same for every test."""
    return run("completion", "script", shell, folder=folder).stdout


def words(folder: Path, line: str) -> list[str]:
    """Return what bash offers after a line, by the script that the program prints."""
    script = script_of("bash", folder)
    asked = f"{script}\nCOMP_LINE={line!r}; COMP_POINT=${{#COMP_LINE}}; _headgate; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    ended = subprocess.run(
        ["bash", "-c", asked],
        cwd=folder,
        env={"PATH": f"{PROGRAM.parent}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return ended.stdout.splitlines()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("headgate fan", ["fanout"]),
        ("headgate fanout redr", ["redrive"]),
        ("headgate fanout redrive --finger", ["--fingerprint"]),
        ("headgate pipeline show ", ["bronze", "silver"]),
        ("headgate run start si", ["silver"]),
        ("headgate run start silver ", [""]),
        ("headgate gate check --verb pub", ["publish"]),
        # Bash replaces only what follows the last colon.
        ("headgate gate check urn:dp:", ["shop:orders:v1"]),
        ("headgate dataset show ", [URN]),
        ("headgate alert show 'no such", [""]),
        # What belongs to the argument before.
        ("headgate period why bronze --date ", ["2026-01-05"]),
        ("headgate open bronze 2026-", ["2026-01-05"]),
        ("headgate settings show store.back", ["store.backend"]),
    ],
)
def test_completion__in_bash__offers_nouns_verbs_options_and_ids(
    site: tuple[Path, Server], line: str, found: list[str]
) -> None:
    assert words(site[0], line) == found


def test_completion__without_a_server__offers_no_ids_and_prints_no_error(tmp_path: Path) -> None:
    ended = run("completion", "words", "--line", "headgate run show ", folder=tmp_path)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("headgate fan", ["fanout\tManage fan-outs: work split into chunks."]),
        ("headgate pipeline show ", ["bronze", "silver"]),
        ("headgate gate check --verb pub", ["publish"]),
        ("headgate gate check urn:dp:", [URN]),
    ],
)
def test_completion__in_fish__offers_nouns_options_and_ids(
    site: tuple[Path, Server], line: str, found: list[str]
) -> None:
    script = script_of("fish", site[0])

    ended = subprocess.run(
        ["fish", "--no-config", "-c", f"{script}\ncomplete -C '{line}'"],
        cwd=site[0],
        env={"PATH": f"{PROGRAM.parent}:/usr/bin:/bin", "HOME": str(site[0])},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert ended.stdout.splitlines() == found, ended.stderr


def typed_in_zsh(folder: Path, keys: str, shown: str) -> str:
    """Type into an interactive zsh that has the script, and return what it shows until `shown` is part of it."""
    (folder / "headgate.zsh").write_text(script_of("zsh", folder))
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        environ = {"PATH": f"{PROGRAM.parent}:/usr/bin:/bin", "TERM": "dumb", "HOME": str(folder), "COLUMNS": "120"}
        os.execvpe("zsh", ["zsh", "-f", "-i"], environ)
    seen, deadline = b"", time.monotonic() + 60

    def read_until(text: str) -> None:
        nonlocal seen
        while text.encode() not in seen:
            assert time.monotonic() < deadline, seen.decode(errors="replace")
            if select.select([terminal], [], [], 1.0)[0]:
                seen += os.read(terminal, 4096)

    try:
        os.write(terminal, b"autoload -Uz compinit; compinit -D -u; source headgate.zsh; echo REA''DY\n")
        read_until("READY\r")
        seen = b""
        os.write(terminal, keys.encode())
        read_until(shown)
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(terminal)
        os.waitpid(child, 0)
    return seen.decode(errors="replace")


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("headgate fan\t", "headgate fanout "),
        ("headgate gate check --verb pub\t", "--verb publish "),
        # The colons of an id are no separators.
        ("headgate gate check urn:dp:\t", f"check {URN} "),
        ("headgate pipeline show s\t", "show silver "),
    ],
)
def test_completion__in_zsh__completes_nouns_options_and_ids(site: tuple[Path, Server], typed: str, shown: str) -> None:
    assert shown in typed_in_zsh(site[0], typed, shown)


def test_completion__in_zsh__lists_ids_without_repeating_them(site: tuple[Path, Server]) -> None:
    listed = typed_in_zsh(site[0], "headgate pipeline show \t\t", "silver")

    assert "bronze" in listed
    assert "bronze  -- bronze" not in listed


@pytest.mark.parametrize(
    ("name", "page"),
    [
        (["bronze"], "/ui/pipelines/bronze"),
        (["bronze", "2026-01-05"], "/ui/pipelines/bronze?date=2026-01-05"),
        ([URN], "/ui/datasets/urn%3Adp%3Ashop%3Aorders%3Av1"),
        ([], "/ui"),
    ],
)
def test_open__an_id__is_the_address_of_its_page(site: tuple[Path, Server], name: list[str], page: str) -> None:
    folder, server = site

    ended = run("open", *name, "--print", folder=folder)

    assert (ended.returncode, ended.stdout) == (0, f"{server.url}{page}\n"), ended.stderr


def test_open__a_machine_whose_name_begins_as_the_id_of_a_run__is_found(site: tuple[Path, Server]) -> None:
    folder, server = site
    (folder / "machine.json").write_text('{"StartAt": "End", "States": {"End": {"Type": "Succeed"}}}')
    put = run("asl", "put", "run_later", "machine.json", folder=folder)
    assert put.returncode == 0, put.stderr

    ended = run("open", "run_later", "--print", folder=folder)

    assert (ended.returncode, ended.stdout) == (0, f"{server.url}/ui/machines/run_later\n"), ended.stderr


def test_open__part_of_what_has_none__is_refused(site: tuple[Path, Server]) -> None:
    ended = run("open", URN, "chunk-0000000", "--print", folder=site[0])

    assert ended.returncode == 2
    assert "only chunks of fan-outs and periods of pipelines have pages" in ended.stderr


def test_open__an_unknown_id__is_not_found(site: tuple[Path, Server]) -> None:
    ended = run("open", "nothing-of-ours", "--print", folder=site[0])

    assert ended.returncode == 4
    assert "nothing-of-ours: the server has nothing of this id" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "exit_code"),
    [
        (["pipeline", "show", "gold"], "not_found", 4),
        (["pipeline", "shw"], "usage", 2),
        (["run", "ls", "--limit", "many"], "usage", 2),
        (["run", "start", "bronze", "--date", "someday", "--reason", "r"], None, 2),
    ],
)
def test_error__with_json__is_json_on_standard_error(
    site: tuple[Path, Server], arguments: list[str], code: str | None, exit_code: int
) -> None:
    ended = run(*arguments, "--json", folder=site[0])

    error = json.loads(ended.stderr)["error"]
    assert (ended.returncode, error["exit_code"], ended.stdout) == (exit_code, exit_code, "")
    assert error["message"]
    assert code is None or error["code"] == code


@pytest.mark.parametrize(("fail_on", "exit_code"), [("warn", 1), ("unknown", 0), ("hold", 0), (None, 10)])
def test_gate__fail_on__is_0_or_1_for_ci(site: tuple[Path, Server], fail_on: str | None, exit_code: int) -> None:
    # Nothing has reported on it, and unknown counts as a warning by default.
    ended = run("gate", "check", URN, *(["--fail-on", fail_on] if fail_on else []), folder=site[0])

    assert ended.returncode == exit_code, ended.stdout


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_help__any_width__has_sections_and_whole_sentences(tmp_path: Path, columns: int) -> None:
    shown = run("--help", folder=tmp_path, COLUMNS=str(columns)).stdout

    assert max(map(len, shown.splitlines())) <= min(columns, 120)
    assert "..." not in shown.replace("[ARGS]...", "")
    for title in ("Run Headgate:", "Pipelines:", "Data:", "Work:", "Operate:"):
        assert title in shown
    assert "Other:" not in shown
