"""Templates of pages: how what a page shows becomes HTML."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context

from headgate.serve.pages import labels as page_words
from headgate.serve.pages.api_calls import segment


def environment(path: str, assets: Mapping[str, bytes]) -> Environment:
    """Return the templates of pages whose assets, as they are now, are served under a path."""
    made = Environment(
        loader=PackageLoader("headgate.serve.pages", "templates"),
        # Everything that is shown came from users.
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    versions = {name: hashlib.blake2b(content, digest_size=6).hexdigest() for name, content in assets.items()}
    made.filters |= {
        "ago": _ago,
        "clock_time": _clock_time,
        "stamp": page_words.stamp,
        "number": page_words.number,
        "span": page_words.span,
        "compact": page_words.compact,
        "segment": segment,
        "asset": lambda name: f"{path}/{name}?v={versions[name]}",
        "with_token": _with_token,
    }
    return made


@pass_context
def _ago(context: Context, at: str) -> str:
    return page_words.ago(at, context["now_ms"])


@pass_context
def _clock_time(context: Context, at: str) -> str:
    return page_words.clock_time(at, context["now"])


def _with_token(filters: Mapping[str, Any], token: str) -> str:
    """Return the query of the next page."""
    return urlencode({**{name: value for name, value in filters.items() if value}, "page_token": token}, doseq=True)
