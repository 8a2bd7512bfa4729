"""Sentences and titles as pages show them."""

from __future__ import annotations

import pytest

from headgate.serve.pages.labels import headline
from headgate.serve.pages.prose import brief, prose

NOW = "2026-11-18T10:30:00.000Z"


def test_prose__time_of_today__is_a_time_element_with_the_clock_time() -> None:
    assert str(prose("late since 2026-11-18T10:17:33Z.", NOW)) == (
        'late since <time class="moment" datetime="2026-11-18T10:17:33.000Z" title="2026-11-18 10:17:33 UTC">'
        '<span class="clock">10:17 UTC</span></time>.'
    )


def test_prose__time_of_another_day__has_its_date() -> None:
    assert "2026-11-17 23:59 UTC</span>" in prose("since 2026-11-17T23:59:59.999Z", NOW)


def test_prose__no_such_day__stays_text() -> None:
    assert str(prose("2026-02-31T10:17:33Z", NOW)) == "2026-02-31T10:17:33Z"


@pytest.mark.parametrize(
    ("text", "link"),
    [
        ("fan-out run_01M7Q2JS8Y479MS6PC9J6R87TP ended", 'href="/ui/fanouts/run_01M7Q2JS8Y479MS6PC9J6R87TP"'),
        ("execution 'run_01M7Q2JS8Y479MS6PC9J6R87TP' ended", 'href="/ui/executions/run_01M7Q2JS8Y479MS6PC9J6R87TP"'),
        ("headgate fanout failures run_01M7Q2JS8Y479MS6PC9J6R87TP", "failures run_01M7Q2JS8Y479MS6PC9J6R87TP"),
        ("urn:dp:shop:v1: stale", '<a class="urn" href="/ui/datasets/urn%3Adp%3Ashop%3Av1">shop:v1</a>: '),
        ("see urn:dp:a.b.", '<a class="urn" href="/ui/datasets/urn%3Adp%3Aa.b">a.b</a>.'),
        (
            "INC-01M7Q2JSSCDG2TSJDXF0H663S4 is OPEN",
            '<a class="urn" href="/ui/incidents/INC-01M7Q2JSSCDG2TSJDXF0H663S4">INC-01M7Q2JSSCDG2TSJDXF0H663S4</a> is',
        ),
        (
            "attempt 1 (run_01M7Q2JS8Y479MS6PC9J6R87TP)",
            '(<a class="urn" href="/ui/runs/run_01M7Q2JS8Y479MS6PC9J6R87TP">run_01M7Q2JS8Y479MS6PC9J6R87TP</a>)',
        ),
    ],
)  # fmt: skip
def test_prose__name_of_something__is_a_link(text: str, link: str) -> None:
    assert link in prose(text, NOW)


def test_prose__markup_of_a_user__is_escaped_around_and_inside_of_names() -> None:
    drawn = str(prose('<script>urn:dp:a"><img onerror=x> & 2026-11-18T10:17:33Z</script>', NOW))
    assert "<script" not in drawn
    assert "<img" not in drawn
    assert drawn.startswith('&lt;script&gt;<a class="urn" href="/ui/datasets/urn%3Adp%3Aa">a</a>&#34;&gt;&lt;img')


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("CONTRACT on urn:dp:shop:orders:raw - MISSING_FIELD:amount", 'shop:orders:raw: field "amount" is missing'),
        ("PIPELINE_RUN on urn:dp:shop:scored - RUN_FAILED:orders-score", "shop:scored: the run of orders-score failed"),
        ("FRESHNESS on urn:dp:fx - FRESHNESS_OVERDUE:no_report", "fx: no report on its freshness came in time"),
        ("DATA_QUALITY on urn:dp:a:b - NOT_NULL:id and 2 more", "a:b: not null fails on id and 2 more"),
        ("DATA_QUALITY on urn:dp:a:b - ROW_COUNT:dataset", "a:b: row count fails"),
        ("FRESHNESS on urn:dp:a:b - CRITICAL", "a:b: FRESHNESS is CRITICAL"),
        ("Orders are late again", "Orders are late again"),
        ("LATE on urn:dp:a:b - {0.__class__}:{x}", "a:b: {0.  class  } fails on {x}"),
    ],
)  # fmt: skip
def test_headline__title_made_from_signals__is_a_sentence(title: str, words: str) -> None:
    assert headline(title) == words


def test_brief__commands_that_a_page_has_as_buttons__are_left_out() -> None:
    text = "64 of 300 chunks failed; see: headgate fanout failures x; to complete this run: headgate fanout redrive x"

    assert brief(text) == "64 of 300 chunks failed"
