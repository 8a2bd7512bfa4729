"""Labels of pages: times, durations, numbers, states and commands as text."""

from __future__ import annotations

import datetime as dt
import json
import re
import shlex
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from headgate.durable.model.payload_codec import readable
from headgate.errors import UserError
from headgate.health.model.timestamps import instant, milliseconds
from headgate.pipelines.overview.status import PipelineState, SlaState, SlaStatus
from headgate.pipelines.schedule.local_time import zone_of

UTC: Final = "UTC"
_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
# The title that an incident gets from its signals.
_MADE_TITLE: Final = re.compile(
    r"(?P<types>.+?) on (?P<urn>urn:\S+) - (?P<first>\S+)(?P<more> and [0-9]+ more)?", re.ASCII
)
# Signatures whose code alone would need an explanation. The field stands for `{}`.
_PHRASES: Final = {
    "MISSING_FIELD": 'field "{}" is missing',
    "RUN_FAILED": "the run of {} failed",
    "LATE": "{} is late",
    "FRESHNESS_OVERDUE": "no report on its freshness came in time",
    "STALE": "its data is older than allowed",
    "MODEL_FAILED": "its model failed",
}


def span(seconds: float) -> str:
    """Return a duration in its two largest units."""
    whole = int(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min"
    if whole < _DAY:
        hours, minutes = divmod(whole // _MINUTE, 60)
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(whole // _HOUR, 24)
    return f"{days} d {hours} h" if hours and days < 10 else f"{days} d"


def duration_ms(milliseconds_taken: float) -> str:
    """Return a duration to the millisecond if it is short, else in its two largest units."""
    if milliseconds_taken < 1_000:
        return f"{milliseconds_taken:.0f} ms"
    seconds = milliseconds_taken / 1000
    return f"{seconds:.1f} s" if seconds < _MINUTE else span(seconds)


def ago(at: str, now_ms: int) -> str:
    """Return a time relative to now."""
    seconds = (now_ms - milliseconds(at)) / 1000
    if seconds < 0:
        return f"in {span(-seconds)}"
    return "just now" if seconds < 5 else f"{span(seconds)} ago"


def precise(at: str | None) -> str | None:
    """Return a time to the millisecond; schedules give theirs to the second."""
    return None if at is None else instant(round(datetime.fromisoformat(at).timestamp() * 1000))


def stamp(at: str, zone: str = UTC) -> str:
    """Return a time to the second, in a time zone."""
    if zone == UTC:
        return f"{at[:10]} {at[11:19]} UTC"
    return f"{_local(at, zone):%Y-%m-%d %H:%M:%S %Z}"


def clock_time(at: str, now: str, zone: str = UTC) -> str:
    """Return a short time in a time zone: without the date if it is today."""
    if zone == UTC:
        return f"{at[11:16]} UTC" if at[:10] == now[:10] else f"{at[:10]} {at[11:16]} UTC"
    moment = _local(at, zone)
    is_today = moment.date() == _local(now, zone).date()
    return f"{moment:%H:%M %Z}" if is_today else f"{moment:%Y-%m-%d %H:%M %Z}"


def _local(at: str, zone: str) -> datetime:
    moment = datetime.fromtimestamp(milliseconds(at) / 1000, dt.UTC)
    try:
        return moment.astimezone(zone_of(zone))
    except UserError:
        # A time zone unknown on this machine must not fail the page.
        return moment


def number(value: float) -> str:
    """Return a number without insignificant digits."""
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def compact(value: Any, chars_max: int = 200) -> str:  # noqa: ANN401 - any JSON value
    """Return a value as JSON on one line, truncated; of an encrypted value, the id of its key."""
    text = json.dumps(readable(value), ensure_ascii=False)
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"


def command(*words: str) -> str:
    """Return a headgate command, quoted for a shell."""
    return shlex.join(("headgate", *words))


def headline(title: str) -> str:
    """Return the title of an incident in words, if it was made from signals; else as it was given."""
    made = _MADE_TITLE.fullmatch(title)
    if made is None:
        return title
    code, _, field = made["first"].partition(":")
    if code in _PHRASES:
        phrase = _PHRASES[code].format(field)
    elif field:
        phrase = f"{code.lower().replace('_', ' ')} fails" + ("" if field == "dataset" else f" on {field}")
    else:
        phrase = f"{made['types']} is {code}"
    return f"{short_urn(made['urn'])}: {phrase}{made['more'] or ''}"


def short_urn(urn: str) -> str:
    """Return a dataset URN without the parts that all of them share."""
    return urn.removeprefix("urn:dp:")


def options(given: Iterable[tuple[str, Any]]) -> list[str]:
    """Return command options that have a value; multiple values repeat the option."""
    words: list[str] = []
    for name, value in given:
        for each in value if isinstance(value, list) else [value]:
            words += [name, str(each)] if each else []
    return words


def state_label(state: str) -> str:
    """Return the label of a pipeline state."""
    return "healthy" if state == PipelineState.HEALTHY else str(state)


def sla_text(sla: SlaStatus) -> str:
    """Return the margin of a deadline in words."""
    margin = span(abs(sla.margin_seconds))
    match sla.state:
        case SlaState.MET:
            return f"{margin} before the deadline"
        case SlaState.BREACHED:
            return f"{margin} late" if sla.is_done else f"{margin} overdue"
        case _:
            return f"{margin} left"
