"""Evaluators that are services: asked by POST, at addresses that were looked up once and checked.

Redirects are not followed, so that none leads where the first address could not have. An answer other than 2xx says
nothing about the trait: it is an error, with the category that the status has.
"""

from __future__ import annotations

import ssl
from typing import Final

from headgate.clock import Clock
from headgate.durable.bus.egress_policy import Destinations, Resolve, system_resolve
from headgate.pipelines.enums import FailureCategory
from headgate.pipelines.traits.protocol import Answer, Question, failure, of_failure, read_answer, timed_out, too_large
from headgate.triggers.contract import FailureCategory as TriggerCategory
from headgate.triggers.contract import TriggerFailedError
from headgate.triggers.http.client import ANSWER_BYTES_MAX, Outbound, Request, json_headers
from headgate.triggers.http.client import Answer as Response

SECONDS_MAX: Final = 60.0
# Before the second, third and fourth time.
PAUSES_SECONDS: Final = (0.5, 1.0, 2.0)
# Statuses after which the same question may well be answered a moment later.
RETRIED: Final = frozenset({429, 502, 503, 504})


class HttpEvaluator:
    """Asks services. The trait's time-out, and never more than a minute, is for all tries together."""

    def __init__(
        self,
        clock: Clock,
        destinations: Destinations,
        *,
        resolve: Resolve = system_resolve,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._clock = clock
        self._outbound = Outbound(clock, destinations, resolve=resolve, tls=tls)

    def evaluate(self, question: Question) -> Answer:
        """Ask the service that the reference is the address of, and return what it answers."""
        seconds = min(question.timeout_seconds, SECONDS_MAX)
        ends_at = self._clock.monotonic() + seconds
        pauses = list(PAUSES_SECONDS)
        while True:
            try:
                response = self._asked(question, ends_at - self._clock.monotonic())
            except TriggerFailedError as exc:
                return timed_out(seconds) if exc.category is TriggerCategory.TIMEOUT else of_failure(exc)
            is_worth_it = response.status in RETRIED and pauses
            if not is_worth_it or self._clock.monotonic() + pauses[0] >= ends_at:
                return _judged(response)
            self._clock.sleep(pauses.pop(0))

    def _asked(self, question: Question, seconds: float) -> Response:
        request = Request(
            method="POST",
            url=question.reference,
            headers=json_headers({}),
            body=question.body(),
            timeout_seconds=seconds,
        )
        return self._outbound.ask(request, tries=1)


def _judged(response: Response) -> Answer:
    if not response.is_good:
        is_passing = response.status == 429 or response.status >= 500
        category = FailureCategory.TRANSIENT if is_passing else FailureCategory.PERMANENT
        return failure(category, str(response.refusal()))
    # Outbound requests read no further than this.
    if len(response.body) >= ANSWER_BYTES_MAX:
        return too_large(ANSWER_BYTES_MAX)
    return read_answer(response.body)
