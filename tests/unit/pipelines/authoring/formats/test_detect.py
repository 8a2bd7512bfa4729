"""The two older formats: every field of theirs in our words, their defaults and bounds, and what they ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headgate.durable.model.duration import Seconds
from headgate.pipelines.authoring.formats.detect import Format, recognise
from headgate.pipelines.authoring.loader import load_pipeline, load_text
from headgate.pipelines.definition.model import (
    Budgets,
    Cascade,
    Exclusions,
    Inclusions,
    Monitoring,
    Period,
    Pipeline,
    RetryPolicy,
    Rule,
    Schedule,
    SensorTrigger,
    Sla,
    Trait,
    TriggerSpec,
)
from headgate.pipelines.definition.problems import errors_of
from headgate.pipelines.definition.source_map import documents
from headgate.pipelines.enums import FailureCategory
from tests.unit.pipelines.loading_rig import SOURCE, errors, real_triggers

OLDER = """\
name: bronze-ingest
archetype: batch-ingestion
tier: 1
traits:
  source-freshness: {evaluator: "evaluators/fresh --strict", config: {maxLagSeconds: 60}, ttl: 300}
  upstream-dependency: {evaluator: "builtin:upstream-job-log", config: {upstreamPipeline: raw}}
  resource-availability: {evaluator: "https://checks.example/room", timeout: 5}
  schema-contract: {evaluator: push}
trigger:
  type: step_function
  pollInterval: 1m
  step_function:
    stateMachineARN: "arn:aws:states:eu-west-1:123456789012:stateMachine:load"
    arguments: {day: "${date}", schedule: "${scheduleID}", pipeline: "${pipelineID}"}
retry: {maxAttempts: 4, backoffSeconds: 10, backoffMultiplier: 3.0, retryableFailures: [TRANSIENT]}
sla:
  evaluationDeadline: "08:00"
  completionDeadline: 2h
  validationTimeout: "07:30"
  atRiskLeadTime: 10m
  timezone: Europe/Berlin
watch: {enabled: true, interval: 1m, monitoring: {enabled: true, duration: 3h}}
schedules:
  - {name: h06, after: "06:00", deadline: "07:00", timezone: Europe/Paris}
exclusions: {calendar: plant, days: [Saturday, sunday], dates: [2026-12-25]}
cascade: {delayBetween: 5s}
quarantine: {blocking: true}
"""

NEWER = """\
pipeline: {id: gold-revenue, owner: finance, description: Revenue.}
schedule:
  timezone: Europe/Berlin
  trigger: {key: upstream-complete, check: equals, field: status, value: ready, deadline: ":45"}
  exclude: {weekends: true, holidays: US, dates: [2026-12-25]}
  calendar: plant
  time: "09:00"
  evaluation: {window: 30m, interval: 2m}
sla: {deadline: ":30", expectedDuration: 10m, maxDuration: 2h, critical: true}
validation:
  trigger: Any
  rules:
    - {key: rates, check: age_lt, field: updatedAt, value: 2h}
    - {key: orders, check: gte, field: count, value: 100}
job:
  type: glue
  config: {jobName: revenue, arguments: {"--day": "${DATE}"}}
  maxRetries: 2
  maxCodeRetries: 0
  maxDriftReruns: 3
  maxManualReruns: 4
  jobPollWindowSeconds: 0
postRun: {rules: [{key: orders}], driftField: count, driftThreshold: 0.5, sensorTimeout: 1h}
dryRun: true
"""


def _newer(**parts: str) -> str:
    return "pipeline: {id: orders}\n" + "".join(f"{name}: {text}\n" for name, text in parts.items())


def _older(**parts: str) -> str:
    return "name: orders\n" + "".join(f"{name}: {text}\n" for name, text in parts.items())


def _trigger(pipeline: Pipeline) -> TriggerSpec:
    assert pipeline.trigger is not None
    return pipeline.trigger


def _times(*durations: Seconds | None) -> tuple[float | None, ...]:
    return durations


# Which is which.


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("id: a", Format.OURS),
        ("{id: a, name: b}", Format.OURS),
        ("pipeline: {id: a}", Format.NEWER),
        ("name: a\ntraits: {}", Format.OLDER),
        ("name: a", Format.CALENDAR),
        ("name: a\ndays: [saturday]\ndates: []", Format.CALENDAR),
        ("name: a\nrequiredTraits: []", Format.ARCHETYPE),
        ("provider: redis\npipelineDirs: [p]\narchetypeDirs: [a]", Format.PROJECT),
        ("[]", Format.OURS),
    ],
)
def test_recognise__by_the_names_that_only_one_has(text: str, kind: Format) -> None:
    (document,) = documents(text, SOURCE)
    assert recognise(document) is kind


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("provider: redis\npipelineDirs: [p]\nredis: {addr: x}\n", "a project's own settings"),
        ("name: a\nrequiredTraits: [{type: t}]\n", "this is an archetype"),
        ("name: a\ndays: [saturday]\n", "this is a calendar"),
    ],
)
def test_load_text__a_file_of_theirs_that_is_no_pipeline__says_where_it_belongs(text: str, fact: str) -> None:
    (problem,) = errors(text)
    assert fact in problem.fact
    assert problem.allowed


# The first generation.


def test_older__every_field__has_its_place() -> None:
    pipeline = load_pipeline(OLDER, SOURCE)
    readiness = pipeline.readiness
    assert (pipeline.id, pipeline.archetype, pipeline.tier) == ("bronze-ingest", "batch-ingestion", 1)
    assert (pipeline.period, pipeline.timezone) == (Period.DAILY, "Europe/Berlin")
    assert readiness.traits == {
        "source-freshness": Trait(
            evaluator="command:evaluators/fresh --strict",
            config={"maxLagSeconds": 60},
            ttl=Seconds(300),
            timeout=Seconds(30),
        ),
        "upstream-dependency": Trait(
            evaluator="builtin:upstream-job-log",
            config={"upstreamPipeline": "raw"},
            ttl=Seconds(600),
            timeout=Seconds(60),
        ),
        "resource-availability": Trait(evaluator="https://checks.example/room", ttl=Seconds(120), timeout=Seconds(5)),
        "schema-contract": Trait(evaluator="push", ttl=Seconds(3_600), timeout=Seconds(30), required=False),
    }
    # From six until half past seven.
    assert _times(readiness.interval, readiness.window, readiness.timeout) == (60, 86_400, 5_400)
    assert pipeline.schedules == (
        Schedule(
            name="h06",
            after="06:00",
            deadline="07:00",
            timezone="Europe/Paris",
            exclude=Exclusions(calendar="plant", days=("Saturday", "sunday"), dates=("2026-12-25",)),
        ),
    )
    assert pipeline.retry == RetryPolicy(
        attempts=4, backoff=Seconds(10), multiplier=3.0, categories=(FailureCategory.TRANSIENT,)
    )
    assert pipeline.sla == Sla(
        deadline="2h", evaluation_deadline="08:00", at_risk=Seconds(600), timezone="Europe/Berlin"
    )
    assert pipeline.post_run.monitoring == Monitoring(enabled=True, duration=Seconds(10_800))
    assert pipeline.cascade == Cascade(delay_between=Seconds(5))
    assert pipeline.quarantine.blocking


def test_older__trigger__has_its_block_as_config_with_our_templates() -> None:
    trigger = _trigger(load_pipeline(OLDER, SOURCE))
    assert (trigger.type, trigger.check_interval) == ("step-function", Seconds(60))
    assert trigger.config == {
        "state_machine_arn": "arn:aws:states:eu-west-1:123456789012:stateMachine:load",
        "input": {"day": "${date}", "schedule": "${schedule}", "pipeline": "${pipeline}"},
    }


def test_older__nothing_but_a_name_and_a_trait__has_the_defaults_of_that_generation() -> None:
    pipeline = load_pipeline(_older(traits="{fresh: {evaluator: push}}"), SOURCE)
    assert pipeline.schedules == (Schedule(name="daily"),)
    assert pipeline.retry == RetryPolicy()
    readiness = pipeline.readiness
    assert (readiness.interval, readiness.window, readiness.timeout) == (Seconds(30), Seconds(86_400), None)
    assert (pipeline.timezone, pipeline.sla, pipeline.trigger) == ("UTC", None, None)
    assert pipeline.post_run.monitoring.enabled is False


def test_older__not_watched__is_begun_by_markers_and_people_alone() -> None:
    loaded = load_text(_older(watch="{enabled: false}", traits="{}"), SOURCE)
    assert loaded.checked()[0].pipeline.schedules == ()
    assert any("nothing ever starts it" in problem.fact for problem in loaded.problems)


def test_older__no_retryable_failures_named__are_the_usual_ones() -> None:
    pipeline = load_pipeline(_older(retry="{retryableFailures: []}", tier="2"), SOURCE)
    assert pipeline.retry.categories == (FailureCategory.TRANSIENT, FailureCategory.TIMEOUT)


def test_older__sla_of_a_zone_and_a_timeout_alone__is_no_sla() -> None:
    pipeline = load_pipeline(_older(sla="{validationTimeout: 90m, timezone: Asia/Tokyo}"), SOURCE)
    assert pipeline.sla is None
    assert (pipeline.timezone, pipeline.readiness.timeout) == ("Asia/Tokyo", Seconds(5_400))


@pytest.mark.parametrize(
    ("trigger", "type_name", "config"),
    [
        ("{type: command, command: {command: ./run.sh a}}", "command", {"command": "./run.sh a"}),
        ("{type: command, command: ./run.sh a}", "command", {"command": "./run.sh a"}),
        (
            "{type: http, http: {method: PUT, url: 'https://x.example', headers: {A: b}, body: c, timeout: 10}}",
            "http",
            {"method": "PUT", "url": "https://x.example", "headers": {"A": "b"}, "body": "c", "timeout": 10},
        ),
        (
            """{type: airflow, airflow: {url: 'https://a.example', dagID: d, body: '{"day": "${date}"}'}}""",
            "airflow",
            {"url": "https://a.example", "dag_id": "d", "conf": {"day": "${date}"}, "api": "v1"},
        ),
        (
            "{type: glue, glue: {jobName: g, arguments: {'--a': b}}}",
            "glue",
            {"job_name": "g", "arguments": {"--a": "b"}},
        ),
        (
            "{type: emr, emr: {clusterID: j-1, stepName: s, command: 's3://x/y.jar', arguments: {day: '${date}'}}}",
            "emr",
            {"cluster_id": "j-1", "step_name": "s", "jar": "s3://x/y.jar", "args": ["day=${date}"]},
        ),
        (
            "{type: databricks, databricks: {workspaceURL: 'https://d.example', jobID: 7, arguments: {a: b}}}",
            "databricks",
            {"url": "https://d.example", "job_id": 7, "notebook_params": {"a": "b"}},
        ),
    ],
)
def test_older__each_typed_block__is_a_config_that_our_trigger_takes(
    trigger: str, type_name: str, config: dict[str, Any], tmp_path: Path
) -> None:
    made = _trigger(load_pipeline(_older(trigger=trigger), SOURCE, real_triggers(tmp_path)))
    assert (made.type, made.config) == (type_name, config)


@pytest.mark.parametrize(
    ("parts", "field", "fact"),
    [
        ({"traitz": "{}"}, "traitz", "there is no such field"),
        ({"retry": "{maxAttemps: 3}"}, "retry.maxAttemps", "there is no such field"),
        ({"retry": "{maxAttempts: 12}"}, "retry.maxAttempts", "out of bounds"),
        ({"retry": "3"}, "retry", "this is no mapping"),
        ({"sla": "{completionDeadline: late}"}, "sla.completionDeadline", "is not a deadline"),
        ({"sla": "{evaluationDeadline: '08:00', timezone: Mars}"}, "sla.timezone", "is not a time zone"),
        ({"sla": "{atRiskLeadTime: 5m}"}, "sla.atRiskLeadTime", "no deadline to warn of"),
        ({"trigger": "{type: glue, http: {url: x}}"}, "trigger.http", "would not be used"),
        ({"trigger": "{type: gleu}"}, "trigger.type", "is no trigger"),
        ({"trigger": "{pollInterval: often, type: http}"}, "trigger.pollInterval", "is not a duration"),
        ({"schedules": "[{name: a, after: late}]"}, "schedules[0].after", "is not a time of the day"),
        ({"exclusions": "{days: [Caturday]}"}, "exclusions.days[0]", "is not a weekday"),
        ({"watch": "{enabled: 3}"}, "watch.enabled", "neither true nor false"),
        ({"watch": "{enabled: false}", "schedules": "[{name: a}]"}, "schedules", "would have no effect"),
        (
            {"sla": "{validationTimeout: '07:00'}", "schedules": "[{name: a, after: '06:00'}, {name: b}]"},
            "sla.validationTimeout",
            "the same for all schedules",
        ),
        (
            {"sla": "{validationTimeout: '05:00'}", "schedules": "[{name: a, after: '06:00'}]"},
            "sla.validationTimeout",
            "later",
        ),
        ({"archetype": "batch-ingestion"}, "traits.source-freshness", "requires trait source-freshness"),
    ],
)
def test_older__what_is_wrong__is_reported_by_the_name_and_line_it_has_there(
    parts: dict[str, str], field: str, fact: str
) -> None:
    found = errors(_older(tier="2", **parts))
    assert found, "nothing was found"
    assert found[0].field.removeprefix("readiness.") == field
    assert fact in found[0].fact


def test_older__unknown_archetype__is_refused() -> None:
    (problem,) = errors(_older(archetype="batch-ingest", traits="{a: {evaluator: push}}"))
    assert (problem.field, problem.suggestion) == ("archetype", "batch-ingestion")


# The second generation.


def test_newer__every_field__has_its_place() -> None:
    pipeline = load_pipeline(NEWER, SOURCE)
    assert (pipeline.id, pipeline.owner, pipeline.description) == ("gold-revenue", "finance", "Revenue.")
    # By its deadlines, its runs are for hours.
    assert (pipeline.period, pipeline.timezone) == (Period.HOURLY, "Europe/Berlin")
    assert pipeline.schedules == (
        Schedule(
            name="stream",
            timezone="Europe/Berlin",
            sensor=SensorTrigger(
                key="upstream-complete", check="equals", field="status", value="ready", deadline=":45"
            ),
            deadline="09:00",
            exclude=Exclusions(weekends=True, holidays="US", dates=("2026-12-25",), calendar="plant"),
        ),
    )
    assert pipeline.readiness.rules == (
        Rule(key="rates", check="age_lt", field="updatedAt", value="2h"),
        Rule(key="orders", check="gte", field="count", value=100),
    )
    assert pipeline.readiness.mode == "ANY"
    assert _times(pipeline.readiness.window, pipeline.readiness.interval) == (1_800, 120)
    assert pipeline.sla == Sla(
        deadline=":30",
        expected_duration=Seconds(600),
        max_duration=Seconds(7_200),
        critical=True,
        timezone="UTC",
    )
    assert pipeline.retry == RetryPolicy(attempts=3, permanent_retries=0)
    assert pipeline.budgets == Budgets(drift=3, manual=4)
    assert (pipeline.post_run.drift_field, pipeline.post_run.drift_threshold) == ("count", 0.5)
    assert (pipeline.post_run.sensor_timeout, pipeline.post_run.rules) == (Seconds(3_600), (Rule(key="orders"),))
    assert pipeline.dry_run
    trigger = _trigger(pipeline)
    assert (trigger.type, trigger.poll_window) == ("glue", Seconds(3_600))
    assert trigger.config["job_name"] == "revenue"


def test_newer__glue_and_http__are_reported_the_date_as_that_generation_does() -> None:
    assert _trigger(load_pipeline(NEWER, SOURCE)).config["arguments"] == {
        "--day": "${date}",
        "--par_day": "${day_compact}",
        "--par_hour": "${hour}",
    }
    daily = load_pipeline(_newer(job="{type: http, config: {url: 'https://x.example'}}"), SOURCE)
    assert _trigger(daily).config["body"] == {"par_day": "${day_compact}"}
    own = load_pipeline(_newer(job="{type: http, config: {url: 'https://x.example', body: mine}}"), SOURCE)
    assert _trigger(own).config["body"] == "mine"


def test_newer__a_job_and_nothing_else__has_the_defaults_of_that_generation() -> None:  # bug 44
    pipeline = load_pipeline(_newer(job="{type: command, config: {command: x}}"), SOURCE)
    # No retries of what may pass by itself, one of what will not; and none is not the same as not said.
    assert (pipeline.retry.attempts, pipeline.retry.permanent_retries) == (1, 1)
    assert pipeline.budgets == Budgets(drift=1, manual=1)
    assert _times(pipeline.readiness.window, pipeline.readiness.interval) == (3_600, 300)
    assert (pipeline.post_run.drift_field, pipeline.post_run.sensor_timeout) == ("sensor_count", Seconds(7_200))
    none = load_pipeline(_newer(job="{type: command, config: {command: x}, maxCodeRetries: 0}"), SOURCE)
    assert none.retry.permanent_retries == 0


@pytest.mark.parametrize(
    ("schedule", "name", "period"),
    [
        ("{cron: '0 6 * * *'}", "cron", Period.DAILY),
        ("{cron: '5 * * * *'}", "cron", Period.HOURLY),
        ("{cron: '@hourly'}", "cron", Period.HOURLY),
        ("{cron: '5 2 * * *'}", "cron", Period.DAILY),
        ("{trigger: {key: a}}", "stream", Period.DAILY),
        ("{trigger: {key: a, deadline: ':15'}}", "stream", Period.HOURLY),
        ("{include: {dates: [2026-03-31]}}", "stream", Period.DAILY),
    ],
)
def test_newer__schedules__are_called_as_there_and_have_the_period_they_mean(
    schedule: str, name: str, period: Period
) -> None:
    pipeline = load_pipeline(_newer(schedule=schedule), SOURCE)
    assert ([each.name for each in pipeline.schedules], pipeline.period) == ([name], period)


def test_newer__dates_alone_with_a_time__begin_then() -> None:
    pipeline = load_pipeline(_newer(schedule="{include: {dates: [2026-03-31]}, time: '07:00'}"), SOURCE)
    (schedule,) = pipeline.schedules
    assert (schedule.after, schedule.deadline) == ("07:00", None)
    assert schedule.include == Inclusions(dates=("2026-03-31",))


def test_newer__nothing_that_begins_a_run__is_reported() -> None:  # D23
    loaded = load_text(_newer(schedule="{timezone: Europe/Berlin, evaluation: {window: 2h}}"), SOURCE)
    assert loaded.checked()[0].pipeline.schedules == ()
    assert any("nothing ever starts it" in problem.fact for problem in loaded.problems)


def test_newer__what_was_accepted_and_ignored__counts() -> None:  # D23
    schedule = "{cron: '0 6 * * *', calendar: plant, exclude: {holidays: DE-BY}}"
    pipeline = load_pipeline(_newer(schedule=schedule, sla="{deadline: '08:00', critical: true}"), SOURCE)
    assert pipeline.schedules[0].exclude == Exclusions(holidays="DE-BY", calendar="plant")
    assert pipeline.sla is not None
    assert pipeline.sla.critical


def test_newer__variables_of_the_environment__are_secrets_by_their_prefix(tmp_path: Path) -> None:  # bug 77
    job = "{type: http, config: {url: 'https://x.example', headers: {Authorization: 'Bearer ${INTERLOCK_TOKEN}'}}}"
    known = real_triggers(tmp_path, secret_prefix="INTERLOCK_")
    config = _trigger(load_pipeline(_newer(job=job), SOURCE, known)).config
    assert config["headers"] == {"Authorization": "Bearer ${env:INTERLOCK_TOKEN}"}
    other = "{type: http, config: {url: 'https://x.example', headers: {A: '${AWS_SECRET_ACCESS_KEY}'}}}"
    (problem,) = errors(_newer(job=other), known)
    assert "there is no ${AWS_SECRET_ACCESS_KEY}" in problem.fact


@pytest.mark.parametrize(
    ("job", "config"),
    [
        ("{type: lambda, config: {functionName: f, payload: {a: 1}}}", {"function": "f", "payload": {"a": 1}}),
        (
            "{type: emr-serverless, config: {applicationId: a, jobName: n}}",
            {"application_id": "a", "name": "n"},
        ),
    ],
)
def test_newer__other_jobs__have_their_config_in_our_words(job: str, config: dict[str, Any]) -> None:
    assert _trigger(load_pipeline(_newer(job=job), SOURCE)).config == config


@pytest.mark.parametrize(
    ("parts", "field", "fact"),
    [
        ({"scheduel": "{}"}, "scheduel", "there is no such field"),
        ({"schedule": "{crn: x}"}, "schedule.crn", "there is no such field"),
        ({"schedule": "{cron: '99 * * * *'}"}, "schedule.cron", "minute is not understood"),
        ({"schedule": "{cron: '@daily', timezone: Europe/Berln}"}, "schedule.timezone", "is not a time zone"),
        (
            {"schedule": "{cron: '@daily', include: {dates: [2026-01-01]}}"},
            "schedule.include",
            "exclude each other",
        ),
        ({"schedule": "{include: {dates: [2026-02-30]}}"}, "schedule.include.dates[0]", "out of range"),
        ({"schedule": "{trigger: {check: exists}}"}, "schedule.trigger.key", "it is missing"),
        ({"schedule": "{trigger: {key: a, check: is}}"}, "schedule.trigger.check", "is not known"),
        ({"schedule": "{cron: '@daily', exclude: {holidays: true}}"}, "schedule.exclude.holidays", "whose holidays"),
        ({"schedule": "{cron: '@daily', time: noon}"}, "schedule.time", "is not a deadline"),
        ({"schedule": "{evaluation: {window: 1m, interval: 5m}}"}, "schedule.evaluation.window", "is over before"),
        ({"sla": "{maxDuration: 25h}"}, "sla.maxDuration", "out of bounds"),
        ({"sla": "{deadline: '8'}"}, "sla.deadline", "is not a deadline"),
        ({"validation": "{trigger: SOME}"}, "validation.trigger", "is not known"),
        ({"validation": "{trigger: ANY}"}, "validation.trigger", "never be ready"),
        ({"validation": "{rules: [{key: a, check: matches}]}"}, "validation.rules[0].check", "is not known"),
        ({"job": "{type: glu}"}, "job.type", "is no trigger"),
        ({"job": "{config: {}}"}, "job.type", "it is missing"),
        ({"job": "{type: http, maxRetries: 11}"}, "job.maxRetries", "out of bounds"),
        ({"job": "{type: http, maxRetries: -1}"}, "job.maxRetries", "out of bounds"),
        ({"job": "{type: http, maxRetries: two}"}, "job.maxRetries", "is not what can stand here"),
        ({"job": "{type: http, maxCodeRetries: 4}"}, "job.maxCodeRetries", "out of bounds"),
        ({"job": "{type: http, maxDriftReruns: 6}"}, "job.maxDriftReruns", "out of bounds"),
        ({"job": "{type: http, maxManualReruns: 6}"}, "job.maxManualReruns", "out of bounds"),
        ({"job": "{type: http, jobPollWindowSeconds: 59}"}, "job.jobPollWindowSeconds", "out of bounds"),
        ({"job": "{type: http, jobPollWindowSeconds: 86401}"}, "job.jobPollWindowSeconds", "out of bounds"),
        ({"postRun": "{evaluation: {window: 1h}}"}, "postRun.evaluation", "it has had no effect"),
        ({"postRun": "{driftThreshold: -1}"}, "postRun.driftThreshold", "out of bounds"),
        ({"dryRun": "true"}, "dryRun", "there is no trigger"),
    ],
)
def test_newer__what_is_wrong__is_reported_by_the_name_and_line_it_has_there(
    parts: dict[str, str], field: str, fact: str
) -> None:
    found = errors(_newer(**parts))
    assert [problem.field for problem in found] == [field]
    assert fact in found[0].fact
    assert found[0].line == 2


def test_newer__no_id__is_missed_where_it_belongs() -> None:
    (problem,) = errors("pipeline: {owner: me}\n")
    assert problem.field == "pipeline.id"


def test_both__in_one_file_with_ours__all_load() -> None:
    loaded = load_text(f"{OLDER}---\n{NEWER}---\nid: ours\n", SOURCE)
    assert errors_of(loaded.problems) == []
    assert [each.pipeline.id for each in loaded.pipelines] == ["bronze-ingest", "gold-revenue", "ours"]
