"""Metric series: a Prometheus series as it is exported and documented."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Series(NamedTuple):
    """A series as it is documented. The name of a counter ends in `_total` when it is scraped."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str
