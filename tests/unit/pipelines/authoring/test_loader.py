"""Definitions from files: what is read, and that everything that is wrong is said at once, with its place."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from headgate.durable.model.duration import Seconds
from headgate.errors import DefinitionError
from headgate.pipelines.authoring.loader import Known, load_folder, load_pipeline, load_text, unknown_upstreams
from headgate.pipelines.definition.model import Exclusions, Pipeline, Readiness, Rule, Upstream
from headgate.pipelines.definition.problems import InvalidPipelineError, errors_of
from headgate.pipelines.definition.serialization import decode, digest, encode
from headgate.pipelines.definition.source_map import documents
from headgate.pipelines.schedule.dependencies import cycles
from tests.unit.pipelines.authoring.formats.test_detect import NEWER, OLDER
from tests.unit.pipelines.loading_rig import MEDALLION, RIGHT, SOURCE, errors, problems_of, real_triggers


def _without_trigger(schedules: str) -> str:
    return f"id: orders\nschedules:\n  - {schedules}\n"


def _rule(rule: str) -> str:
    return f"id: orders\nreadiness:\n  rules:\n    - {rule}\n"


# What is read.


def test_load_pipeline__yaml__is_a_definition_with_times_in_seconds() -> None:
    pipeline = load_pipeline(RIGHT + "sla: {deadline: 10:30, expected_duration: 1h30m}\n", SOURCE)
    assert pipeline.id == "orders"
    assert pipeline.sla is not None
    # YAML 1.1 would make 630 of it.
    assert pipeline.sla.deadline == "10:30"
    assert pipeline.sla.expected_duration == Seconds(5_400)


def test_load_pipeline__json_with_tabs_and_pairs_of_surrogates__is_the_same_as_yaml() -> None:
    text = '{\n\t"id": "orders",\n\t"owner": "\\ud83d\\ude00\\/",\n\t"schedules": [{"cron": "0 6 * * *"}]}'
    pipeline = load_pipeline(text, "orders.json")
    assert (pipeline.owner, pipeline.schedules[0].cron) == ("😀/", "0 6 * * *")


@pytest.mark.parametrize(
    ("text", "owner"),
    [("on", "on"), ("no", "no"), ("2026-03-03", "2026-03-03"), ("'1'", "1"), ("!!str 1", "1"), ("0x", "0x")],
)
def test_load_pipeline__words_that_yaml_used_to_change__stay_what_is_written(text: str, owner: str) -> None:
    assert load_pipeline(f"id: orders\nowner: {text}\n", SOURCE).owner == owner


def test_load_pipeline__norway__is_a_country_and_not_false() -> None:
    text = _without_trigger('{cron: "0 6 * * *", exclude: {holidays: NO}}')
    assert load_pipeline(text, SOURCE).schedules[0].exclude.holidays == "NO"


def test_load_pipeline__anchors_and_merges__are_taken_over_with_what_is_given_first() -> None:
    trait = "{evaluator: push, config: {<<: *all, b: z}}"
    text = f"id: orders\nlabels: &all {{a: x, b: y}}\nreadiness:\n  traits:\n    t: {trait}\n"
    assert load_pipeline(text, SOURCE).readiness.traits["t"].config == {"a": "x", "b": "z"}


def test_load_pipeline__not_of_rules__is_written_without_the_underscore_of_python() -> None:
    pipeline = load_pipeline(_rule("{not: {key: hold}}"), SOURCE)
    assert pipeline.readiness.rules[0].not_ is not None
    assert pipeline.readiness.rules[0].not_.key == "hold"


def test_load_pipeline__fields_with_nothing_behind_them__are_not_given() -> None:
    assert load_pipeline("id: orders\nschedules:\nowner:\nsla:\n", SOURCE) == Pipeline(id="orders")


@pytest.mark.parametrize("mode", ["any", "Any", "ANY"])
def test_load_pipeline__mode_in_any_case__is_that_mode(mode: str) -> None:  # bug 56
    text = f"id: orders\nreadiness: {{mode: {mode}, rules: [{{key: a}}]}}\n"
    assert load_pipeline(text, SOURCE).readiness.mode == "ANY"


def test_load_pipeline__poll_window_of_zero__is_the_usual_one() -> None:
    text = "id: orders\ntrigger: {type: http, config: {url: 'https://x.example'}, poll_window: 0}\n"
    pipeline = load_pipeline(text, SOURCE)
    assert pipeline.trigger is not None
    assert pipeline.trigger.poll_window == Seconds(3_600)


def test_load_text__several_documents__each_has_its_own_text() -> None:
    loaded = load_text("# first\nid: aa\n---\n# second\nid: bb\n--- {id: cc}\n", SOURCE)
    assert [(each.pipeline.id, each.text) for each in loaded.pipelines] == [
        ("aa", "# first\nid: aa\n"),
        ("bb", "# second\nid: bb\n"),
        ("cc", "{id: cc}\n"),
    ]
    assert all(load_pipeline(each.text, SOURCE) == each.pipeline for each in loaded.pipelines)


def test_load_pipeline__what_equals_a_default__has_the_digest_of_one_that_leaves_it_out() -> None:
    said = load_pipeline(
        "id: orders\nperiod: daily\nretry: {attempts: 3, backoff: 30s}\nreadiness: {window: 1h}\n", SOURCE
    )
    assert digest(said) == digest(load_pipeline("id: orders\n", SOURCE)) == digest(Pipeline(id="orders"))
    made = Pipeline(id="orders", readiness=Readiness(window=Seconds(3_600.0), mode="all".upper()))
    assert encode(made) == '{"id":"orders"}'


def test_definition_json__every_example__comes_back_as_it_was() -> None:
    loaded = load_folder(MEDALLION)
    assert len(loaded.pipelines) == 3
    for each in loaded.pipelines:
        assert decode(encode(each.pipeline)) == each.pipeline
        assert load_pipeline(encode(each.pipeline), "stored") == each.pipeline


# Places.


def test_load_pipeline__one_field_misspelt__file_line_column_field_hint_and_names_are_said() -> None:
    with pytest.raises(InvalidPipelineError) as caught:
        load_pipeline("id: orders\nreadiness:\n  rules:\n    - key: a\n      chek: gte\n", "p/orders.yaml")
    (problem,) = caught.value.problems
    assert (problem.source, problem.line, problem.column) == ("p/orders.yaml", 5, 13)
    assert problem.field == "readiness.rules[0].chek"
    assert problem.suggestion == "check"
    assert problem.text().startswith(
        "p/orders.yaml:5:13: readiness.rules[0].chek: there is no such field; did you mean check? Use one of key, "
    )
    assert isinstance(caught.value, DefinitionError)


def test_load_pipeline__many_mistakes__all_are_said_at_once() -> None:
    text = """\
id: Orders
tier: 7
perod: daily
timezone: Europe/Berlni
schedules:
  - cron: "61 6 * * *"
    after: 25:00
    exclude: {days: [Munday], dates: [2026-02-30], holidays: XX}
  - cron: "0 6 * * *"
    include: {business_days: [0]}
readiness:
  mode: some
  interval: 5x
  rules:
    - {key: a, check: gtee, field: x, value: 1}
    - upstream: {pipeline: b, periods: alll}
trigger:
  type: comand
  poll_window: 10
retry: {attempts: 12, categories: [TRANSIENTT]}
sla: {deadline: "9:5", max_duration: 25h}
dry_run: yes
"""
    found = {problem.field: (problem.line, problem.suggestion) for problem in errors(text)}
    assert found == {
        "id": (1, ""),
        "tier": (2, ""),
        "perod": (3, "period"),
        "timezone": (4, "Europe/Berlin"),
        "schedules[0].cron": (6, ""),
        "schedules[0].after": (7, ""),
        "schedules[0].exclude.days[0]": (8, ""),
        "schedules[0].exclude.dates[0]": (8, ""),
        "schedules[0].exclude.holidays": (8, ""),
        "schedules[1]": (9, ""),
        "schedules[1].include.business_days[0]": (10, ""),
        "readiness.mode": (12, ""),
        "readiness.interval": (13, ""),
        "readiness.rules[0].check": (15, "gte"),
        "readiness.rules[1].upstream.periods": (16, "all"),
        "trigger.type": (18, "command"),
        "trigger.poll_window": (19, ""),
        "retry.attempts": (20, ""),
        "retry.categories[0]": (20, "TRANSIENT"),
        "sla.deadline": (21, ""),
        "sla.max_duration": (21, ""),
        "dry_run": (22, ""),
    }


def test_load_pipeline__an_alias__is_reported_where_it_is_used_and_where_it_is_written() -> None:
    (problem,) = errors("id: orders\nlabels: &l {a: 1}\n")
    assert (problem.field, problem.line, problem.column) == ("labels.a", 2, 16)
    found = errors("id: orders\nreadiness:\n  rules:\n    - &r {key: a, chek: b}\n    - *r\n")
    assert [(each.field, each.line) for each in found] == [
        ("readiness.rules[0].chek", 4),
        ("readiness.rules[1].chek", 4),
    ]


def test_load_text__a_bad_document__leaves_the_others_alone() -> None:  # D29
    loaded = load_text("id: aa\n---\nid: B!\n---\nid: cc\n", SOURCE)
    assert [each.pipeline.id for each in loaded.pipelines] == ["aa", "cc"]
    assert [(each.line, each.field) for each in errors_of(loaded.problems)] == [(3, "id")]


# What is refused.


@pytest.mark.parametrize(
    ("text", "field", "fact"),
    [
        ("id: a b\n", "id", "cannot be an id"),
        ("id: x\n", "id", "cannot be an id"),
        ("id: -ab\n", "id", "cannot be an id"),
        ("id: aB\n", "id", "cannot be an id"),
        (f"id: {'a' * 256}\n", "id", "cannot be an id"),
        ("owner: me\n", "id", "it is missing"),
        ("id: 12\n", "id", "is not what can stand here"),
        ("id: orders\nperiod: custom\n", "period", "period is custom"),
        ("id: orders\nevery: 15m\n", "every", "period is daily"),
        ("id: orders\nperiod: custom\nevery: 90s\n", "every", "no whole number of minutes"),
        ("id: orders\nperiod: custom\nevery: 1s\n", "every", "out of bounds"),
        ("id: orders\nconcurrency: -1\n", "concurrency", "out of bounds"),
        ("id: orders\nwrites: [a, a]\n", "writes[1]", "given twice"),
        ("id: orders\nreads: ['']\n", "reads[0]", "it is empty"),
        ("id: orders\nlabels: {a: 1}\n", "labels.a", "is not what can stand here"),
        ("id: orders\ndry_run: true\n", "dry_run", "there is no trigger"),
        ("id: orders\ntrigger: {type: cron, config: {}}\n", "trigger.type", "belongs under schedules"),
        ("id: orders\ntrigger: {type: http, poll_window: 86401}\n", "trigger.poll_window", "out of bounds"),
        ("id: orders\ntrigger: {type: http, poll_window: 59}\n", "trigger.poll_window", "out of bounds"),
        (
            "id: orders\ntrigger: {type: http, poll_window: 60, check_interval: 61}\n",
            "trigger.check_interval",
            "not be asked once",
        ),
        ("id: orders\nretry: {attempts: 0}\n", "retry.attempts", "out of bounds"),
        ("id: orders\nretry: {permanent_retries: 4}\n", "retry.permanent_retries", "out of bounds"),
        ("id: orders\nretry: {backoff: 2h}\n", "retry.backoff", "more than backoff_max"),
        ("id: orders\nbudgets: {drift: 6}\n", "budgets.drift", "out of bounds"),
        ("id: orders\nbudgets: {manual: -1}\n", "budgets.manual", "out of bounds"),
        ("id: orders\nsla: {}\n", "sla", "it says nothing"),
        ("id: orders\nsla: {deadline: 24:00}\n", "sla.deadline", "is not a deadline"),
        ("id: orders\nsla: {deadline: ':60'}\n", "sla.deadline", "is not a deadline"),
        ("id: orders\nsla: {evaluation_deadline: soon}\n", "sla.evaluation_deadline", "is not a deadline"),
        ("id: orders\nsla: {max_duration: 86401}\n", "sla.max_duration", "out of bounds"),
        ("id: orders\nsla: {max_duration: 1h, day_offset: 1}\n", "sla.day_offset", "goes with a deadline"),
        ("id: orders\nsla: {max_duration: 1h, expected_duration: 2h}\n", "sla.expected_duration", "more is expected"),
        ("id: orders\nsla: {deadline: '06:00', timezone: UCT2}\n", "sla.timezone", "is not a time zone"),
        ("id: orders\nreadiness: {window: 1m}\n", "readiness.window", "is over before the interval"),
        ("id: orders\nreadiness: {interval: 2h}\n", "readiness.interval", "is over before the interval"),
        ("id: orders\nreadiness: {mode: ANY}\n", "readiness.mode", "never be ready"),
        ("id: orders\nreadiness: {trait_rule: majority}\n", "readiness.trait_rule", "is not known"),
        ("id: orders\nreadiness: {threshold: 1}\n", "readiness.threshold", "goes with trait_rule"),
        (
            "id: orders\nreadiness: {trait_rule: majority-pass, threshold: 2, traits: {t: {evaluator: push}}}\n",
            "readiness.threshold",
            "can never be",
        ),
        ("id: orders\nreadiness: {traits: {t: {}}}\n", "readiness.traits.t.evaluator", "it is missing"),
        ("id: orders\nreadiness: {traits: {t: {evaluator: sh}}}\n", "readiness.traits.t.evaluator", "no evaluator"),
        (
            "id: orders\nreadiness: {traits: {'a b': {evaluator: push}}}\n",
            "readiness.traits.'a b'",
            "cannot be the name of a trait",
        ),
        ("id: orders\narchetype: batch\n", "archetype", "there is no archetype"),
        ("id: orders\nschedules: {}\n", "schedules", "is not what can stand here"),
        ("[1]", "", "a list is not what can stand here"),
        ("just text", "", "is not what can stand here"),
    ],
)
def test_load_text__a_definition_that_is_wrong__names_the_field_and_the_fact(text: str, field: str, fact: str) -> None:
    found = errors(text)
    assert [problem.field for problem in found] == [field]
    assert fact in found[0].fact
    assert found[0].line > 0


@pytest.mark.parametrize(
    ("schedule", "field", "fact"),
    [
        ('{cron: "0 6 * *"}', "cron", "has 4 fields"),
        ('{cron: "0 0 30 2 *"}', "cron", "day-of-month is not understood"),
        ('{cron: "@sometimes"}', "cron", "@sometimes"),
        ('{cron: "@daily", timezone: Mars/Base}', "timezone", "is not a time zone"),
        ('{name: "a:b"}', "name", "cannot be a name"),
        ("{after: '6:00'}", "after", "is not a time of the day"),
        ("{deadline: tomorrow}", "deadline", "is not a deadline"),
        ("{event: ' '}", "event", "it is empty"),
        ("{sensor: {}}", "sensor.key", "it is missing"),
        ("{sensor: {key: 'a#b'}}", "sensor.key", "is no key"),
        ("{sensor: {key: a, check: gt, field: n, value: many}}", "sensor.value", "check gt"),
        ("{sensor: {key: a, deadline: noon}}", "sensor.deadline", "is not a deadline"),
        ("{upstream: [{pipeline: orders}]}", "upstream[0].pipeline", "wait for itself"),
        ("{upstream: [{pipeline: b, missing_max: 1}]}", "upstream[0].missing_max", "counts only"),
        ("{upstream: [{pipeline: b, periods: all, missing_max: -1}]}", "upstream[0].missing_max", "out of bounds"),
        ("{exclude: {days: [mon, tue, wed, thu, fri], weekends: true}}", "exclude", "never be due"),
        ("{include: {dates: [2026-01-03]}, exclude: {weekends: true}}", "include.dates", "never be due"),
        ("{include: {business_days: [24]}}", "include.business_days[0]", "from 1"),
        ("{exclude: {calendar: plant}}", "exclude.calendar", "there is no such calendar"),
        ("{catch_up: some}", "catch_up", "is not known"),
    ],
)
def test_load_text__a_schedule_that_is_wrong__names_the_field_and_the_fact(
    schedule: str, field: str, fact: str
) -> None:
    found = errors(_without_trigger(schedule), Known(calendars={"office": Exclusions()}))
    assert [problem.field for problem in found] == [f"schedules[0].{field}"]
    assert fact in found[0].fact


@pytest.mark.parametrize(
    ("rule", "field", "fact"),
    [
        ("{}", "", "it has none"),
        ("{key: a, trait: b}", "", "it has key and trait"),
        ("{key: ''}", ".key", "is no key"),
        ("{key: a, check: age_gte, value: 1h}", ".check", "is not known"),
        ("{key: a, check: gt, value: 1}", ".value", "needs a field"),
        ("{key: a, check: between, field: n, value: [2, 1]}", ".value", "the lower first"),
        ("{key: a, check: in, field: n, value: 3}", ".value", "check in"),
        ("{key: a, check: regex, field: n, value: '('}", ".value", "is not closed"),
        ("{key: a, check: age_lt, field: n, value: old}", ".value", "old"),
        ("{key: a, check: gt, field: n, other: b}", ".check", "write the key of a sensor"),
        ("{key: a, field: n, history: {periods: 0}}", ".check", "history"),
        ("{all: []}", ".all", "it has no rules"),
        ("{all: [{key: a}], value: 3}", ".value", "it goes with key"),
        ("{any: [{key: a}, {key: b, check: gtt}]}", ".any[1].check", "is not known"),
        ("{n_of: {n: 3, rules: [{key: a}, {key: b}]}}", ".n_of.n", "can never be"),
        ("{n_of: {rules: [{key: a}]}}", ".n_of.n", "it is missing"),
        ("{not: {key: a, severity: warn}}", ".not.severity", "belongs on the rule around"),
        ("{upstream: {pipeline: ''}}", ".upstream.pipeline", "it is empty"),
        ("{trait: fresh}", ".trait", "no trait 'fresh'"),
        ("{dataset: ''}", ".dataset", "it is empty"),
        ("{key: a, stable_for: 0}", ".stable_for", "out of bounds"),
        ("{key: a, severity: loud}", ".severity", "is not known"),
    ],
)
def test_load_text__a_rule_that_is_wrong__names_the_field_and_the_fact(rule: str, field: str, fact: str) -> None:
    found = errors(_rule(rule))
    assert [problem.field for problem in found] == [f"readiness.rules[0]{field}"]
    assert fact in found[0].fact


def test_load_text__rules_nested_without_end__are_refused_before_they_are_evaluated() -> None:
    deep = "{key: a}"
    for _ in range(20):
        deep = f"{{not: {deep}}}"
    (problem,) = errors(_rule(deep))
    assert "deeper than" in problem.fact


def test_load_text__two_schedules_of_one_name__the_second_is_refused() -> None:
    text = 'id: orders\nschedules:\n  - {name: a, cron: "@daily"}\n  - {name: a, cron: "@weekly"}\n'
    assert [(each.field, each.line) for each in errors(text)] == [("schedules[1].name", 4)]


def test_load_text__a_config_that_its_trigger_refuses__every_field_is_reported_at_its_line(tmp_path: Path) -> None:
    text = (
        "id: orders\ntrigger:\n  type: http\n  config:\n    uri: https://x\n    retries: many\n"
        "    body:\n      day: ${dat}\n    status:\n      pth: $.x\n"
    )
    found = errors(text, real_triggers(tmp_path))
    assert [(each.line, each.field, each.suggestion) for each in found] == [
        (5, "trigger.config.uri", "url"),
        (6, "trigger.config.retries", ""),
        (10, "trigger.config.status.pth", "path"),
    ]
    (problem,) = errors(text.replace("uri", "url").replace("many", "1").replace("pth", "path"), real_triggers(tmp_path))
    assert (problem.line, problem.field, problem.suggestion) == (8, "trigger.config.body.day", "${date}")


def test_load_text__a_config_whose_fields_do_not_go_together__is_reported_at_the_field(tmp_path: Path) -> None:
    text = "id: orders\ntrigger:\n  type: http\n  config:\n    url: https://x\n    timeout: 2h\n"
    (problem,) = errors(text, real_triggers(tmp_path))
    assert (problem.line, problem.field) == (6, "trigger.config.timeout")
    assert "use a number from 0.1 to 900" in problem.fact


def test_load_text__a_config_that_is_missing__is_reported_at_the_trigger(tmp_path: Path) -> None:
    (problem,) = errors("id: orders\ntrigger:\n  type: glue\n", real_triggers(tmp_path))
    assert (problem.field, problem.fact) == ("trigger.job_name", "it is missing")


def test_load_text__a_template_that_dates_of_the_period_lack__is_refused(tmp_path: Path) -> None:
    text = "id: orders\nperiod: daily\ntrigger: {type: command, config: {command: [x, '${hour}']}}\n"
    (problem,) = errors(text, real_triggers(tmp_path))
    assert "have no hour" in problem.fact


# What cannot be read at all.


@pytest.mark.parametrize(
    ("text", "line", "fact"),
    [
        ("a: [", 2, "not YAML"),
        ("id: a\nid: b\n", 2, "given twice, first at line 1"),
        ("a: b: c\n", 1, "not YAML"),
        ("a: *x\n", 1, "no anchor &x"),
        ("a: &a [*a]\n", 1, "no anchor &a"),
        ("a: !!python/object:os.system x\n", 1, "the tag"),
        ("a: !!binary aGk=\n", 1, "the tag"),
        ("? [a]\n: b\n", 1, "the name of a field is a text"),
        ("a: {<<: 3}\n", 1, "<< takes a mapping"),
        ("[" * 5_000, 1, "nested deeper"),
        ("a: \x00\n", 0, ""),
        ('{"a": 1,}}', 1, "not YAML"),
        ("\ud800", 0, "UTF-8"),
        ("x" * 1_100_000, 0, "bytes"),
        ("", 0, "it has no definition"),
        ("# only a remark\n", 0, "it has no definition"),
    ],
)
def test_load_text__what_is_no_yaml__is_one_problem_with_its_line(text: str, line: int, fact: str) -> None:
    (problem,) = problems_of(text)
    assert problem.line == line
    assert fact in problem.fact


def test_load_text__aliases_of_aliases__are_refused_before_they_fill_the_memory() -> None:
    names = "abcdefghi"
    lines = [f"{names[0]}: &{names[0]} [x,x,x,x,x,x,x,x,x,x]"]
    lines += [f"{n}: &{n} [{','.join(['*' + before] * 10)}]" for before, n in pairwise(names)]
    began = time.monotonic()
    (problem,) = problems_of("\n".join(lines))
    assert "more than 50000 values" in problem.fact
    assert time.monotonic() - began < 5


# What is hardly meant.


def test_load_text__nothing_that_could_start_it__is_reported_and_loads() -> None:  # D23
    loaded = load_text("id: orders\ntrigger: {type: http, config: {url: 'https://x.example'}}\n", SOURCE)
    assert [each.pipeline.id for each in loaded.pipelines] == ["orders"]
    (warning,) = loaded.problems
    assert warning.is_warning
    assert "nothing ever starts it" in warning.fact


def test_load_text__cron_given_as_a_trigger__is_an_error_and_not_silence() -> None:  # D23
    found = errors("id: ml-data-prep\ntrigger: {type: cron, expression: '0 6 * * *'}\n")
    assert {problem.field for problem in found} == {"trigger.type", "trigger.expression"}


def test_load_text__no_trigger__is_reported_and_loads() -> None:
    loaded = load_text('id: orders\nschedules: [{cron: "@daily"}]\n', SOURCE)
    assert len(loaded.checked()) == 1
    assert [problem.field for problem in loaded.problems] == ["trigger"]


# Several together.


def _waits(pipeline_id: str, upstream: str, periods: str = "same") -> str:
    return f"id: {pipeline_id}\nreadiness: {{rules: [{{upstream: {{pipeline: {upstream}, periods: {periods}}}}}]}}\n"


def _started_by(pipeline_id: str, upstream: str, periods: str = "same") -> str:
    return f"id: {pipeline_id}\nschedules: [{{upstream: [{{pipeline: {upstream}, periods: {periods}}}]}}]\n"


@pytest.mark.parametrize(
    ("texts", "circle"),
    [
        ([_waits("aa", "bb"), _waits("bb", "aa")], "aa → bb → aa"),
        ([_waits("bb", "cc"), _started_by("cc", "dd"), _waits("dd", "bb", "all")], "bb → cc → dd → bb"),
        # Started by its own period before, it would never end; waiting for that is all right.
        ([_started_by("aa", "aa", "previous")], "aa → aa"),
        ([_waits("aa", "aa", "previous")], None),
        ([_waits("aa", "bb"), _waits("bb", "aa", "previous")], None),
        ([_waits("aa", "bb"), _waits("cc", "bb"), _waits("bb", "dd")], None),
    ],
)
def test_load_text__upstreams__circles_are_found_and_nothing_else_is(texts: list[str], circle: str | None) -> None:
    loaded = load_text("---\n".join([*texts, "id: other\n"]), SOURCE)
    found = [problem.fact for problem in errors_of(loaded.problems)]
    assert found == ([] if circle is None else [f"upstreams go in a circle: {circle}"])
    # Definitions that are not in it load.
    assert "other" in [each.pipeline.id for each in loaded.pipelines]
    assert len(loaded.pipelines) == (1 if circle is not None else len(texts) + 1)


def test_circles__a_chain_longer_than_pythons_stack__is_walked_and_has_none() -> None:
    def waits(number: int, upstream: int) -> Pipeline:
        rule = Rule(upstream=Upstream(pipeline=f"p{upstream}"))
        return Pipeline(id=f"p{number}", readiness=Readiness(rules=(rule,)))

    chain = [waits(number, number + 1) for number in range(5_000)]
    assert cycles(chain) == []
    (circle,) = cycles([*chain, waits(5_000, 0)])
    assert (len(circle), circle[:2]) == (5_001, ("p0", "p1"))


def test_load_folder__bad_files_among_good_ones__the_good_ones_load(tmp_path: Path) -> None:  # D29
    (tmp_path / "deep").mkdir()
    (tmp_path / "good.yaml").write_text("id: good\n")
    (tmp_path / "deep" / "also.json").write_text('{"id": "also"}')
    (tmp_path / "bad.yml").write_text("id: [\n")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "notes.txt").write_text("not looked at")
    (tmp_path / "one.yaml").write_text("id: twice\n")
    (tmp_path / "two.yaml").write_text("id: twice\n")
    (tmp_path / "gone.yaml").symlink_to(tmp_path / "nowhere")
    loaded = load_folder(tmp_path)
    assert sorted(each.pipeline.id for each in loaded.pipelines) == ["also", "good"]
    assert sorted({problem.source for problem in errors_of(loaded.problems)}) == [
        "bad.yml",
        "bytes.yaml",
        "gone.yaml",
        "two.yaml",
    ]
    (twice,) = [problem for problem in loaded.problems if problem.source == "two.yaml" and not problem.is_warning]
    assert twice.fact == "'twice' is defined at one.yaml:1 too"


def test_load_folder__the_medallion__is_right_in_every_file() -> None:
    loaded = load_folder(MEDALLION)
    assert loaded.problems == ()
    assert [each.pipeline.id for each in loaded.checked()] == ["bronze-orders", "gold-revenue", "silver-orders"]
    assert unknown_upstreams([each.pipeline for each in loaded.pipelines], ()) == []


def test_unknown_upstreams__one_that_no_one_defines__is_reported_with_the_nearest() -> None:
    pipelines = [load_pipeline(text, SOURCE) for text in (_waits("aa", "brnze"), "id: bronze\n")]
    (problem,) = unknown_upstreams(pipelines, ["silver"])
    assert problem.is_warning
    assert problem.suggestion == "bronze"


def test_load_pipeline__fifty_of_them__take_no_time_to_speak_of() -> None:
    text = (MEDALLION / "bronze-orders.yaml").read_text()
    began = time.monotonic()
    for _ in range(50):
        load_pipeline(text, SOURCE)
    # 50 in well under a second on a free machine; the bound leaves room for a busy one.
    assert time.monotonic() - began < 10


def test_problems__as_json__can_be_sent() -> None:
    (problem,) = errors("id: A\n")
    assert msgspec.json.decode(msgspec.json.encode(problem))["line"] == 1


# Whatever is given.

_JUNK: list[Any] = [
    None, True, 0, -1, 3.5, 1e308, 10**30, "", "x", "#", ":30", "99:99", "2026-13-01", [], {}, [1], {"a": 1}, [None],
    [{}], {"type": "x"}, {"key": "a"},
]  # fmt: skip


def _places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, each in below for place in _places(each, (*path, key)))]


def _spoilt(document: Any, random: Random) -> Any:
    """Put something else into one to three places of a document."""
    for _ in range(random.randint(1, 3)):
        *between, last = random.choice([place for place in _places(document) if place])
        parent = document
        for key in between:
            parent = parent[key]
        parent[last] = random.choice(_JUNK)
    return document


@pytest.mark.parametrize("seed", range(40))
def test_load_text__documents_spoilt_at_random__load_or_are_reported_and_never_raise(seed: int) -> None:
    random = Random(seed)
    texts = [OLDER, NEWER, RIGHT, *(path.read_text() for path in sorted(MEDALLION.glob("*.yaml")))]
    for text in texts:
        (document,) = documents(text, SOURCE)
        loaded = load_text(json.dumps(_spoilt(document.plain(), random)), SOURCE)
        assert loaded.pipelines or errors_of(loaded.problems)
        for each in loaded.pipelines:
            assert decode(encode(each.pipeline)) == each.pipeline


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e999", "1e999"), ("9223372036854775807", 2**63 - 1), ("18446744073709551616", 2.0**64), ("1" * 400, "1" * 400)],
)
def test_load_pipeline__numbers_that_json_cannot_hold__are_ones_it_can(text: str, value: Any) -> None:
    pipeline = load_pipeline(_rule(f"{{key: a, check: equals, field: n, value: {text}}}"), SOURCE)
    assert pipeline.readiness.rules[0].value == value
    assert decode(encode(pipeline)) == pipeline


def test_load_text__rules_on_one_sensor_of_different_periods__are_refused() -> None:
    rules = "{key: a}\n    - {key: a, check: equals, field: n, value: 1, period: any}"
    (problem,) = errors(_rule(rules))
    assert problem.field == "readiness.rules[1]"
    assert "own period" in problem.fact


def test_load_text__a_period_on_a_rule_without_a_sensor__is_refused() -> None:
    (problem,) = errors(_rule("{dataset: 'urn:dp:a', period: any}"))
    assert problem.field == "readiness.rules[0].period"


@pytest.mark.parametrize(
    ("trigger", "message"),
    [
        (
            "{type: glue, callback: true, config: {job: j}}",
            "trigger.callback: a trigger of type glue sends no callback",
        ),
        ("{type: http, heartbeat: 60s, config: {url: u}}", "trigger.heartbeat: only a job that calls back"),
        (
            "{type: http, callback: true, heartbeat: 2h, config: {url: u}}",
            "trigger.heartbeat: the job is out of time before 7200 s of silence; use at most the poll_window",
        ),
        ('{type: http, config: {url: "${callback_url}"}}', "set trigger.callback: true"),
    ],
)
def test_load__callback_that_could_not_work__is_refused_with_the_remedy(trigger: str, message: str) -> None:
    (problem,) = errors(f"id: orders\nschedules: [{{cron: '0 6 * * *'}}]\ntrigger: {trigger}\n")

    assert message in problem.text()


def test_load__callback_of_a_kind_that_is_given_the_url__is_right() -> None:
    config = '{job: j, arguments: {"--tell": "${callback_url}", "--token": "${callback_token}"}}'
    text = "id: orders\nschedules: [{cron: '0 6 * * *'}]\ntrigger:"

    assert errors(f"{text} {{type: glue, callback: true, config: {config}}}\n") == []
    assert errors(f"{text} {{type: http, callback: true, heartbeat: 60s, config: {{url: u}}}}\n") == []
