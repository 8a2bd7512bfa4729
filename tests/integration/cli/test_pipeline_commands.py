"""The commands about pipelines against a server on a port, in virtual time: what they send, print and end with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.errors import ConflictError, InvalidPayloadError, NotFoundError, UserError
from headgate.pipelines.authoring.loader import load_pipeline
from headgate.pipelines.enums import ExpectationKind, ExpectationVerdict
from headgate.pipelines.watchdog.expectations import Expectation, ExpectationJudgement
from headgate.pipelines.watchdog.verdicts import Verdicts
from headgate.triggers.contract import JobState
from tests.integration.cli.pipeline_site import Site, site_in
from tests.unit.notify.rig import a_notice

TODAY = "2025-06-15"
SILVER = """\
# Orders, cleaned.
id: silver
owner: data
timezone: Europe/Berlin
schedules:
  - sensor: {key: landed}
readiness:
  rules:
    - {key: orders, check: gte, field: count, value: 10}
trigger:
  type: http
  config: {url: "https://jobs.example.org/silver"}
"""


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_in(tmp_path) as made:
        yield made


@pytest.fixture
def silver(site: Site) -> Site:
    site.said("pipeline", "apply", site.write("silver.yaml", SILVER))
    return site


def begun(site: Site) -> str:
    """Have the period of today begin and its job start, and return the run."""
    site.said("sensor", "push", "silver", "landed", "--data", f'{{"date": "{TODAY}"}}')
    site.said("sensor", "push", "silver", "orders", "--data", '{"count": 12}')
    site.api.settle()
    (run,) = site.json("run", "ls", "silver")
    return str(run["run_id"])


COMMAND = 'id: cmd\ntrigger:\n  type: command\n  config: {command: ["true"]}\n'


def cells(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


# Definitions.


def test_apply__new_same_and_changed__says_what_became_of_each(site: Site) -> None:
    file = site.write("defs/silver.yaml", SILVER)
    site.write("defs/gold.yaml", "id: gold\nschedules:\n  - upstream: [{pipeline: silver}]\n")
    folder = str(Path(file).parent)

    first = site.said("pipeline", "apply", folder, "--reason", "a start")
    again = site.said("pipeline", "apply", folder)
    site.write("defs/silver.yaml", SILVER.replace("value: 10", "value: 20"))
    changed = site.json("pipeline", "apply", folder)

    assert first == "gold: version 1, new\nsilver: version 1, new\n"
    assert again == "gold: version 1, unchanged\nsilver: version 1, unchanged\n"
    gold = str(site.folder / "defs" / "gold.yaml")
    assert changed == [
        {"pipeline_id": "gold", "source": gold, "version": 1, "before": 1},
        {"pipeline_id": "silver", "source": file, "version": 2, "before": 1},
    ]
    assert [each["reason"] for each in site.json("pipeline", "versions", "silver")] == ["", "a start"]
    # The text that people wrote is what is kept, with its comments.
    assert site.api.pipelines.definitions.source_text("silver", 1) == SILVER


def test_apply__one_of_two_is_wrong__applies_the_other_and_exits_with_2(site: Site) -> None:
    site.write("defs/silver.yaml", SILVER)
    site.write("defs/worse.yaml", "id: gold\nperiod: dayly\n")

    ended = site.run("pipeline", "apply", str(site.folder / "defs"))

    assert ended.exit_code == 2
    assert "worse.yaml:2:9: period" in ended.stderr
    assert ended.stdout == "silver: version 1, new\n"
    assert [each["id"] for each in site.json("pipeline", "ls")] == ["silver"]


def test_apply__what_runs_a_program_on_the_server__is_refused_with_the_remedy_and_the_rest_applied(site: Site) -> None:
    site.write("defs/cmd.yaml", COMMAND)
    site.write("defs/silver.yaml", SILVER)

    ended = site.run("pipeline", "apply", str(site.folder / "defs"))

    assert (ended.exit_code, ended.stdout) == (2, "silver: version 1, new\n")
    assert "cmd: refused: " in ended.stderr
    assert "runs a program on the server" in ended.stderr
    assert "then run 'headgate reload'" in ended.stderr


def test_apply__unchanged_command_pipeline_of_the_folder__does_not_block_the_others(site: Site) -> None:
    loaded = load_pipeline(COMMAND, "cmd.yaml")
    site.api.pipelines.definitions.put(loaded, COMMAND, "folder", source="cmd.yaml", is_from_folder=True)
    site.write("defs/cmd.yaml", f"# a comment more\n{COMMAND}")
    site.write("defs/silver.yaml", SILVER)
    folder = str(site.folder / "defs")

    planned = site.said("plan", folder)
    ended = site.run("pipeline", "apply", folder)

    assert planned.endswith("2 pipelines: 1 new, 1 unchanged\n")
    assert (ended.exit_code, ended.stdout) == (0, "cmd: version 1, unchanged\nsilver: version 1, new\n")


def test_plan__changed_command_pipeline__is_counted_as_refused(site: Site) -> None:
    file = site.write("cmd.yaml", COMMAND)

    planned = site.run("plan", file)
    dry = site.run("pipeline", "apply", file, "--dry-run")

    assert (planned.exit_code, dry.exit_code) == (2, 2)
    assert planned.stdout == dry.stdout
    assert planned.stdout.endswith("1 pipeline: 1 refused\n")
    assert site.json("pipeline", "ls") == []


def test_plan__folder__says_what_would_change_and_changes_nothing(silver: Site) -> None:
    silver.write("defs/silver.yaml", SILVER.replace("value: 10", "value: 20"))
    silver.write("defs/gold.yaml", "id: gold\nschedules:\n  - upstream: [{pipeline: silver}, {pipeline: bronze}]\n")
    folder = str(silver.folder / "defs")

    ended = silver.run("plan", folder)
    as_json = silver.json("plan", folder)

    assert ended.exit_code == 0
    lines = ended.stdout.splitlines()
    assert lines[:2] == ["gold: new", "  + pipeline gold"]
    assert "silver: changed" in lines
    assert any("10" in line and "20" in line and line.startswith("  ~ readiness.rules") for line in lines)
    assert lines[-1] == "2 pipelines: 1 new, 1 changed"
    assert "warning: upstream 'bronze' is no pipeline that is known" in ended.stderr
    assert "'silver' is no pipeline" not in ended.stderr
    assert [(each["pipeline_id"], each["is_new"]) for each in as_json["changes"]] == [("gold", True), ("silver", False)]
    assert [each["version"] for each in silver.json("pipeline", "ls")] == [1]


def test_plan__same_definitions__names_what_only_the_server_has(silver: Site) -> None:
    silver.said("pipeline", "apply", silver.write("other.yaml", "id: bronze\n"))

    said = silver.said("plan", str(silver.folder / "silver.yaml"))

    assert said == "bronze: only on the server, unchanged\n1 pipeline: 1 unchanged\n"


def test_plan__what_only_the_server_knows_to_be_wrong__is_refused_with_the_file(silver: Site) -> None:
    away = SILVER.replace("  - sensor: {key: landed}", "  - {cron: 0 6 * * *, exclude: {calendar: nope}}")
    file = silver.write("silver.yaml", away)

    ended = silver.run("plan", file)

    assert ended.exit_code == 2
    assert ended.stderr.startswith(f"{file}:6:")
    assert "nope" in ended.stderr
    assert "silver: refused" in ended.stdout


def test_diff__versions__shows_fields_and_defaults_to_the_last_change(silver: Site) -> None:
    silver.said("pipeline", "apply", silver.write("silver.yaml", SILVER.replace("owner: data", "owner: web")))

    assert silver.said("diff", "silver") == "silver: version 1 to 2\n  ~ owner: data → web\n"
    assert silver.said("diff", "silver", "2", "1") == "silver: version 2 to 1\n  ~ owner: web → data\n"
    assert silver.said("diff", "silver", "2", "2").endswith("no differences\n")
    assert silver.said("pipeline", "diff", "silver") == silver.said("diff", "silver")
    assert silver.json("diff", "silver", "1") == {
        "pipeline_id": "silver",
        "from": 1,
        "to": 2,
        "changes": ["~ owner: data → web"],
    }


def test_diff__first_version__is_new_in_all(silver: Site) -> None:
    assert silver.said("diff", "silver") == "silver: version 0 to 1\n  + pipeline silver\n"


def test_pipeline__listed_shown_and_taken_away__is_what_was_defined(silver: Site) -> None:
    listed = cells(silver.said("pipeline", "ls"))
    shown = silver.said("pipeline", "show", "silver")

    assert listed[1] == ["silver", "daily", "stream", "Europe/Berlin", "3", "data", "v1"]
    assert silver.json("pipeline", "ls", "--owner", "web") == []
    # On the wall of the pipeline, not in UTC.
    assert "1, by local at 2025-06-15 17:06:40 CEST" in shown
    assert '"timezone": "Europe/Berlin"' in shown
    assert ["control", "ACTIVE"] in cells(shown)
    assert silver.said("pipeline", "rm", "silver", "--reason", "done") == "silver: deleted\n"
    assert silver.said("pipeline", "ls").startswith("no pipelines")
    assert "deleted" in silver.said("pipeline", "versions", "silver")
    assert isinstance(silver.run("pipeline", "show", "silver").exception, NotFoundError)


def test_pause__until_a_time__is_reported_in_the_zone_of_the_pipeline(silver: Site) -> None:
    paused = silver.said("pipeline", "pause", "silver", "--reason", "storm", "--until", "2025-06-15T20:00:00Z")
    shown = silver.said("pipeline", "show", "silver")
    resumed = silver.said("pipeline", "resume", "silver", "--reason", "calm")

    assert paused == "silver: PAUSED until 2025-06-15 22:00:00 CEST\n"
    assert "PAUSED, by local: storm" in shown
    assert resumed == "silver: ACTIVE\n"
    assert silver.run("pipeline", "pause", "silver").exit_code == 2


# Why.


def test_why__waiting_then_running_then_done__is_a_sentence_and_what_was_looked_at(silver: Site) -> None:
    silver.said("sensor", "push", "silver", "landed", "--data", f'{{"date": "{TODAY}"}}')
    silver.api.settle()
    waiting = silver.said("why", "silver", "--date", TODAY)
    begun(silver)
    running = silver.said("why", "silver", "--date", TODAY)
    silver.api.jobs.state = JobState.SUCCEEDED
    silver.env.advance("40s")
    silver.api.settle()
    done = silver.said("why", "silver")

    first, *tree = waiting.splitlines()
    assert first.startswith(f"silver of {TODAY} has not started: 0 of 1 rules hold; orders is missing since 17:06 CEST")
    assert any(line.startswith("    [UNKNOWN] orders") for line in tree)
    assert running.startswith(f"silver of {TODAY} is running since 17:06 CEST, attempt 1 (run_")
    assert done.startswith(f"silver of {TODAY} is done since 17:07 CEST, by run_")


def test_why__never_asked_for__says_what_it_waits_for(silver: Site) -> None:
    assert "has not started: it waits for" in silver.said("why", "silver", "--date", "2025-06-01")
    assert silver.json("why", "silver", "--date", "2025-06-01")["standing"] == "awaiting"


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("why", "nope"), NotFoundError),
        (("why", "silver", "--date", "2025-13-01"), InvalidPayloadError),
        (("why", "silver", "--schedule", "nightly"), InvalidPayloadError),
        (("run", "show", "run_nope"), NotFoundError),
        (("period", "show", "silver", "2025-01-01"), NotFoundError),
        (("period", "approve", "silver", "2025-01-01", "--reason", "x"), ConflictError),
        (("sensor", "push", "silver", "landed", "--data", "[1]"), InvalidPayloadError),
        (("sensor", "push", "silver", "landed", "--data", "{"), InvalidPayloadError),
        (("sensor", "push", "nope", "landed"), NotFoundError),
        (("sensor", "rm", "silver", "landed"), NotFoundError),
        (("backfill", "show", "backfill_nope"), NotFoundError),
        (("calendar", "show", "nope"), NotFoundError),
        (("alert", "show", "alert_01M7J1SW5J0HF0FBVWNQKJ1JVH"), NotFoundError),
        (("alert", "show", "nope"), UserError),
        (("alert", "test", "nope"), NotFoundError),
        (("pipeline", "events", "silver", "--name", "NOPE"), InvalidPayloadError),
    ],
)
def test_mistake__of_any_command__is_the_servers_error_with_its_exit_code(
    silver: Site, arguments: tuple[str, ...], kind: type[UserError]
) -> None:
    ended = silver.run(*arguments)

    assert isinstance(ended.exception, kind), ended.exception
    assert ended.stdout == ""


# Trials.


def test_evaluate__before_and_after_the_sensor__says_what_each_rule_came_to(silver: Site) -> None:
    before = silver.said("pipeline", "evaluate", "silver", "--date", TODAY)
    silver.said("sensor", "push", "silver", "orders", "--data", '{"count": 12}')
    after = silver.said("pipeline", "evaluate", "silver", "--date", TODAY)

    assert before.startswith(f"not_ready  silver of {TODAY} (stream): 0 of 1 rules hold")
    assert "\n  [UNKNOWN] orders" in before
    assert after.startswith("proceed  silver")
    assert "\n  [PASS] orders" in after
    assert silver.json("run", "ls", "silver") == []


def test_simulate__past_day__says_when_it_would_have_been_ready(silver: Site) -> None:
    begun(silver)

    said = silver.said("pipeline", "simulate", "silver", "--date", TODAY)

    assert said.startswith(f"ready  silver of {TODAY} (stream)")
    assert "2025-06-15 17:06:40 CEST" in said


# Sensors, traits, markers.


def test_sensor__pushed_listed_and_forgotten__by_key_and_period(silver: Site) -> None:
    data = silver.write("data.json", '{"count": 7}')

    assert silver.said("sensor", "push", "silver", "orders", "--data", f"@{data}") == (
        f"silver: orders, period {TODAY}, version 1\n"
    )
    pushed = silver.said("sensor", "push", "silver", "orders", "--period", "2025-06-14")
    assert pushed == "silver: orders, period 2025-06-14, version 1\n"
    assert (
        silver.said("sensor", "push", "silver", "rates", "--all-periods", "--new")
        == "silver: rates, all periods, version 1\n"
    )
    listed = silver.said("sensor", "ls", "silver")
    assert cells(listed)[1:] == [
        ["orders", TODAY, "v1", "2025-06-15", "17:06:40", "CEST", "local", '{"count":7}'],
        ["orders#2025-06-14", "2025-06-14", "v1", "2025-06-15", "17:06:40", "CEST", "local", "{}"],
        ["rates", "all", "v1", "2025-06-15", "17:06:40", "CEST", "local", "{}"],
    ]
    assert "more than 1 results" in silver.said("sensor", "ls", "silver", "--limit", "1")
    gone = silver.said("sensor", "rm", "silver", "orders", "--period", "2025-06-14")
    assert gone == "silver: orders#2025-06-14 deleted\n"
    assert [each["key"] for each in silver.json("sensor", "ls", "silver", "--key", "orders")] == ["orders"]


def test_trait__pushed_for_a_while__expires(silver: Site) -> None:
    said = silver.said("trait", "push", "silver", "quality", "pass", "--ttl", "10m", "--reason", "12 rows")
    silver.said("trait", "push", "silver", "schema", "FAIL", "--ttl", "0s", "--value", '{"missing": ["id"]}')
    silver.env.advance("11m")

    assert said == "silver: quality is PASS until 2025-06-15 17:16:40 CEST\n"
    assert [(each["trait_type"], each["status"]) for each in silver.json("trait", "ls", "silver")] == [
        ("quality", "STALE"),
        ("schema", "FAIL"),
    ]
    assert '{"missing":["id"]}' in silver.said("trait", "ls", "silver")
    assert "12 rows" in silver.said("trait", "history", "silver", "quality")
    assert silver.run("trait", "push", "silver", "quality", "maybe").exit_code == 2


def test_marker__twice_and_again__asks_once_and_once_more(silver: Site) -> None:
    arguments = ("marker", "put", "silver", "--date", TODAY)

    assert silver.said(*arguments) == f"silver: {TODAY} (stream) requested\n"
    assert "--again to request it again" in silver.said(*arguments)
    assert silver.said(*arguments, "--again", "--data", '{"why": "test"}').endswith("requested\n")
    assert cells(silver.said("marker", "ls", "silver", "--dates", "2025-06"))[1][:3] == [TODAY, "stream", "2"]
    assert silver.said("marker", "ls", "silver", "--dates", "2025-07") == "no requested periods\n"


# Runs and periods.


def test_run__started_by_hand_and_forced__starts_its_job_though_nothing_is_ready(silver: Site) -> None:
    said = silver.said("run", "start", "silver", "--date", TODAY, "--force", "--reason", "month's end")
    silver.api.settle()

    assert said == f"silver of {TODAY} (stream): started\n"
    (run,) = silver.json("run", "ls", "silver")
    assert (run["status"], run["cause"], run["by"]) == ("RUNNING", "manual", "local")
    assert silver.api.jobs.started == [run["run_id"]]
    assert silver.run("run", "start", "silver", "--date", TODAY).exit_code == 2


def test_run__from_start_to_rerun__is_seen_in_lists_log_and_jobs(silver: Site) -> None:
    run_id = begun(silver)
    silver.api.jobs.state = JobState.SUCCEEDED
    silver.env.advance("40s")
    silver.api.settle()

    listed = cells(silver.said("run", "ls", "silver", "--status", "completed"))
    shown = silver.said("run", "show", run_id)
    log = cells(silver.said("period", "ls", "silver", "--dates", "2025-06"))
    period = silver.said("period", "show", "silver", TODAY)

    assert listed[1][:6] == [run_id, TODAY, "stream", "COMPLETED", "1", "sensor"]
    assert silver.json("run", "ls", "silver", "--status", "FAILED") == []
    assert "PENDING 2025-06-15 17:06:40 CEST → TRIGGERING" in shown
    assert "duration" in shown
    assert log[1][:5] == [TODAY, "stream", "COMPLETED", "1", "sensor"]
    assert period.startswith(f"silver of {TODAY} (stream): COMPLETED")
    assert run_id in period
    assert run_id in silver.said("run", "jobs", "silver", "--date", TODAY)
    too_late = silver.run("run", "cancel", run_id, "--reason", "too late")
    assert isinstance(too_late.exception, ConflictError)
    assert too_late.exception.exit_code == 3
    asked = silver.said("run", "rerun", "silver", "--date", TODAY, "--reason", "a typo")
    assert f"silver of {TODAY}: REQUESTED" in asked
    silver.api.settle()
    (rerun,) = silver.json("run", "reruns", "silver")
    assert (rerun["note"], rerun["reason"]) == ("a typo", "manual")
    assert rerun["rerun_id"] in silver.said("run", "reruns")


def test_run__cancelled__ends_with_its_job(silver: Site) -> None:
    run_id = begun(silver)

    said = silver.said("run", "cancel", run_id, "--reason", "wrong input")
    silver.api.settle()

    assert said.startswith(f"{run_id}: silver of {TODAY} is ")
    assert silver.json("run", "show", run_id)["status"] == "CANCELLED"
    assert silver.api.jobs.cancelled == [run_id]


def test_run__completed_by_its_job__is_failed_with_its_words(silver: Site) -> None:
    run_id = begun(silver)

    silver.said("run", "complete", run_id, "failed", "--reason", "disk full", "--category", "permanent")
    silver.api.settle()

    run = silver.json("run", "show", run_id)
    assert (run["status"], run["category"], run["reason"]) == ("FAILED", "PERMANENT", "disk full")
    assert "PERMANENT: disk full" in silver.said("run", "ls", "silver")


@pytest.mark.parametrize(
    ("order", "status", "said"),
    [
        ("hold", "PENDING", "held by local: because"),
        ("skip", "CANCELLED", "skip by local: because"),
        ("mark-success", "COMPLETED", "mark-success by local: because"),
        ("force", "PENDING", "force by local: because"),
    ],
)
def test_period__ordered__stands_so_and_says_by_whom(silver: Site, order: str, status: str, said: str) -> None:
    answer = silver.said("period", order, "silver", TODAY, "--reason", "because")

    assert answer == f"silver of {TODAY} (stream): {status}; {said}\n"
    assert said in silver.said("period", "ls", "silver")


def test_period__held_and_approved__goes_on(silver: Site) -> None:
    silver.said("period", "hold", "silver", TODAY, "--reason", "ann looks at it")
    silver.said("sensor", "push", "silver", "orders", "--data", '{"count": 12}')
    silver.said("sensor", "push", "silver", "landed", "--data", f'{{"date": "{TODAY}"}}')
    silver.api.settle()
    assert "local holds it since 17:06 CEST" in silver.said("why", "silver", "--date", TODAY)
    assert silver.api.jobs.started == []

    said = silver.said("period", "approve", "silver", TODAY, "--reason", "fine", "--schedule", "stream")
    silver.api.settle()

    assert said == f"silver of {TODAY} (stream): PENDING\n"
    assert len(silver.api.jobs.started) == 1


# Backfills.


def test_backfill__dry_run__shows_what_it_would_do_and_does_nothing(silver: Site) -> None:
    silver.said("period", "mark-success", "silver", "2025-06-11", "--reason", "by hand")
    arguments = ("backfill", "create", "silver", "--from", "2025-06-10", "--to", "2025-06-12", "--reason", "new rule")

    said = silver.said(*arguments, "--dry-run", "--order", "newest-first")

    assert said.splitlines() == [
        "to run: 2025-06-12",
        "to run: 2025-06-10",
        "completed: 2025-06-11",
        "2 periods to run, 1 completed, 0 excluded",
    ]
    assert silver.json("backfill", "ls", "silver") == []


def test_backfill__created_paused_resumed_and_cancelled__says_how_far_it_is(silver: Site) -> None:
    arguments = ("backfill", "create", "silver", "--from", "2025-06-10", "--to", "2025-06-12", "--reason", "new rule")
    made = silver.json(*arguments, "--concurrency", "2", "--stop-on-failure")
    backfill_id = made["backfill_id"]

    assert (made["dates_count"], made["concurrency"], made["stop_on_failure"]) == (3, 2, True)
    paused = silver.said("backfill", "pause", backfill_id, "--reason", "busy")
    assert paused.startswith(f"{backfill_id}: silver, PAUSED, 0 of 3 completed")
    assert "RUNNING" in silver.said("backfill", "resume", backfill_id, "--reason", "quiet")
    shown = silver.said("backfill", "show", backfill_id)
    assert "2025-06-10 to 2025-06-12" in shown
    assert "CANCELLED" in silver.said("backfill", "cancel", backfill_id, "--reason", "enough")
    assert cells(silver.said("backfill", "ls", "silver"))[1][:3] == [backfill_id, "stream", "CANCELLED"]
    refused = silver.run("backfill", "resume", backfill_id, "--reason", "again")
    assert isinstance(refused.exception, ConflictError)


def test_backfill__long__names_the_first_and_the_last(silver: Site) -> None:
    arguments = ("backfill", "create", "silver", "--from", "2025-01-01", "--to", "2025-03-31", "--reason", "x")

    said = silver.said(*arguments, "--dry-run").splitlines()

    assert (len(said), said[-2], said[-1]) == (
        22,
        "and 70 more, up to 2025-03-31",
        "90 periods to run, 0 completed, 0 excluded",
    )


# Events and expectations.


def test_events__of_one_and_of_all__are_in_the_order_of_time(silver: Site) -> None:
    begun(silver)
    names = [each["name"] for each in silver.json("pipeline", "events", "silver")]
    lines = silver.said("pipeline", "events", "silver", "--limit", "3").splitlines()

    assert names.index("PIPELINE_DEFINED") < names.index("JOB_TRIGGERED")
    assert len(lines) == 3
    assert lines[-1].startswith("2025-06-15 17:06:40 CEST  info")
    only = silver.json("pipeline", "events", "silver", "--name", "JOB_TRIGGERED", "--name", "PIPELINE_DEFINED")
    assert {each["name"] for each in only} == {"JOB_TRIGGERED", "PIPELINE_DEFINED"}
    assert "JOB_TRIGGERED" in silver.said("pipeline", "events")
    assert {each["name"] for each in silver.json("pipeline", "events", "--name", "JOB_TRIGGERED")} == {"JOB_TRIGGERED"}
    assert silver.said("pipeline", "events", "silver", "--since", "2025-06-16") == "no events\n"


def judged(site: Site, verdict: ExpectationVerdict, margin_seconds: float | None, reason: str = "") -> None:
    pipelines = site.api.pipelines
    now = pipelines.clock.now()
    expectation = Expectation(
        kind=ExpectationKind.COMPLETION_SLA, schedule_id="stream", date=TODAY, due_at=now, ready_at=now
    )
    judgement = ExpectationJudgement(verdict=verdict, margin_seconds=margin_seconds, reason=reason)
    assert Verdicts(pipelines.store, pipelines.clock, pipelines.event_writer).judge_once(
        "silver", expectation, judgement
    )


def test_expect__missed__is_listed_without_being_asked_for(silver: Site) -> None:
    judged(silver, ExpectationVerdict.MISSED, -90.0, "expected by then")

    said = silver.said("expect", "ls")

    assert "MISSED" in said
    assert "2025-06-15 17:06:40 CEST" in said
    assert "1m30s late" in said.replace(" 30s", "30s")
    assert silver.json("expect", "ls", "--verdict", "met") == []
    assert len(silver.json("expect", "ls", "--pipeline", "silver")) == 1
    assert silver.json("expect", "ls", "--pipeline", "silver", "--since", "2025-06-16") == []


def test_expect__met__shows_by_how_much(silver: Site) -> None:
    judged(silver, ExpectationVerdict.MET, 30.0)

    assert "30s early" in silver.said("expect", "ls", "--verdict", "MET")
    assert silver.said("expect", "ls") == "no matching verdicts\n"


# Calendars.


def test_calendar__kept_used_and_forgotten__from_options_and_files(site: Site) -> None:
    made = site.said("calendar", "put", "company", "--weekends", "--holidays", "DE", "--date", "2025-12-24")
    site.said("calendar", "put", "team", "--day", "friday", "--calendar", "company")
    away = SILVER.replace("  - sensor: {key: landed}", "  - {cron: 0 6 * * *, exclude: {calendar: team}}")
    site.said("pipeline", "apply", site.write("silver.yaml", away))

    assert made == "company: version 1; excludes weekends, holidays of DE, 1 date\n"
    assert cells(site.said("calendar", "ls"))[2][:2] == ["team", "v1"]
    shown = site.said("calendar", "show", "company")
    assert "weekends  yes" in shown
    in_use = site.run("calendar", "rm", "team")
    assert isinstance(in_use.exception, ConflictError)
    assert "pipeline silver" in in_use.exception.message
    # What one has shown, another can put: what only the server says is left out.
    site.write("c.json", site.said("calendar", "show", "company", "--json"))
    again = site.said("calendar", "put", "copy", "-f", str(site.folder / "c.json"))
    assert again == "copy: version 1; excludes weekends, holidays of DE, 1 date\n"
    assert site.said("calendar", "rm", "copy") == "copy: deleted\n"


# Alerts.


def alerted(site: Site) -> dict[str, Any]:
    now_ms = int(site.env.clock.seconds() * 1000)
    site.notifier.take(a_notice(site.env.service.ids.ulid(), now_ms, pipeline_id="silver", date=TODAY))
    found: list[dict[str, Any]] = site.json("alert", "ls", "--pipeline", "silver")
    return found[0]


def test_alert__of_a_failed_job__is_listed_shown_and_acknowledged(silver: Site) -> None:
    alert = alerted(silver)

    assert alert["status"] == "OPEN"
    assert alert["alert_id"] in silver.said("alert", "ls", "--status", "open")
    shown = silver.said("alert", "show", alert["alert_id"])
    assert "2025-06-15 17:06:40 CEST" in shown
    assert "ops" in shown
    said = silver.said("alert", "ack", alert["alert_id"], "--note", "on it")
    assert said.rstrip().endswith("(acknowledged by local)")
    assert silver.said("alert", "ls", "--status", "OPEN") == "no alerts\n"
    assert "acknowledged by local" in silver.said("alert", "ls", "--since", "2025-06-15")


def test_alert__muted_and_unmuted__says_what_is_silenced(silver: Site) -> None:
    until = ("--until", "2025-06-15T20:00:00Z")
    mute = silver.json("alert", "mute", "--pipeline", "sil*", "--event", "JOB_*", *until, "--reason", "migration")
    said = silver.said("alert", "mute", "--severity-max", "warning", *until, "--reason", "noise")

    assert ": everything up to warning, until 2025-06-15 20:00:00" in said
    listed = silver.said("alert", "mutes")
    assert "event JOB_*, pipeline sil*" in listed
    assert alerted(silver)["status"] == "MUTED"
    assert silver.said("alert", "unmute", mute["mute_id"], "--reason", "over") == f"{mute['mute_id']}: ended\n"
    assert mute["mute_id"] not in silver.said("alert", "mutes")
    assert silver.run("alert", "mute", *until).exit_code == 2


def test_alert__test_of_a_channel__reaches_it(site: Site) -> None:
    assert cells(site.said("alert", "channels"))[1:] == [["ops"]]
    assert site.said("alert", "test", "ops").startswith("ops: test message delivered")
    assert "This is a test of the channel ops" in (site.folder / "ops.jsonl").read_text()
    (site.folder / "ops.jsonl").unlink()
    (site.folder / "ops.jsonl").mkdir()
    assert site.run("alert", "test", "ops").exit_code != 0


def test_json__of_every_list__is_a_list(silver: Site) -> None:
    lists = [
        ("pipeline", "ls"), ("pipeline", "versions", "silver"), ("pipeline", "events", "silver"),
        ("pipeline", "events"), ("sensor", "ls", "silver"), ("trait", "ls", "silver"), ("marker", "ls", "silver"),
        ("run", "ls", "silver"), ("period", "ls", "silver"), ("run", "reruns"),
        ("run", "jobs", "silver", "--date", TODAY), ("backfill", "ls", "silver"), ("expect", "ls"),
        ("calendar", "ls"), ("alert", "ls"), ("alert", "mutes"), ("alert", "channels"),
    ]  # fmt: skip

    assert all(isinstance(silver.json(*arguments), list) for arguments in lists)


# Lists over all pipelines, and pools.


def test_ls__without_a_pipeline__lists_all_and_says_when_it_cuts_off(silver: Site) -> None:
    run_id = begun(silver)
    silver.said("pipeline", "apply", silver.write("gold.yaml", SILVER.replace("id: silver", "id: gold\ntier: 1")))
    silver.said("sensor", "push", "gold", "landed", "--data", f'{{"date": "{TODAY}"}}')
    silver.api.settle()

    listed = cells(silver.said("run", "ls"))
    assert listed[0][:3] == ["RUN", "PIPELINE", "DATE"]
    assert {row[1] for row in listed[1:]} == {"gold", "silver"}
    assert [each["run_id"] for each in silver.json("run", "ls", "--status", "running")] == [run_id]
    assert [each["pipeline_id"] for each in silver.json("run", "ls", "--open", "--tier", "1")] == ["gold"]
    assert silver.json("run", "ls", "--owner", "nobody") == []
    cut = silver.run("run", "ls", "--limit", "1")
    assert "only the first 1 are shown; use --limit for more" in cut.stderr


def test_backfill_ls_and_upcoming__without_a_pipeline__list_all(silver: Site) -> None:
    silver.said("backfill", "create", "silver", "--from", "2025-06-01", "--to", "2025-06-02", "--reason", "late source")
    silver.said(
        "pipeline",
        "apply",
        silver.write("night.yaml", "id: night\nowner: lake\nschedules:\n  - cron: '0 3 * * *'\n"),
    )

    assert cells(silver.said("backfill", "ls"))[1][1:3] == ["silver", "stream"]
    assert silver.json("backfill", "ls", "--state", "paused") == []
    (slot,) = silver.json("schedule", "upcoming")
    assert (slot["pipeline_id"], slot["owner"]) == ("night", "lake")
    assert "03:00 UTC" in silver.said("schedule", "upcoming", "--owner", "lake")
    assert silver.said("schedule", "upcoming", "--tier", "1") == "no slots in the next 24 hours\n"


def test_pool__commands__show_who_holds_and_waits_and_free_a_slot(site: Site) -> None:
    ready = SILVER.replace("readiness:", "pool: spark\nreadiness:").replace(
        "  rules:\n    - {key: orders, check: gte, field: count, value: 10}\n", "  rules: []\n"
    )
    for name in ("bronze", "silver"):
        site.said("pipeline", "apply", site.write(f"{name}.yaml", ready.replace("id: silver", f"id: {name}")))
        site.said("sensor", "push", name, "landed", "--data", f'{{"date": "{TODAY}"}}')
        site.api.settle()
        site.api.env.clock.advance(1)

    assert cells(site.said("pool", "ls"))[1][:4] == ["spark", "1", "1", "1"]
    shown = site.said("pool", "show", "spark")
    assert shown.startswith("spark: 1 of 1 slots in use, 1 waiting\n")
    holds, waits = cells(shown)[2:4]
    assert (holds[0], holds[2], waits[0], waits[3]) == ("HOLDS", "bronze", "WAITS", "silver")
    assert "[FULL] pool spark: pool spark has 1 of 1 slots in use by bronze" in site.said(
        "why", "silver", "--date", TODAY
    )
    freed = site.said("pool", "free", "spark", holds[1], "--reason", "its job ended unseen")
    assert freed == f"spark: 1 slots of {holds[1]} are free\n"
