"""The audit trail: every action that changes something leaves an entry with caller, resource, change and reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from headgate.auth.audit_entry import Outcome
from headgate.auth.roles import Role
from headgate.bootstrap.project_folder import apply_folder
from headgate.errors import NotFoundError, StoreBusyError
from headgate.health.audit.actions import INTERRUPTED_SECONDS, Action
from headgate.health.audit.hash_chain import chain_of, head_key
from headgate.pipelines.catalog.rows import config_key
from headgate.serve.http.operations import OperationHandler
from headgate.serve.rest.audited_actions import AUDITED
from headgate.store.catalogue.tables import AUDIT, AUDIT_INTENT, PIPELINES
from tests.integration.serve.health_rig import HealthApi, done, health_api

PIPELINE: dict[str, Any] = {
    "id": "silver",
    "schedules": [{"cron": "0 6 * * *"}],
    "trigger": {"type": "http", "config": {"url": "https://jobs.example.org/silver"}},
}
MACHINE = {"StartAt": "Done", "States": {"Done": {"Type": "Succeed"}}}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HealthApi]:
    with health_api(tmp_path_factory.mktemp("home"), is_whole=True) as made:
        made.pipelines.service.put_machine()

        @made.service.app.workflow
        async def pay() -> None: ...

        yield made


@pytest.fixture
def ada(api: HealthApi) -> str:
    return api.key("ada", Role.ADMIN)


def _entries(api: HealthApi, entity: str) -> list[dict[str, Any]]:
    found = done(api.get("/audit", params={"entity": entity, "page_size": 100}), 200)["items"]
    return list(reversed(found))


def _defined(api: HealthApi, key: str) -> None:
    answer = api.put("/pipelines/silver?reason=first", PIPELINE, key=key)
    assert answer.status_code in (200, 201), answer.text


def test_pipeline_actions__each_leaves_an_entry_with_caller_change_and_reason(api: HealthApi, ada: str) -> None:
    _defined(api, ada)
    done(api.post("/pipelines/silver/pause", {"reason": "migration"}, key=ada), 200)
    done(api.post("/pipelines/silver/resume", {"reason": "over"}, key=ada), 200)

    put, pause, resume = _entries(api, "pipeline/silver")

    assert [(each["actor"], each["action"], each["reason"]) for each in (put, pause, resume)] == [
        ("ada", "pipeline.put", "first"),
        ("ada", "pipeline.pause", "migration"),
        ("ada", "pipeline.resume", "over"),
    ]
    assert (put["before_version"], put["after_version"]) == (None, 1)
    assert "state" in pause["changed"]
    assert len({put["digest"], pause["digest"], resume["digest"]}) == 3
    assert all(len(each["digest"]) == 64 for each in (put, pause, resume))


@pytest.mark.parametrize("verb", ["hold", "approve", "mark-success", "force"])
def test_period__orders__are_audited(api: HealthApi, ada: str, verb: str) -> None:
    _defined(api, ada)
    period = {"hold": "2026-01-20", "approve": "2026-01-20", "mark-success": "2026-01-21", "force": "2026-01-14"}[verb]

    done(api.post(f"/pipelines/silver/periods/{period}/{verb}", {"reason": "look first"}, key=ada), 200)

    entry = _entries(api, f"pipeline/silver/period/{period}")[-1]
    assert (entry["actor"], entry["action"], entry["reason"]) == (
        "ada",
        f"period.{verb.replace('-', '_')}",
        "look first",
    )
    assert entry["changed"]


def test_run_start__forced__is_audited_by_its_period(api: HealthApi, ada: str) -> None:
    _defined(api, ada)

    done(api.post("/pipelines/silver/runs", {"date": "2026-01-10", "reason": "again", "force": True}, key=ada), 202)

    (entry,) = _entries(api, "pipeline/silver/period/2026-01-10")
    assert (entry["actor"], entry["action"], entry["reason"]) == ("ada", "run.start", "again")


def test_machine_schedule_and_calendar__created_ones__are_named_in_their_entries(api: HealthApi, ada: str) -> None:
    done(api.put("/machines/m", MACHINE, key=ada), 201)
    done(api.post("/schedules", {"id": "nightly", "workflow": "pay", "cron": "0 3 * * *"}, key=ada), 201)
    done(api.post("/schedules/nightly/pause", {"reason": "quiet"}, key=ada), 200)
    done(api.put("/calendars/closed", {"dates": ["2026-12-25"]}, key=ada), 201)

    assert [each["action"] for each in _entries(api, "machine/m")] == ["machine.put"]
    assert [each["action"] for each in _entries(api, "schedule/nightly")] == ["schedule.create", "schedule.pause"]
    assert [each["action"] for each in _entries(api, "calendar/closed")] == ["calendar.put"]


def test_mute__is_audited_by_its_service_once(api: HealthApi, ada: str) -> None:
    made = done(api.post("/alert-mutes", {"until": api.at(60), "reason": "known"}, key=ada), 201)

    (entry,) = _entries(api, made["mute_id"])

    assert (entry["actor"], entry["action"], entry["reason"]) == ("ada", "alert.mute", "known")


def test_action__refused__leaves_no_entry(api: HealthApi, ada: str) -> None:
    assert api.post("/pipelines/nothing/pause", {"reason": "x"}, key=ada).status_code == 404
    assert api.post("/pipelines/silver/pause", {"reason": "x"}, key=api.key("vi", Role.VIEWER)).status_code == 403

    assert api.put("/pipelines/bad", {"id": "bad", "schedules": 7}, key=ada).status_code == 400
    plan = {"from": "2026-01-01", "to": "2026-01-02", "reason": "x", "dry_run": True}
    _defined(api, ada)
    count = len(_entries(api, "pipeline/silver"))
    assert api.post("/pipelines/silver/backfills", plan, key=ada).status_code == 200

    assert len(_entries(api, "pipeline/silver")) == count
    assert _entries(api, "pipeline/nothing") == _entries(api, "pipeline/bad") == []
    assert not any(each["actor"] == "vi" for each in _entries(api, "pipeline/silver"))


def test_action__process_ends_before_the_result_is_recorded__is_audited_as_interrupted(api: HealthApi) -> None:
    class Killed(BaseException):
        pass

    def effect() -> None:
        raise Killed

    with pytest.raises(Killed):
        api.health.actions.run(
            Action(actor="ada", action="pipeline.pause", entity="pipeline/killed", reason="why"),
            effect,
            state=lambda _result: None,
        )
    assert api.health.actions.recover(limit=100) == 0
    # An unreadable intent of the same chain comes first.
    bad = AUDIT_INTENT.key(chain=chain_of("pipeline/killed"), id="act_0")
    api.opened.store.put(AUDIT, {**AUDIT.key_attributes(bad), "intent": "?"})
    api.clock.advance(INTERRUPTED_SECONDS + 1)

    with structlog.testing.capture_logs() as logs:
        assert api.health.actions.recover(limit=100) == 1
        api.health.actions.recover(limit=100)
    assert [each["event"] for each in logs] == ["audit intent unreadable"]
    (entry,) = _entries(api, "pipeline/killed")
    assert (entry["actor"], entry["outcome"], entry["reason"]) == ("ada", Outcome.INTERRUPTED, "why")
    assert api.health.actions.recover(limit=100) == 0


def test_action__store_is_busy__is_audited_as_failed(api: HealthApi) -> None:
    with pytest.raises(StoreBusyError):
        api.health.actions.run(
            Action(actor="ada", action="pipeline.pause", entity="pipeline/busy"),
            _raises(StoreBusyError("busy")),
            state=lambda _result: None,
        )

    assert [each["outcome"] for each in _entries(api, "pipeline/busy")] == [Outcome.FAILED]


def test_action__not_found__leaves_neither_entry_nor_intent(api: HealthApi) -> None:
    with pytest.raises(NotFoundError):
        api.health.actions.run(
            Action(actor="ada", action="pipeline.pause", entity="pipeline/gone"),
            _raises(NotFoundError("there is none")),
            state=lambda _result: None,
        )
    api.clock.advance(INTERRUPTED_SECONDS + 1)

    assert api.health.actions.recover(limit=100) == 0
    assert _entries(api, "pipeline/gone") == []


def test_audit_log__with_entries_of_all_outcomes__verifies(api: HealthApi, ada: str) -> None:
    report = done(api.get("/audit/verify", key=ada), 200)

    assert report["problems"] == []
    assert report["entries"] > 0


def test_operations__each_that_is_not_a_get__declares_how_it_is_audited(api: HealthApi) -> None:
    handlers = [each for each in api.routes if isinstance(each, OperationHandler)]
    declared = {(each.method, each.path) for handler in handlers for each in handler.operations if each.method != "GET"}

    assert declared == set(AUDITED)


def test_folder__definition_that_is_new_or_changed__is_audited_and_an_unchanged_one_is_not(
    api: HealthApi, tmp_path: Path
) -> None:
    file = tmp_path / "pipelines" / "bronze.yaml"
    file.parent.mkdir()
    definition = "id: bronze\nschedules: [{cron: '0 6 * * *'}]\ntrigger: {type: command, config: {command: [%s]}}\n"
    for program in ("a", "a", "b"):
        file.write_text(definition % program)
        apply_folder(api.pipelines, file.parent, actions=api.health.actions)

    first, second = _entries(api, "pipeline/bronze")

    assert (first["actor"], first["action"], first["after_version"]) == ("folder", "pipeline.put", 1)
    assert "bronze.yaml" in first["reason"]
    assert (second["before_version"], second["after_version"]) == (1, 2)
    assert "source_digest" in second["changed"]


@pytest.mark.parametrize("is_tampered", [False, True], ids=["unreadable row", "tampered chain"])
def test_folder__one_definition_cannot_be_stored_or_read__the_server_starts_with_the_others(
    tmp_path: Path, is_tampered: bool
) -> None:
    folder = tmp_path / "pipelines"
    folder.mkdir()
    for name in ("bronze", "silver"):
        text = f"id: {name}\nschedules: [{{cron: '0 6 * * *'}}]\ntrigger: {{type: command, config: {{command: [a]}}}}\n"
        (folder / f"{name}.yaml").write_text(text)
    chain = chain_of("pipeline/bronze")
    assert chain != chain_of("pipeline/silver")

    with health_api(tmp_path / "home", is_whole=True) as api:
        store, definitions = api.health.store, api.pipelines.service.definitions
        if is_tampered:
            store.put(AUDIT, {**AUDIT.key_attributes(head_key(chain)), "seal": "forged", "sequence": 1, "version": 1})
        else:
            row = {**PIPELINES.key_attributes(config_key("bronze")), "config": "{", "version": 1}
            store.put(PIPELINES, row)

        apply_folder(api.pipelines, folder, actions=api.health.actions)

        stored = {each.pipeline.id for each in definitions.all().pipelines}
        assert stored == ({"silver"} if is_tampered else {"bronze", "silver"})
        assert not is_tampered or not api.health.audit.has_valid_head(chain)


@pytest.mark.parametrize("role", [Role.OPERATOR, Role.SERVICE])
@pytest.mark.parametrize("type", ["headgate.pipeline.completed", "Headgate.x"])
def test_event__of_a_type_of_headgate_itself__needs_an_administrator(api: HealthApi, role: Role, type: str) -> None:
    key = api.key(f"{role}-events", role)

    assert api.post("/events", {"type": type, "data": {}}, key=key).status_code == 403
    assert api.post("/events", {"type": "order.created", "data": {}}, key=key).status_code == 202


def _raises(error: Exception) -> Callable[[], None]:
    def effect() -> None:
        raise error

    return effect


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("deep", "[" * 60 + "]" * 60),
        ("large", "1e300"),
        ("long", "1" + "0" * 60),
        ("nameless", '{"": 1}'),
    ],
)
def test_definition__value_that_no_row_can_hold__change_is_answered_and_audited(
    api: HealthApi, ada: str, name: str, result: str
) -> None:
    passed = f'{{"StartAt": "P", "States": {{"P": {{"Type": "Pass", "Result": {result}, "End": true}}}}}}'

    first = api.put(f"/machines/{name}", content=passed.encode(), key=ada)
    assert first.status_code < 300, first.text
    second = api.put(f"/machines/{name}", content=passed.replace('"P"', '"Q"').encode(), key=ada)
    assert second.status_code < 300, second.text

    entries = _entries(api, f"machine/{name}")
    assert [(each["action"], each.get("outcome", "")) for each in entries] == [("machine.put", "")] * 2
    assert len({each["digest"] for each in entries}) == 2
    assert "definition" in entries[1]["changed"]
