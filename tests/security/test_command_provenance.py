"""Commands run only from definitions that the server loaded from its folder, whatever is in the rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from headgate.auth.roles import Role
from headgate.bootstrap.store import open_store
from headgate.clock import SystemClock
from headgate.pipelines.catalog.rows import config_key, version_key
from headgate.settings import Settings
from headgate.store.catalogue.tables import DEFINITIONS, PIPELINES
from headgate.store.model.values import Item
from headgate.store.port import Store
from tests.security.machine_site import Site, command_definition, opened

FILES: Final = {
    "good.yaml": """\
id: good
trigger: {{type: command, config: {{command: [touch, "{folder}/good-${{date}}"]}}}}
""",
    "asks.yaml": """\
id: asks
readiness:
  window: 1s
  interval: 1s
  traits:
    here: {{evaluator: "command:{folder}/answer"}}
trigger: {{type: command, config: {{command: [touch, "{folder}/asks-${{date}}"]}}}}
""",
    "web.yaml": """\
id: web
trigger: {{type: http, config: {{url: "https://jobs.example/run"}}}}
""",
}
ANSWER: Final = """#!/bin/sh
echo asked >> "$(dirname "$0")/asked"
echo '{"status": "PASS"}'
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("provenance")
    (folder / "pipelines").mkdir()
    for name, text in FILES.items():
        (folder / "pipelines" / name).write_text(text.format(folder=folder))
    (folder / "answer").write_text(ANSWER)
    (folder / "answer").chmod(0o755)
    with opened(folder) as site:
        yield site


@pytest.fixture(scope="module")
def store(site: Site) -> Iterator[Store]:
    """The server's own store, as any program on the machine, or a restored backup, could write it."""
    opened_store = open_store(Settings(home=site.server.home), SystemClock())
    with closing(opened_store.store):
        yield opened_store.store


def rows_of(store: Store, pipeline: str, version: int = 1) -> tuple[Item, Item]:
    """Return the current row of a pipeline, and the row of a version."""
    current = store.get(PIPELINES, config_key(pipeline), consistent=True)
    stored = store.get(DEFINITIONS, version_key(pipeline, version), consistent=True)
    assert current is not None
    assert stored is not None
    return current, stored


def renamed(rows: tuple[Item, Item], pipeline: str, config: str) -> tuple[Item, Item]:
    """Return the rows of a pipeline as those of another one with another definition."""
    facts = {"pipeline_id": pipeline, "config": config, "digest": hashlib.sha256(config.encode()).hexdigest()}
    current = {**rows[0], **facts, **PIPELINES.key_attributes(config_key(pipeline)), "GSI1SK": pipeline}
    return current, {**rows[1], **facts, **DEFINITIONS.key_attributes(version_key(pipeline, 1))}


def put(store: Store, rows: tuple[Item, Item]) -> None:
    store.put(PIPELINES, rows[0])
    store.put(DEFINITIONS, rows[1])


def bare_row(site: Site, store: Store, pipeline: str) -> None:
    config = command_definition(pipeline, site.marker)
    row = {"pipeline_id": pipeline, "config": config, "GSI1PK": "PIPELINES", "GSI1SK": pipeline}
    store.put(PIPELINES, {**row, **PIPELINES.key_attributes(config_key(pipeline))})


def copied_row(site: Site, store: Store, pipeline: str) -> None:
    """Every attribute of a row of the folder, the seal included, with another definition."""
    put(store, renamed(rows_of(store, "good"), pipeline, command_definition(pipeline, site.marker)))


def claimed_row(site: Site, store: Store, pipeline: str) -> None:
    """A row that claims to come from the folder, without a seal."""
    rows = renamed(rows_of(store, "web"), pipeline, command_definition(pipeline, site.marker))
    put(store, tuple({**row, "by": "folder", "source": "good.yaml", "seal": ""} for row in rows))  # type: ignore[arg-type]


def own_signature(site: Site, store: Store, pipeline: str) -> None:
    """A seal that is a valid token of the server, for something else."""
    name = site.name("waits")
    waits = {
        "StartAt": "T",
        "States": {
            "T": {
                "Type": "Task",
                "Resource": "arn:aws:states:::lambda:invoke.waitForTaskToken",
                "Parameters": {"FunctionName": "echo", "Payload": {"token.$": "$$.Task.Token"}},
                "End": True,
            }
        },
    }
    assert site.clients[Role.OPERATOR].put(f"/machines/{name}", json=waits).status_code == 201
    started = site.clients[Role.OPERATOR].post(f"/machines/{name}/executions", json={}).json()["id"]
    history = json.dumps(site.admin.get(f"/executions/{started}/history").json())
    token = next((part for part in history.split('"') if part.count(".") == 2 and len(part) > 60), "x.y.z")
    rows = renamed(rows_of(store, "web"), pipeline, command_definition(pipeline, site.marker))
    put(store, tuple({**row, "seal": token} for row in rows))  # type: ignore[arg-type]


FORGERIES: Final[dict[str, Callable[[Site, Store, str], None]]] = {
    "a bare row": bare_row,
    "a copied row": copied_row,
    "a row that claims the folder": claimed_row,
    "a token of the server as seal": own_signature,
}


@pytest.mark.parametrize("form", FORGERIES)
def test_forged_row__forced_by_each_role__runs_no_command(site: Site, store: Store, form: str) -> None:
    pipeline = site.name("forged")
    FORGERIES[form](site, store, pipeline)

    answers = {role: site.force(role, pipeline, date=f"2026-02-{day:02d}") for day, role in enumerate(Role, 1)}

    assert set(answers.values()) == {202, 403}, answers
    for day, role in enumerate(Role, 1):
        if answers[role] == 202:
            run = site.run_status(pipeline, date=f"2026-02-{day:02d}")
            assert "project folder" in run["reason"], (role, run)
    assert not site.marker.exists()


def test_folder__its_commands__run_and_show_where_they_come_from(site: Site) -> None:
    assert site.force(Role.OPERATOR, "good") == 202

    assert site.run_status("good")["status"] == "COMPLETED"
    assert (site.folder / "good-2026-01-05").exists()
    shown = site.admin.get("/pipelines/good").json()
    text = (site.folder / "pipelines" / "good.yaml").read_bytes()
    assert shown["provenance"] == {
        "origin": "folder",
        "source": "good.yaml",
        "sha256": hashlib.sha256(text).hexdigest(),
        "by": "folder",
        "at": shown["at"],
    }


def test_definition__put_through_the_api__shows_the_api_as_origin(site: Site) -> None:
    text = json.dumps({"id": "sent", "trigger": {"type": "http", "config": {"url": "https://jobs.example/run"}}})
    assert site.admin.put("/pipelines/sent", content=text).status_code == 201

    shown = site.admin.get("/pipelines/sent").json()["provenance"]

    assert (shown["origin"], shown["by"]) == ("api", "admin")
    assert shown["sha256"] == hashlib.sha256(text.encode()).hexdigest()


def test_version_of_the_folder__its_row_replaced__runs_no_command(site: Site, store: Store) -> None:
    before = rows_of(store, "good")
    config = command_definition("good", site.marker)
    forged = renamed(before, "good", config)
    try:
        for rows in ((before[0], forged[1]), (forged[0], before[1]), forged):
            put(store, rows)
            day = f"2026-03-{int(site.name('d').rpartition('-')[2]) % 28 + 1:02d}"
            assert site.force(Role.OPERATOR, "good", date=day) == 202
            site.run_status("good", date=day)
            assert not site.marker.exists()
    finally:
        put(store, before)


def test_older_version__made_the_current_one_again__runs_no_command(site: Site, store: Store) -> None:
    """The content was in the folder once, as another version; now the rows say that it is the newest."""
    current, stored = rows_of(store, "good")
    pipeline = "good"
    later = {"version": 2}
    store.put(PIPELINES, {**current, **later})
    store.put(DEFINITIONS, {**stored, **later, **DEFINITIONS.key_attributes(version_key(pipeline, 2))})
    try:
        assert site.force(Role.OPERATOR, pipeline, date="2026-04-01") == 202
        assert "project folder" in site.run_status(pipeline, date="2026-04-01")["reason"]
        assert not (site.folder / "good-2026-04-01").exists()
    finally:
        put(store, (current, stored))


def _starts_asked(site: Site) -> int:
    asked = site.folder / "asked"
    return len(asked.read_text().splitlines()) if asked.exists() else 0


def start(site: Site, pipeline: str, date: str) -> int:
    body = {"date": date, "reason": "attack"}
    return site.clients[Role.OPERATOR].post(f"/pipelines/{pipeline}/runs", json=body).status_code


def test_evaluator__of_the_folder__is_asked(site: Site) -> None:
    assert start(site, "asks", "2026-01-06") == 202

    assert site.run_status("asks", date="2026-01-06")["status"] == "COMPLETED"
    assert _starts_asked(site) >= 1


def test_evaluator__of_a_forged_row__is_not_asked(site: Site, store: Store) -> None:
    pipeline, before = site.name("forged"), _starts_asked(site)
    rows = rows_of(store, "asks")
    put(store, renamed(rows, pipeline, rows[0]["config"].replace('"asks"', f'"{pipeline}"')))

    assert start(site, pipeline, "2026-01-06") == 202

    site.run_status(pipeline, date="2026-01-06")
    assert _starts_asked(site) == before


def test_folder__loaded_again_by_an_old_home__seals_its_definitions(tmp_path: Path) -> None:
    (tmp_path / "pipelines").mkdir()
    text = FILES["good.yaml"].format(folder=tmp_path)
    (tmp_path / "pipelines" / "good.yaml").write_text(text)
    with opened(tmp_path) as site:
        assert site.admin.get("/pipelines/good").json()["version"] == 1
    settings = Settings(home=tmp_path / ".headgate")
    opened_store = open_store(settings, SystemClock())
    with closing(opened_store.store) as store:
        # As a build without seals has left it.
        put(store, tuple({k: v for k, v in row.items() if k != "seal"} for row in rows_of(store, "good")))  # type: ignore[arg-type]
    with opened(tmp_path) as site:
        shown: dict[str, Any] = site.admin.get("/pipelines/good").json()
        assert (shown["version"], shown["provenance"]["origin"]) == (1, "folder")
        assert site.force(Role.ADMIN, "good") == 202
        assert site.run_status("good")["status"] == "COMPLETED"
