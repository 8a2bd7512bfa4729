"""HTTP probes: a GET request through the guarded client, and one value of the JSON answer by JSONPath."""

from __future__ import annotations

from typing import Final

import msgspec

from headgate.errors import DefinitionError
from headgate.pipelines.definition.model import Json
from headgate.pipelines.enums import FailureCategory
from headgate.pipelines.probes.errors import ProbeFailedError
from headgate.pipelines.probes.model import HttpProbe, Sighting
from headgate.triggers.contract import TriggerFailedError
from headgate.triggers.http.client import ANSWER_BYTES_MAX, HttpRequest, TriggerHttpClient

# Answers that mean "not there yet"; other errors say nothing about the data.
_NOT_READY: Final = frozenset({404, 409, 410, 425})
_TEXT_CHARS_MAX: Final = 1_000


def check_path(path: str) -> None:
    """Raise `DefinitionError` for a JSONPath that cannot be compiled."""
    # Imported on first use: a server without such a probe starts faster.
    from headgate.pipelines.probes.json_paths import compile_path

    compile_path(path)


class HttpLooks:
    """Runs HTTP probes. Safe to use from many threads."""

    def __init__(self, client: TriggerHttpClient) -> None:
        self._client = client

    def look(self, probe: HttpProbe, timeout_seconds: float) -> Sighting:
        """Return the status, and the value at the path. Raises `ProbeFailedError`."""
        request = HttpRequest(
            method="GET",
            url=probe.url,
            headers={"accept": "application/json", **probe.headers},
            timeout_seconds=timeout_seconds,
        )
        try:
            answer = self._client.ask(request, tries=1)
        except TriggerFailedError as exc:
            raise ProbeFailedError(str(exc), FailureCategory(exc.category.value)) from exc
        if not answer.is_good and answer.status not in _NOT_READY:
            refusal = answer.refusal()
            raise ProbeFailedError(str(refusal), FailureCategory(refusal.category.value))
        seen: dict[str, Json] = {"status": answer.status, "ok": answer.is_good}
        if probe.value is not None and answer.is_good:
            seen |= _value(answer.body, probe.value)
        return Sighting(seen)


def _value(body: bytes, path: str) -> dict[str, Json]:
    from headgate.pipelines.probes.json_paths import values_at

    if len(body) >= ANSWER_BYTES_MAX:
        raise ProbeFailedError(f"the answer has more than {ANSWER_BYTES_MAX} bytes", FailureCategory.PERMANENT)
    try:
        found = values_at(path, msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, DefinitionError) as exc:
        raise ProbeFailedError(f"the answer is not JSON that {path} applies to: {exc}") from exc
    if not found:
        return {}
    value = found[0]
    return {"value": value[:_TEXT_CHARS_MAX] if isinstance(value, str) else value}
