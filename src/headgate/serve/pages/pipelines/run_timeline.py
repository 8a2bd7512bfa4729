"""Run timeline: what a run waited for, its trigger, its job and its deadline as rows on one time axis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from headgate.health.model.timestamps import milliseconds
from headgate.pipelines.enums import RunStatus, Verdict
from headgate.pipelines.schedule.sla import SlaMoments
from headgate.serve.pages.work.execution_timeline import Mark, Row, Span, Timeline

RULES_MAX: Final = 15
# Room around the run on the axis, and the furthest deadline that is drawn, as parts of its length.
_MARGIN: Final = 0.03
_DEADLINE_WITHIN: Final = 2.0
_VERDICTS: Final[Mapping[str, str]] = {Verdict.PASS: "good", Verdict.FAIL: "bad", Verdict.UNKNOWN: "odd"}
_SEVERITIES: Final[Mapping[str, str]] = {"critical": "bad", "error": "bad", "warning": "warn"}


def run_timeline(
    run: Mapping[str, Any],
    evaluations: Iterable[Mapping[str, Any]],
    events: Sequence[Mapping[str, Any]],
    sla: SlaMoments | None,
    now_ms: int,
) -> Timeline:
    """Return the rows of a run: phases, each rule over the evaluations, deadline and events."""
    status = RunStatus(run["status"])
    is_over = status.is_terminal or status.is_done
    phases, start_ms, end_ms = _phases(run, now_ms, is_over=is_over)
    waited_until_ms = _waited_until(run, now_ms)
    rules = _rules(sorted(evaluations, key=lambda each: str(each["at"])), waited_until_ms, is_open=not is_over)
    happened = Row("events", "", [], [_mark(each) for each in events if each["timestamp"]])
    deadline, to_ms = _deadline(sla, start_ms, end_ms)
    waiting, others = phases[:1], phases[1:]
    rows = [*waiting, *rules[:RULES_MAX], *others, *deadline, *([happened] if happened.marks else [])]
    pad_ms = max(1, int((to_ms - start_ms) * _MARGIN))
    left_out = max(0, len(rules) - RULES_MAX)
    return Timeline(start_ms - pad_ms, to_ms + pad_ms, None if is_over else now_ms, rows, left_out)


def _phases(run: Mapping[str, Any], now_ms: int, *, is_over: bool) -> tuple[list[Row], int, int]:
    """Return a row for each state that lasted, and when the run started and ended."""
    transitions = [(RunStatus(each["status"]), milliseconds(each["at"])) for each in run["transitions"]]
    if not transitions:
        return [], now_ms, now_ms
    tones = {RunStatus.PENDING: "plain", RunStatus.TRIGGERING: "warn", RunStatus.RUNNING: "busy"}
    labels = {RunStatus.PENDING: "waiting", RunStatus.TRIGGERING: "trigger", RunStatus.RUNNING: "job"}
    rows: list[Row] = []
    for index, (state, at_ms) in enumerate(transitions):
        following = transitions[index + 1] if index + 1 < len(transitions) else None
        if state is RunStatus.FAILED and following is not None and following[0].is_done:
            rows.append(Row("repair", "", [Span(at_ms, following[1], "good", "the job was repaired")], []))
        if state not in labels:
            continue
        tone = tones[state]
        if state is RunStatus.RUNNING and following is not None:
            tone = "good" if following[0].is_done else "bad"
        rows.append(Row(labels[state], "", [Span(at_ms, None if following is None else following[1], tone, "")], []))
    start_ms, last_ms = transitions[0][1], transitions[-1][1]
    return rows, start_ms, max(last_ms, start_ms + 1) if is_over else max(now_ms, start_ms + 1)


def _waited_until(run: Mapping[str, Any], now_ms: int) -> int:
    """Return when the run stopped waiting; now, if it still waits."""
    later = [each["at"] for each in run["transitions"] if each["status"] != RunStatus.PENDING]
    return milliseconds(later[0]) if later else now_ms


def _rules(evaluations: Sequence[Mapping[str, Any]], until_ms: int, *, is_open: bool) -> list[Row]:
    """Return a row for each rule: its verdict from each evaluation to the next."""
    rows: dict[str, Row] = {}
    for evaluation in evaluations:
        if evaluation["at"] is None:
            continue
        at_ms = milliseconds(evaluation["at"])
        for rule in evaluation["rules"]:
            row = rows.setdefault(rule["path"], Row(rule["name"], "", [], []))
            tone, text = _VERDICTS[rule["verdict"]], rule["reason"]
            last = row.spans[-1] if row.spans else None
            if last is not None and (last.tone, last.text) == (tone, text):
                continue
            if last is not None:
                row.spans[-1] = Span(last.from_, at_ms, last.tone, last.text)
            row.spans.append(Span(at_ms, None, tone, text))
    for row in rows.values():
        last = row.spans[-1]
        if not is_open or until_ms > last.from_:
            row.spans[-1] = Span(last.from_, max(until_ms, last.from_), last.tone, last.text)
    return list(rows.values())


def _deadline(sla: SlaMoments | None, start_ms: int, end_ms: int) -> tuple[list[Row], int]:
    """Return the row of the deadline, and the end of the axis: a deadline that is far off is not drawn."""
    if sla is None:
        return [], end_ms
    breach_ms = int(sla.breach_at.timestamp() * 1000)
    if not start_ms <= breach_ms <= end_ms + _DEADLINE_WITHIN * (end_ms - start_ms):
        return [], end_ms
    tone = "bad" if end_ms > breach_ms else "good"
    return [Row("deadline", "", [], [Mark(breach_ms, tone, "deadline")])], max(end_ms, breach_ms)


def _mark(event: Mapping[str, Any]) -> Mark:
    tone = _SEVERITIES.get(str(event["severity"]).lower(), "odd")
    return Mark(milliseconds(event["timestamp"]), tone, f"{event['name']}: {event['text']}")
