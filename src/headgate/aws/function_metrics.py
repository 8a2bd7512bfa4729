"""Function metrics: what an invocation has counted, written to the log of its function in the embedded metric format.

CloudWatch bills each custom metric, so that those of the state store are written only if the deployment asks for them.
That a scheduled function has completed is always written: an alarm tells if it has not for a while.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from headgate.clock import Clock
from headgate.embedded_metrics import (
    COMPLETED,
    FUNCTIONS_NAMESPACE,
    METRICS,
    NAMESPACE,
    CloudWatchMetric,
    EmbeddedMetrics,
    Source,
)

# Functions that a rule calls every few minutes.
SCHEDULED: Final = frozenset({"watchdog", "clockwork", "sweep", "fanout-sweep"})
_NAME: Final = "AWS_LAMBDA_FUNCTION_NAME"
_COMPLETED: Final = CloudWatchMetric(COMPLETED, "Count", (("function",),))


class FunctionMetrics:
    """The metrics of the functions of one container."""

    def __init__(self, environ: Mapping[str, str], clock: Clock, sources: Sequence[Source]) -> None:
        """Without sources, the deployment wants no metrics of the state store."""
        self._name = environ.get(_NAME, "")
        self._embedded = EmbeddedMetrics(sources, clock, _write)
        self.has_sources = bool(sources)

    @contextmanager
    def of(self, function: str) -> Iterator[None]:
        """Write the metrics of the invocation inside the block; if it succeeds, also that it has completed."""
        try:
            yield
        finally:
            self._embedded.flush()
        if function in SCHEDULED:
            labels = [("function", self._name or function)]
            self._embedded.put(FUNCTIONS_NAMESPACE, _COMPLETED, labels, [1.0])

    def gauge(self, series: str, label: str, values: Mapping[str, float]) -> None:
        """Write values of a gauge by the value of its label."""
        for name, value in values.items():
            self._embedded.put(NAMESPACE, METRICS[series], [(label, name)], [value])


def _write(line: str) -> None:
    # Lambda sends what is printed to the log; logs of Headgate are on standard error.
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
