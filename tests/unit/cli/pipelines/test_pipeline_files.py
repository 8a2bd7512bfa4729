"""Definitions without a server: what `validate`, `init` and `pipeline schema` say about files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headgate.cli.pipelines.files import load
from headgate.cli.pipelines.trigger_checks import check_trigger
from headgate.cli.times import future_time
from headgate.errors import AlreadyExistsError, DefinitionError, HeadgateError, UserError
from headgate.pipelines.authoring.validation import TRIGGER_TYPES
from tests.unit.cli.program import invoke

GOOD = """\
id: silver
schedules:
  - cron: 0 6 * * *
trigger:
  type: http
  config: {url: "https://jobs.example.org/${date}"}
"""
WAITS = """\
id: gold
schedules:
  - upstream: [{pipeline: %s}]
trigger:
  type: http
  config: {url: "https://jobs.example.org"}
"""


def run(*arguments: str) -> Any:
    return invoke(arguments)


def written(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


# Validating.


def test_validate__good_file__says_how_many_it_defines(tmp_path: Path) -> None:
    file = written(tmp_path, "silver.yaml", GOOD)

    ended = run("validate", file)

    assert (ended.exit_code, ended.stdout, ended.stderr) == (0, f"{file}: valid; 1 pipeline\n", "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id: silver\nperiod: dayly\n", ":2:9: period: 'dayly' is not known; did you mean daily? Use one of hourly,"),
        ("id: silver\nownr: me\n", "did you mean owner?"),
        ("id: silver\ntrigger:\n  type: htp\n", ":3:9: trigger.type:"),
        ("id: silver\ntrigger:\n  type: http\n  config: {ulr: x}\n", "did you mean url? The fields are"),
        ("id: silver\ntrigger:\n  type: http\n  config: {url: 'https://x.org/${dat}'}\n", "there is no ${dat}"),
        ("id: [", "silver.yaml:"),
        ("", "it has no definition"),
        ("\t", "silver.yaml:"),
        ("- 1\n", "silver.yaml:"),
        ("id: silver\n---\nid: silver\n", "'silver' is defined at"),
    ],
)
def test_validate__bad_file__names_file_line_field_and_what_is_allowed(tmp_path: Path, text: str, said: str) -> None:
    file = written(tmp_path, "silver.yaml", text)

    ended = run("validate", file)

    assert ended.exit_code == 2
    assert file in ended.stderr.splitlines()[0]
    assert said in ended.stderr
    assert ended.stderr.endswith("code: bad_definition\n")
    assert "valid" not in ended.stdout


def test_validate__as_json__has_every_problem_with_its_place(tmp_path: Path) -> None:
    file = written(tmp_path, "p.yaml", "id: silver\nperiod: dayly\ntier: x\n---\nid: gold\n")

    ended = run("validate", file, "--json")

    answer = json.loads(ended.stdout)
    assert (ended.exit_code, answer["valid"], answer["pipelines"]) == (2, False, ["gold"])
    assert [(each["field"], each["line"]) for each in answer["problems"]] == [("period", 2), ("tier", 3)]


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"id: a\n" * 200_000], ids=["no text", "too long"])
def test_validate__file_that_cannot_be_a_definition__is_a_problem_and_no_bug(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "p.yaml").write_bytes(content)

    ended = run("validate", str(tmp_path / "p.yaml"))

    assert (ended.exit_code, "code: bad_definition" in ended.stderr) == (2, True)


def test_validate__file_that_is_not_there__is_the_callers_mistake(tmp_path: Path) -> None:
    ended = run("validate", str(tmp_path / "none.yaml"))

    assert isinstance(ended.exception, UserError)
    assert ended.exception.exit_code == 2


def test_validate__folder__is_read_whole_and_paths_lead_there_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "defs/a.yaml", GOOD)
    written(tmp_path, "defs/deep/b.json", '{"id": "gold", "perod": "daily"}')

    ended = run("validate", "defs")

    assert ended.exit_code == 2
    assert ended.stderr.startswith("defs/deep/b.json:1:")


def test_validate__folder_with_an_upstream_that_is_nowhere__warns_of_it(tmp_path: Path) -> None:
    written(tmp_path, "defs/a.yaml", GOOD)
    gold = written(tmp_path, "defs/gold.yaml", WAITS % "silvr")

    folder, file = run("validate", str(tmp_path / "defs")), run("validate", gold)

    assert (folder.exit_code, file.exit_code) == (0, 0)
    warned = f"{gold}:1: warning: upstream 'silvr' is no pipeline that is known; did you mean silver?"
    assert folder.stderr == f"{warned}\n"
    assert file.stderr == ""


def test_validate__several_paths__are_taken_together(tmp_path: Path) -> None:
    one = written(tmp_path, "one/silver.yaml", GOOD)
    other = written(tmp_path, "other/silver.yaml", GOOD)

    ended = run("validate", one, other)

    assert (ended.exit_code, "'silver' is defined at" in ended.stderr) == (2, True)


def test_validate__project__has_its_own_archetypes(tmp_path: Path) -> None:
    archetype = "name: own-load\nrequired_traits:\n  - {type: fresh, evaluator: push}\n"
    written(tmp_path, "pipelines/p.yaml", "id: silver\narchetype: own-load\n")
    written(tmp_path, "archetypes/own.yaml", archetype)
    elsewhere = written(tmp_path, "elsewhere/p.yaml", "id: silver\narchetype: own-load\n")

    assert run("validate", str(tmp_path)).exit_code == 0
    assert run("validate", str(tmp_path / "pipelines")).exit_code == 0
    assert run("validate", str(tmp_path / "pipelines" / "p.yaml")).exit_code == 0
    given = run("validate", str(Path(elsewhere).parent), "--archetypes", str(tmp_path / "archetypes"))
    assert given.exit_code == 0
    missing = run("validate", elsewhere, "--archetypes", str(tmp_path / "none"))
    assert isinstance(missing.exception, UserError)
    (tmp_path / "archetypes").rename(tmp_path / "kept")
    assert run("validate", str(tmp_path)).exit_code == 2


def test_validate__archetypes_with_a_mistake__says_where(tmp_path: Path) -> None:
    written(tmp_path, "pipelines/p.yaml", GOOD)
    written(tmp_path, "archetypes/own.yaml", "name: own-load\n")

    ended = run("validate", str(tmp_path))

    assert isinstance(ended.exception, DefinitionError)
    assert "own.yaml" in ended.exception.message


def test_triggers__of_every_type_that_a_definition_may_name__are_checked_without_a_server() -> None:
    for name in TRIGGER_TYPES:
        with pytest.raises(DefinitionError, match=name) as caught:
            check_trigger(name, {"no_such_field": 1})
        # What is wrong is the field.
        assert "is unknown" not in caught.value.message


def test_triggers__secret__need_not_be_there_but_must_be_one_that_may_be_had() -> None:
    check_trigger("http", {"url": "https://x.org", "headers": {"authorization": "${env:HG_SECRET_KEY}"}})
    with pytest.raises(DefinitionError, match="HG_SECRET_"):
        check_trigger("http", {"url": "https://x.org", "headers": {"authorization": "${env:HOME}"}})


def test_load__document_of_a_file_with_several__has_its_own_text(tmp_path: Path) -> None:
    file = written(tmp_path, "two.yaml", "# the first\nid: bronze\n---\n# the second\nid: silver\n")

    loaded = load([file])

    assert [(each.pipeline.id, each.text) for each in loaded.pipelines] == [
        ("bronze", "# the first\nid: bronze\n"),
        ("silver", "# the second\nid: silver\n"),
    ]


# A new project.


def test_init__empty_folder__makes_a_project_that_is_valid(tmp_path: Path) -> None:
    folder = tmp_path / "Web Shop"

    ended = run("init", str(folder))

    assert ended.exit_code == 0
    assert f"wrote {folder / 'headgate.toml'}" in ended.stdout
    assert "headgate up --app app:app --pipelines pipelines" in ended.stdout
    assert (folder / "pipelines" / "web-shop-daily.yaml").is_file()
    assert run("validate", str(folder)).stdout == f"{folder}: valid; 1 pipeline\n"


def test_init__again__touches_nothing(tmp_path: Path) -> None:
    run("init", str(tmp_path), "--name", "shop")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    ended = run("init", str(tmp_path), "--name", "shop")

    assert isinstance(ended.exception, AlreadyExistsError)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_init__as_json__names_the_files(tmp_path: Path) -> None:
    answer = json.loads(run("init", str(tmp_path / "shop"), "--json").stdout)

    assert answer["name"] == "shop"
    assert all(Path(file).is_file() for file in answer["files"])


def test_init__name_that_cannot_be__is_refused(tmp_path: Path) -> None:
    ended = run("init", str(tmp_path), "--name", "Ä")

    assert isinstance(ended.exception, HeadgateError)
    assert list(tmp_path.iterdir()) == []


# Schemas.


@pytest.mark.parametrize("kind", ["pipeline", "archetype"])
def test_schema__of_each_kind__is_one_for_editors(kind: str) -> None:
    schema = json.loads(run("pipeline", "schema", kind).stdout)

    assert schema["$schema"].startswith("https://json-schema.org/")
    assert schema["title"] == f"Headgate {kind}"


def test_schema__of_no_kind__says_which_there_are() -> None:
    ended = run("pipeline", "schema", "calendar")

    assert isinstance(ended.exception, UserError)
    assert "pipeline, archetype" in ended.exception.message


# Moments to come.


def test_later__time_or_duration__is_a_moment_with_a_zone() -> None:
    assert future_time(None, "--until") is None
    assert future_time("2026-01-31T06:00:00Z", "--until") == "2026-01-31T06:00:00+00:00"
    assert future_time("2026-01-31", "--until") == "2026-01-31T00:00:00+00:00"
    assert (future_time("2h", "--until") or "") > (future_time("1h", "--until") or "")
    for wrong in ("soon", "9999999999d"):
        with pytest.raises(UserError, match="--until"):
            future_time(wrong, "--until")


def test_validate__pool__must_be_declared_in_the_settings_beside_the_definitions(tmp_path: Path) -> None:
    file = written(tmp_path, "project/pipelines/silver.yaml", f"{GOOD}pool: sprak\n")

    undeclared = run("validate", file)
    written(tmp_path, "project/headgate.toml", "[pipelines.pools]\nspark = 2\n")
    misspelt = run("validate", file)
    written(tmp_path, "project/pipelines/silver.yaml", f"{GOOD}pool: spark\nslots: 3\n")
    too_many = run("validate", str(tmp_path / "project"))
    written(tmp_path, "project/pipelines/silver.yaml", f"{GOOD}pool: spark\nslots: 2\n")
    right = run("validate", str(tmp_path / "project"))

    assert undeclared.exit_code == 2
    assert "there is no pool 'sprak'" in undeclared.stderr
    assert "[pipelines.pools]" in undeclared.stderr
    assert "spark" in misspelt.stderr
    assert "pool spark has 2 slots, and a run would need 3" in too_many.stderr
    assert right.exit_code == 0
