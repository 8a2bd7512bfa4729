"""What a person types less: words completed by the shell, pages opened by id, and errors that programs can read."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
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
        yield folder, server


def words(folder: Path, line: str) -> list[str]:
    """Return what bash offers after a line, by the script that the program prints."""
    script = run("completion", "script", "bash", folder=folder).stdout
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
    ],
)
def test_completion__in_bash__offers_nouns_verbs_options_and_ids(
    site: tuple[Path, Server], line: str, found: list[str]
) -> None:
    assert words(site[0], line) == found


def test_completion__without_a_server__offers_no_ids_and_prints_no_error(tmp_path: Path) -> None:
    ended = run("completion", "words", "--line", "headgate run show ", folder=tmp_path)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion__scripts_of_other_shells__are_valid(tmp_path: Path, shell: str) -> None:
    program = shutil.which(shell)
    script = run("completion", "script", shell, folder=tmp_path).stdout
    assert "headgate completion words" in script
    if program is None:
        pytest.skip(f"{shell} is not installed: its script is printed and not parsed")
    subprocess.run([program, "-n"], input=script, text=True, check=True, timeout=60)


@pytest.mark.parametrize(
    ("name", "page"),
    [("bronze", "/ui/pipelines/bronze"), (URN, "/ui/datasets/urn%3Adp%3Ashop%3Aorders%3Av1"), (None, "/ui")],
)
def test_open__an_id__is_the_address_of_its_page(site: tuple[Path, Server], name: str | None, page: str) -> None:
    folder, server = site

    ended = run("open", *([name] if name else []), "--print", folder=folder)

    assert (ended.returncode, ended.stdout) == (0, f"{server.url}{page}\n"), ended.stderr


def test_open__a_machine_whose_name_begins_as_the_id_of_a_run__is_found(site: tuple[Path, Server]) -> None:
    folder, server = site
    (folder / "machine.json").write_text('{"StartAt": "End", "States": {"End": {"Type": "Succeed"}}}')
    put = run("asl", "put", "run_later", "machine.json", folder=folder)
    assert put.returncode == 0, put.stderr

    ended = run("open", "run_later", "--print", folder=folder)

    assert (ended.returncode, ended.stdout) == (0, f"{server.url}/ui/machines/run_later\n"), ended.stderr


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
