"""HTTP handlers: an HTTP API of API Gateway invokes `api` and another, which verifies IAM, `internal_api`."""

from __future__ import annotations

from headgate.aws.http.containers import api_container, internal_api_container
from headgate.aws.http.iam_callers import iam_caller
from headgate.aws.http.invoker import refusal
from headgate.aws.invocation import Context, Event, handle
from headgate.errors import UnauthenticatedError


def api(event: Event, context: Context) -> Event:
    """Answer a request with REST, GraphQL, pages or a route of the app."""
    return handle("api", context, lambda: _answer(event, context))


def _answer(event: Event, context: Context) -> Event:
    container = api_container()
    with container.metrics.of("api"):
        response = container.invoke(event, left_seconds=_left_seconds(context))
    container.application.flush()
    return response


def internal_api(event: Event, context: Context) -> Event:
    """Answer a request to the durable API, of the IAM identity that signed it."""

    def answer() -> Event:
        try:
            principal = iam_caller(event)
        except UnauthenticatedError as exc:
            return refusal(exc)
        container = internal_api_container()
        with container.metrics.of("internal-api"):
            return container.invoke(event, left_seconds=_left_seconds(context), principal=principal)

    return handle("internal-api", context, answer)


def _left_seconds(context: Context) -> float:
    return context.get_remaining_time_in_millis() / 1000
