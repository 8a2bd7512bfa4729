"""HTTP evaluators: services that are called by POST, at addresses that are resolved once and checked.

Redirects are not followed, so that none leads to a forbidden address. A status other than 2xx is an error with the
category of the status.
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
from headgate.triggers.http.client import ANSWER_BYTES_MAX, HttpRequest, HttpResponse, TriggerHttpClient, json_headers

SECONDS_MAX: Final = 60.0
# Before the second, third and fourth attempt.
PAUSES_SECONDS: Final = (0.5, 1.0, 2.0)
# Statuses that are retried.
RETRIED: Final = frozenset({429, 502, 503, 504})


class HttpEvaluator:
    """Calls services. The time-out of the trait, at most a minute, covers all attempts."""

    def __init__(
        self,
        clock: Clock,
        destinations: Destinations,
        *,
        resolve: Resolve = system_resolve,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._clock = clock
        self._outbound = TriggerHttpClient(clock, destinations, resolve=resolve, tls=tls)

    def evaluate(self, question: Question) -> Answer:
        """Call the service at the reference, and return its answer."""
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

    def _asked(self, question: Question, seconds: float) -> HttpResponse:
        request = HttpRequest(
            method="POST",
            url=question.reference,
            headers=json_headers({}),
            body=question.body(),
            timeout_seconds=seconds,
        )
        return self._outbound.ask(request, tries=1)


def _judged(response: HttpResponse) -> Answer:
    if not response.is_good:
        is_passing = response.status == 429 or response.status >= 500
        category = FailureCategory.TRANSIENT if is_passing else FailureCategory.PERMANENT
        return failure(category, str(response.refusal()))
    # The outbound client stops reading at this size.
    if len(response.body) >= ANSWER_BYTES_MAX:
        return too_large(ANSWER_BYTES_MAX)
    return read_answer(response.body)
