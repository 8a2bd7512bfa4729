"""Types of parameters that several parts of the API share: limits, cursors, ids, times and durations.

Most formats are only described for the OpenAPI document. The domain checks them, with an error that names the remedy.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

from msgspec import Meta, Struct, field

from headgate.durable.model.duration import SECONDS_MAX
from headgate.errors import InvalidPayloadError

LIMIT_MAX: Final = 1000


def described(pattern: str, **more: Any) -> Meta:  # noqa: ANN401 - JSON Schema keywords
    """Return the description of a text that matches a pattern as a whole."""
    return Meta(extra_json_schema={"pattern": f"^(?:{pattern})$", **more})


Name = Annotated[str, Meta(min_length=1, max_length=200)]
NonEmpty = Annotated[str, Meta(min_length=1)]
Tag = Annotated[str, described(r"[^:]+:[\s\S]*", examples=["tenant:acme"])]
Reason = Annotated[str, Meta(max_length=1000)]
Limit = Annotated[int, Meta(ge=1, le=LIMIT_MAX)]
Cursor = Annotated[str, Meta(min_length=1, description="The cursor of the page before.")]
PageToken = Annotated[str, Meta(description="The next_page_token of the page before; empty for the first page.")]
Moment = Annotated[datetime, Meta(tz=True, examples=["2026-03-03T06:00:00Z"])]
# A time in UTC or with an offset, from 1970 on.
Timestamp = Annotated[
    str,
    described(
        r"(19[7-9][0-9]|[2-8][0-9]{3})-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]"
        r"(:[0-5][0-9](\.[0-9]{1,6})?)?(Z|[+-](0[0-9]|1[0-3]):[0-5][0-9])",
        examples=["2026-01-15T10:00:00Z"],
    ),
]
_NUMBER: Final = r"[0-9]{1,9}(\.[0-9]{1,9})?"
_SHORT: Final = "".join(rf"({_NUMBER}{unit})?" for unit in ("w", "d", "h", "m", "s", "ms"))
_ISO: Final = rf"P({_NUMBER}W)?({_NUMBER}D)?(T(?=[0-9])({_NUMBER}H)?({_NUMBER}M)?({_NUMBER}S)?)?"
# Text such as 5m, or a number of seconds.
DurationText = Annotated[str, described(rf"(?=[0-9]){_SHORT}|{_NUMBER}|{_ISO}", examples=["5m", "1h30m", "PT5M"])]
# Text, or seconds.
Duration = DurationText | Annotated[float, Meta(ge=0, le=SECONDS_MAX)]

DATASET_URN: Final = r"urn:dp(:[A-Za-z0-9][A-Za-z0-9._~+@-]*){1,16}"
_URN: Final = {"maxLength": 512, "examples": ["urn:dp:payments:payment_processed:v1"]}
DatasetUrn = Annotated[str, described(DATASET_URN, **_URN)]
# Empty if another field has it.
OptionalUrn = Annotated[str, described(f"({DATASET_URN})?", maxLength=512)]
ColumnUrn = Annotated[str, described(rf"urn:col:{DATASET_URN}:[A-Za-z0-9_$][^\s:#\x00-\x1f\x7f]*", maxLength=512)]
MachineName = Annotated[str, described(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}")]
ScheduleId = Annotated[str, described(r"[A-Za-z0-9][A-Za-z0-9._:@=+-]{0,127}")]
ExecutionId = Annotated[str, described(r"[A-Za-z0-9][A-Za-z0-9._:@/=+~-]{0,199}")]
# Without a part between slashes that is empty, `.` or `..`.
NewExecutionId = Annotated[str, described(r"(?!.*/\.{0,2}(?:/|$))[A-Za-z0-9][A-Za-z0-9._:@/=+-]{0,199}")]
TraitType = Annotated[str, described(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")]
ChunkId = Annotated[str, described(r"(chunk|slow)-[0-9]{7,}", examples=["chunk-0000500"])]
SpecId = Annotated[
    str,
    described(
        r"lspec:[^\s#\x00-\x1f\x7f]+:[A-Za-z][A-Za-z0-9_.-]{0,31}:[A-Za-z0-9_.+~@/-]{1,128}",
        maxLength=300,
        examples=["lspec:orders:git:9f31c2d"],
    ),
]
_VISIBLE: Final = r"[^*\s\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
_EVENT_TYPE: Final = rf"{_VISIBLE}(({_VISIBLE}| ){{0,252}}{_VISIBLE})?"
EventType = Annotated[str, described(_EVENT_TYPE, examples=["order.created"])]
# Of stored events; a type, or the start of types with a star at the end.
EventPattern = Annotated[str, described(rf"({_EVENT_TYPE})?\*|{_EVENT_TYPE}", examples=["order.*"])]
EventId = Annotated[str, described(r"(evt_[0-7][0-9A-HJKMNP-TV-Z]{25})?")]
ReplayId = Annotated[str, described(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")]
SignalType = Annotated[str, described(r" *[A-Za-z][A-Za-z0-9_ -]{0,63}", examples=["FRESHNESS"])]
ProducerId = Annotated[str, described(r"[^\s#\x00-\x1f\x7f]+", maxLength=512, examples=["job:orders-landing"])]
# Resolution rules are stored by it, and `#` separates the parts of a key.
TopicPattern = Annotated[str, described(r"[^#]+")]
# An id that ends in a ULID.
UlidId = Annotated[str, described(r"[\s\S]*[0-7][0-9A-HJKMNP-TV-Z]{25}")]


class PageQuery(Struct, forbid_unknown_fields=True):
    """The page to return."""

    limit: Limit = 100
    cursor: Cursor | None = None


SignedToken = Annotated[str, Meta(min_length=1, max_length=4000)]


class TokenBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """A body with the token of an activity or a task: `token`, or `taskToken` as Step Functions names it."""

    token: SignedToken | None = None
    task_token: SignedToken | None = field(default=None, name="taskToken")

    def signed_token(self) -> str:
        """Return the token. Raises `InvalidPayloadError` if there is none, or if there are two."""
        found = {each for each in (self.token, self.task_token) if each is not None}
        if len(found) != 1:
            fact = "the field is missing" if not found else "it differs from taskToken, which is the same field"
            raise InvalidPayloadError(f"token: {fact}; send the token of the activity or task as token")
        return found.pop()
