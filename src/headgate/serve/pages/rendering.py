"""Page templates: the Jinja environment with the filters of pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from headgate.health.model.timestamps import instant, milliseconds
from headgate.pipelines.overview.status import PipelineStatus
from headgate.serve.pages import labels
from headgate.serve.pages.api_calls import segment
from headgate.serve.pages.pipelines.period_grid import PeriodStrip, period_strip
from headgate.serve.pages.prose import brief, prose
from headgate.tracebacks import own_frames


def environment(asset: Callable[[str], str]) -> Environment:
    """Return the template environment. `asset` returns the URL of an asset."""
    templates = Environment(
        loader=PackageLoader("headgate.serve.pages", "templates"),
        # All shown values come from users.
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    templates.filters |= {
        "ago": _ago,
        "clock_time": _clock_time,
        "stamp": labels.stamp,
        "instant": instant,
        "precise": labels.precise,
        "number": labels.number,
        "span": labels.span,
        "compact": labels.compact,
        "duration_ms": labels.duration_ms,
        "lasted": lambda pair: labels.duration_ms(milliseconds(pair[1]) - milliseconds(pair[0])),
        "segment": segment,
        "prose": _prose,
        "brief": brief,
        "own_frames": own_frames,
        "causes": _causes,
        "headline": labels.headline,
        "state_label": labels.state_label,
        "sla_text": labels.sla_text,
        "period_strip": _period_strip,
        "asset": asset,
        "json": lambda value: msgspec.json.encode(value).decode(),
        "indented": lambda value: msgspec.json.format(msgspec.json.encode(value)).decode(),
        "with_token": _with_token,
    }
    return templates


@pass_context
def _ago(context: Context, at: str) -> str:
    return labels.ago(at, context["now_ms"])


@pass_context
def _prose(context: Context, text: str | None) -> Markup:
    return prose(text or "", context["now"])


@pass_context
def _period_strip(context: Context, status: PipelineStatus) -> PeriodStrip:
    return period_strip(status, context["now_ms"])


@pass_context
def _clock_time(context: Context, at: str, zone: str = labels.UTC) -> str:
    return labels.clock_time(at, context["now"], zone)


def _with_token(filters: Mapping[str, Any], token: str) -> str:
    """Return the query string of the next page."""
    return urlencode({**{name: value for name, value in filters.items() if value}, "page_token": token}, doseq=True)


def _causes(error: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the causes of an error that have a traceback, the nearest first."""
    causes = []
    cause = error["cause"]
    while cause is not None:
        if cause["trace"]:
            causes.append(cause)
        cause = cause["cause"]
    return causes
