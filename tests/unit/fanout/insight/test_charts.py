"""Plots: that they are whole XML, show what they are given, and stay within their frame."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.fanout.insight.charts import attempts_plot, binned, durations_plot, log_edges, progress_plot
from headgate.fanout.insight.plot_axes import (
    Frame,
    count_text,
    count_ticks,
    log_time_ticks,
    safe,
    shortened,
    time_text,
    time_ticks,
)
from headgate.fanout.insight.plot_lanes import LANES_MAX, SPANS_MAX, lanes_plot, spans_of
from headgate.fanout.insight.plot_maps import TIPS_MAX, failure_map
from headgate.fanout.model.counts import Counts
from headgate.fanout.model.rows import Chunk, timestamp
from headgate.fanout.model.states import AttemptOutcome, Disposition
from tests.unit.fanout.made_rows import RUN, SIZE, T0, made_attempt, made_chunk, made_fanout

SVG = "{http://www.w3.org/2000/svg}"
NOW = T0 + 600_000
SUBPATH = re.compile(r"M(-?[\d.]+) (-?[\d.]+)h([\d.]+)")


def _parsed(svg: str) -> ET.Element:
    root = ET.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    _check_inside(root)
    return root


def _check_inside(root: ET.Element) -> None:
    """See that everything with a place is within the picture."""
    _, _, width, height = (float(part) for part in root.attrib["viewBox"].split())
    for element in root.iter():
        for name, limit in (("x", width), ("x1", width), ("x2", width), ("y", height), ("y1", height), ("y2", height)):
            if name in element.attrib:
                assert 0 <= float(element.attrib[name]) <= limit, ET.tostring(element)
        if element.tag == f"{SVG}rect":
            assert float(element.attrib["x"]) + float(element.attrib["width"]) <= width + 0.11
            assert float(element.attrib["y"]) + float(element.attrib["height"]) <= height + 0.11
            assert float(element.attrib["width"]) > 0
        for x, y in _corners(element):
            assert 0 <= x <= width
            assert 0 <= y <= height


def _corners(element: ET.Element) -> list[tuple[float, float]]:
    if element.tag == f"{SVG}polyline":
        pairs = (pair.split(",") for pair in element.attrib["points"].split())
        return [(float(x), float(y)) for x, y in pairs]
    return [(float(x), float(y)) for x, y, _ in SUBPATH.findall(element.attrib.get("d", ""))]


def _marks(root: ET.Element, mark: str) -> list[ET.Element]:
    return [element for element in root.iter() if element.attrib.get("class") == mark]


def _cells(root: ET.Element, mark: str) -> int:
    """Return how many cells of a map are drawn in a state."""
    found = _marks(root, mark)
    paths = sum(len(_corners(element)) for element in found if element.tag == f"{SVG}path")
    return paths + sum(1 for element in found if element.tag == f"{SVG}rect")


def _texts(root: ET.Element) -> list[str]:
    return ["".join(element.itertext()) for element in root.iter(f"{SVG}text")]


EMPTY: list[Callable[[], str]] = [
    lambda: progress_plot(made_fanout(), Counts(), [], T0),
    lambda: durations_plot(RUN, [made_chunk(0, Disposition.QUEUED)]),
    lambda: attempts_plot(RUN, []),
    lambda: failure_map(RUN, [], chunks_total=0, items_total=0),
    lambda: lanes_plot(RUN, [made_chunk(0, Disposition.QUEUED)], [], NOW),
]


@pytest.mark.parametrize("draw", EMPTY)
def test_plot__nothing_to_show__says_so(draw: Callable[[], str]) -> None:
    root = _parsed(draw())

    assert any(text.endswith(".") for text in _texts(root))
    assert _marks(root, "bar") == _marks(root, "span") == []


ALL: list[Callable[[str], str]] = [
    lambda run_id: progress_plot(made_fanout(run_id=run_id), Counts(total=1, done=1), [made_chunk(0)], NOW),
    lambda run_id: durations_plot(run_id, [made_chunk(0)]),
    lambda run_id: attempts_plot(run_id, [made_chunk(0)]),
    lambda run_id: failure_map(run_id, [made_chunk(0)], chunks_total=1, items_total=SIZE),
    lambda run_id: lanes_plot(run_id, [made_chunk(0)], [], NOW),
]


@pytest.mark.parametrize("draw", ALL)
def test_plot__any_of_them__is_named_and_described_for_screen_readers(draw: Callable[[str], str]) -> None:
    root = _parsed(draw("fan-1"))

    named, described = root.attrib["aria-labelledby"].split()
    assert root.attrib["role"] == "img"
    assert (root[0].tag, root[0].attrib["id"]) == (f"{SVG}title", named)
    assert (root[1].tag, root[1].attrib["id"]) == (f"{SVG}desc", described)
    assert "fan-1" in (root[0].text or "")
    assert root[1].text


@pytest.mark.parametrize("draw", ALL)
def test_plot__an_id_with_markup_and_control_characters__is_text(draw: Callable[[str], str]) -> None:
    root = _parsed(draw("<script>&\"'\x00\x1b\ud800"))

    assert list(root.iter(f"{SVG}script")) == []
    assert any("<script>" in text for text in _texts(root))


@pytest.mark.parametrize("draw", ALL)
def test_plot__within_a_page_with_a_strict_policy__needs_no_style(draw: Callable[[str], str]) -> None:
    svg = draw("fan-1")

    assert "style" not in svg
    assert "currentColor" in svg


def test_plots__two_in_one_page__have_ids_of_their_own() -> None:
    first, second = (attempts_plot(run_id, [made_chunk(0)]) for run_id in ("a", "b"))

    assert set(re.findall(r'id="([^"]+)"', first)) & set(re.findall(r'id="([^"]+)"', second)) == set()


def test_progress_plot__completed_and_failed__rise_to_their_counts() -> None:
    chunks = [made_chunk(number, begin_ms=T0 + 10_000 * number) for number in range(50)]
    chunks += [made_chunk(50 + n, Disposition.DEAD, begin_ms=T0 + 50_000 * n) for n in range(10)]

    root = _parsed(progress_plot(made_fanout(), Counts(total=100, done=50, dead=10, queued=40), chunks, NOW))

    completed, failed = (_corners(_marks(root, mark)[0]) for mark in ("completed", "failed"))
    bottom, top = completed[0][1], _corners(_marks(root, "total")[0])[0][1]
    assert (bottom - completed[-1][1]) / (bottom - top) == pytest.approx(0.5, abs=0.01)
    assert (bottom - failed[-1][1]) / (bottom - top) == pytest.approx(0.1, abs=0.01)
    assert [x for x, _ in completed] == sorted(x for x, _ in completed)
    assert [-y for _, y in completed] == sorted(-y for _, y in completed)


def test_durations_plot__a_tail__is_counted_whole_and_set_apart() -> None:
    chunks = [made_chunk(number, duration_ms=1000) for number in range(998)]
    chunks += [made_chunk(998, duration_ms=60_000), made_chunk(999, duration_ms=600_000)]

    root = _parsed(durations_plot(RUN, chunks))

    bars = _marks(root, "bar")
    result = [int("".join(bar.itertext()).rsplit(" ", 2)[1]) for bar in bars]
    assert sum(result) == 1000
    assert len({bar.attrib["fill"] for bar in bars}) >= 2
    assert all(float(bar.attrib["height"]) >= 2 for bar in bars)
    assert len(_marks(root, "percentile")) == 3


@pytest.mark.parametrize("durations", [[0], [5, 5, 5], [1, 604_800_000], [999, 1000]])
def test_durations_plot__odd_durations__are_drawn(durations: list[int]) -> None:
    chunks = [made_chunk(number, duration_ms=duration) for number, duration in enumerate(durations)]

    assert _marks(_parsed(durations_plot(RUN, chunks)), "bar")


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=50))
def test_bins__any_durations__hold_each_once_between_their_edges(durations: list[int]) -> None:
    edges = log_edges(min(durations), max(durations))

    assert sum(binned(durations, edges)) == len(durations)
    assert edges == sorted(edges)
    assert edges[0] <= max(1, min(durations)) * 1.0001
    assert edges[-1] >= max(durations) * 0.9999


def test_attempts_plot__one_to_many__has_a_bar_for_each_and_one_for_the_rest() -> None:
    attempts = [1] * 8 + [2] * 3 + [10, 12, 40]

    root = _parsed(attempts_plot(RUN, [made_chunk(n, attempt=attempt) for n, attempt in enumerate(attempts)]))

    tips = ["".join(bar.itertext()) for bar in _marks(root, "bar")]
    assert tips == [
        "8 chunks took 1 attempts",
        "3 chunks took 2 attempts",
        "3 chunks took 10 or more attempts",
    ]


def test_failure_map__few_chunks__has_a_cell_for_each_in_its_place() -> None:
    states = [Disposition.DONE] * 5 + [Disposition.DEAD, Disposition.RUNNING, Disposition.QUEUED]
    chunks = [made_chunk(number, state, error="bad <x>") for number, state in enumerate(states)]

    root = _parsed(failure_map(RUN, chunks, chunks_total=9, items_total=9 * SIZE))

    found = {mark: _cells(root, mark) for mark in ("DONE", "DEAD", "RUNNING", "QUEUED", "unread")}
    assert found == {"DONE": 5, "DEAD": 1, "RUNNING": 1, "QUEUED": 1, "unread": 1}
    dead = _marks(root, "DEAD")[0]
    done = _corners(_marks(root, "DONE")[0])
    step = done[1][0] - done[0][0]
    assert float(dead.attrib["x"]) == pytest.approx(done[0][0] + 5 * step)
    assert "".join(dead.itertext()) == "chunk-0000050 dead: bad <x>"


def test_failure_map__more_chunks_than_cells__shows_the_worst_of_each_cell() -> None:
    bad = {3, 17, 18, 19}
    chunks = (made_chunk(n, Disposition.DEAD if n in bad else Disposition.DONE) for n in range(1000))

    root = _parsed(failure_map(RUN, chunks, chunks_total=1000, items_total=1000 * SIZE, cells_max=100))

    assert (_cells(root, "DEAD"), _cells(root, "DONE"), _cells(root, "unread")) == (2, 98, 0)
    assert any("about 10 chunks" in text for text in _texts(root))
    assert any(text == "dead 4" for text in _texts(root))


def test_failure_map__ten_thousand_failures__has_tips_for_some_and_cells_for_all() -> None:
    chunks = (made_chunk(number, Disposition.DEAD) for number in range(10_000))

    svg = failure_map(RUN, chunks, chunks_total=10_000, items_total=10_000 * SIZE)
    root = _parsed(svg)

    assert _cells(root, "DEAD") == 10_000
    assert sum(1 for mark in _marks(root, "DEAD") if mark.tag == f"{SVG}rect") == TIPS_MAX
    assert len(svg) < 400_000


def test_failure_map__counts_given__are_what_the_legend_says() -> None:
    counts = Counts(total=50_000, done=49_990, dead=10)

    root = _parsed(failure_map(RUN, [made_chunk(0)], chunks_total=50_000, items_total=500_000, counts=counts))

    assert {"dead 10", "done 49,990"} <= set(_texts(root))
    assert not any(text.startswith("running") for text in _texts(root))


def test_failure_map__last_chunk_is_short__every_chunk_has_a_cell_of_its_own() -> None:
    chunks = [made_chunk(number) for number in range(7)]

    root = _parsed(failure_map(RUN, chunks, chunks_total=7, items_total=6 * SIZE + 1))

    assert _cells(root, "DONE") == 7


def test_spans__chunk_and_attempt_rows_of_one_attempt__are_one() -> None:
    chunk = made_chunk(0, attempt=2, begin_ms=T0 + 5000)
    attempts = [
        made_attempt(0, 1, AttemptOutcome.LOST, end_ms=T0 + 4000),
        made_attempt(0, 2, AttemptOutcome.COMPLETED, end_ms=T0 + 6000),
    ]

    spans = spans_of([chunk], attempts, NOW)

    assert [(span.attempt, span.outcome) for span in spans] == [(1, AttemptOutcome.LOST), (2, AttemptOutcome.COMPLETED)]
    assert spans[0].end_ms == T0 + 4000


def test_spans__a_chunk_that_runs__lasts_until_now() -> None:
    spans = spans_of([made_chunk(0, Disposition.RUNNING, begin_ms=T0 + 7000)], [], NOW)

    assert [(span.begin_ms, span.end_ms, span.outcome) for span in spans] == [(T0 + 7000, NOW, None)]


def test_spans__taken_with_others_and_begun_later__begins_when_the_work_did() -> None:
    chunk = made_chunk(0, started_at=timestamp(T0), completed_at=timestamp(T0 + 9000), duration_ms=500)

    assert spans_of([chunk], [], NOW)[0].begin_ms == T0 + 8500


def test_lanes_plot__two_workers__have_a_lane_each_in_the_order_of_time() -> None:
    chunks = [
        made_chunk(0, worker="late", begin_ms=T0 + 60_000),
        made_chunk(1, worker="early", begin_ms=T0),
        made_chunk(2, worker="early", begin_ms=T0 + 30_000),
    ]

    root = _parsed(lanes_plot(RUN, chunks, [], NOW))

    spans = _marks(root, "span")
    lanes = sorted({float(span.attrib["y"]) for span in spans})
    assert len(spans) == 3
    assert len(lanes) == 2
    assert [float(span.attrib["y"]) == lanes[0] for span in spans] == [True, True, False]
    texts = _texts(root)
    assert texts.index("early") < texts.index("late")


def test_lanes_plot__workers_of_processes__are_named_by_process_and_host_and_numbered() -> None:
    names = ("vm pid:[4026531836]|4711|01JA", "vm pid:[4026531836]|4711|01JB", "vm pid:[4026531836]|12|01JC")
    chunks = [made_chunk(number, worker=name, begin_ms=T0 + number) for number, name in enumerate(names)]

    texts = _texts(_parsed(lanes_plot(RUN, chunks, [], NOW)))

    assert [text for text in texts if "@" in text] == ["4711@vm", "4711@vm (2)", "12@vm"]


def test_lanes_plot__processes_of_a_worker__have_a_lane_each() -> None:
    name = "vm pid:[4026531836]|4711|01JA"
    chunks = [
        made_chunk(0, worker=name, begin_ms=T0, process=2),
        made_chunk(1, worker=name, begin_ms=T0 + 100, process=1),
        made_chunk(2, worker=name, begin_ms=T0 + 1100, process=1),
        # It still runs: in the process that was free first.
        made_chunk(3, Disposition.RUNNING, worker=name, begin_ms=T0 + 1200),
    ]

    root = _parsed(lanes_plot(RUN, chunks, [], NOW))

    first, second, third, running = (float(span.attrib["y"]) for span in _marks(root, "span"))
    assert [text for text in _texts(root) if "@" in text] == ["4711@vm #1", "4711@vm #2"]
    assert second < first
    assert third == second
    assert running == first


def test_lanes_plot__lost_attempt__is_work_until_the_last_heartbeat_and_dashed_until_it_was_noticed() -> None:
    lost = made_attempt(
        0, 1, AttemptOutcome.LOST, end_ms=T0 + 40_000, worker="w1", started_at=timestamp(T0), duration_ms=10_000
    )
    unheard = made_attempt(
        1, 1, AttemptOutcome.LOST, end_ms=T0 + 40_000, worker="w2", started_at=timestamp(T0), duration_ms=0
    )

    root = _parsed(lanes_plot(RUN, [], [lost, unheard], NOW))

    (work,), dead = _marks(root, "span"), _marks(root, "lost")
    assert len(dead) == 2
    assert all(each.attrib["fill"] == "none" for each in dead)
    assert float(dead[0].attrib["width"]) == pytest.approx(3 * float(work.attrib["width"]), rel=0.01)
    assert float(dead[1].attrib["x"]) == float(work.attrib["x"])
    assert any("Dashed: lost" in text for text in _texts(root))


def test_lanes_plot__too_much_to_show__keeps_failures_and_says_what_is_left_out() -> None:
    chunks: list[Chunk] = [
        made_chunk(number, worker=f"w{number % 100}", begin_ms=T0 + 10 * number) for number in range(9000)
    ]
    chunks.append(made_chunk(9000, Disposition.DEAD, worker="bad", begin_ms=T0))

    root = _parsed(lanes_plot(RUN, chunks, [], NOW))

    assert len(_marks(root, "span")) == SPANS_MAX
    assert len({span.attrib["y"] for span in _marks(root, "span")}) == LANES_MAX
    assert "bad" in _texts(root)
    assert any(text.startswith(f"{LANES_MAX} of 101 processes, {SPANS_MAX} of 9001 attempts") for text in _texts(root))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0"),
        (0.0005, "0.5 ms"),
        (0.25, "250 ms"),
        (1.5, "1.5 s"),
        (59, "59 s"),
        (60, "1 min"),
        (90, "1 min 30 s"),
        (3600, "1 h"),
        (5400, "1 h 30 min"),
        (86_400, "1 d"),
        (90_000, "1 d 1 h"),
    ],
)
def test_time_text__any_stretch__is_in_the_units_that_say_it_best(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0"), (12_345, "12,345"), (250_000, "250k"), (1_000_000, "1M"), (1_234_567, "1.23M")]
)
def test_count_text__any_count__is_short(count: int, text: str) -> None:
    assert count_text(count) == text


@given(st.integers(0, 10**9))
def test_count_ticks__any_count__are_round_and_reach_it(highest: int) -> None:
    end, ticks = count_ticks(highest)

    assert end >= highest
    assert end <= max(1, 2 * highest) + 1
    assert 2 <= len(ticks) <= 7
    assert (ticks[0].share, ticks[-1].share) == (0, 1)


@given(st.floats(0.001, 10**9))
def test_time_ticks__any_stretch__are_few_and_within_it(seconds: float) -> None:
    ticks = time_ticks(seconds)

    assert 1 <= len(ticks) <= 8
    assert all(0 <= tick.share <= 1.000001 for tick in ticks)


@given(st.floats(0.001, 10**5), st.floats(1.1, 10**6))
def test_log_time_ticks__any_range__are_few_and_within_it(low: float, ratio: float) -> None:
    ticks = log_time_ticks(low, low * ratio)

    assert 1 <= len(ticks) <= 8
    assert all(-1e-9 <= tick.share <= 1 + 1e-9 for tick in ticks)


@given(st.text())
def test_safe__any_text__can_be_parsed(text: str) -> None:
    parsed = ET.fromstring(f'<a b="{safe(text)}">{safe(text)}</a>')

    assert parsed.tag == "a"


@given(st.text(), st.integers(3, 40))
def test_shortened__any_text__fits(text: str, length: int) -> None:
    found = shortened(text, length)

    assert len(found) <= length
    assert found == text or "…" in found


def test_frame__shares_beyond_the_ends__stay_on_the_edge() -> None:
    frame = Frame()

    assert (frame.x(-1), frame.x(2)) == (frame.x(0), frame.x(1))
    assert (frame.y(-1), frame.y(2)) == (frame.y(0), frame.y(1))
