"""Evaluator protocol: the question about a trait, and the answer.

A failed evaluation is ERROR with a category, never "not ready": only FAIL without a category means that the evaluator
works and the trait is not met.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct

from headgate.errors import HeadgateError, TransientError
from headgate.pipelines.definition.model import Json
from headgate.pipelines.enums import FailureCategory, TraitStatus
from headgate.triggers.contract import TriggerFailedError, shown

# Larger answers are rejected and not read to the end.
ANSWER_BYTES_MAX: Final = 1_048_576
TIMED_OUT: Final = "EVALUATOR_TIMEOUT"
_STATUSES: Final = ", ".join(TraitStatus)
_CATEGORIES: Final = ", ".join(FailureCategory)


class Question(Struct, frozen=True, kw_only=True):
    """The question for an evaluator. `config` is a copy of the trait's, with the run's date and schedule."""

    reference: str
    pipeline_id: str
    trait_type: str
    config: Mapping[str, Json]
    now: datetime
    timeout_seconds: float
    schedule_id: str = ""
    date: str = ""
    run_id: str = ""

    @property
    def now_ms(self) -> int:
        """The time of the evaluation."""
        return int(self.now.timestamp() * 1000)

    def body(self) -> bytes:
        """Encode the question for an external evaluator."""
        return msgspec.json.encode(
            {"pipelineId": self.pipeline_id, "traitType": self.trait_type, "config": self.config}
        )


class Answer(Struct, frozen=True, kw_only=True):
    """The result of an evaluation, or its error."""

    status: TraitStatus
    reason: str = ""
    value: Json = None
    category: FailureCategory | None = None

    @property
    def is_setback(self) -> bool:
        """Whether it counts against the evaluator's breaker.

        Permanent failures and expired results do not.
        """
        if self.status not in (TraitStatus.FAIL, TraitStatus.ERROR) or self.category is None:
            return False
        return self.category is not FailureCategory.PERMANENT


class Evaluator(Protocol):
    """One kind of evaluator. Thread-safe."""

    def evaluate(self, question: Question) -> Answer:
        """Evaluate a trait. May raise a `HeadgateError`, which `of_failure` turns into an answer."""


class _RawAnswer(Struct):
    """An answer of an external evaluator. Further fields are ignored."""

    status: str
    value: Any = None
    reason: str | None = None
    failureCategory: str | None = None


_decode: Final = msgspec.json.Decoder(_RawAnswer).decode


def passed(reason: str, value: Json = None) -> Answer:
    """Return that the trait is met."""
    return Answer(status=TraitStatus.PASS, reason=reason, value=value)


def not_met(reason: str, value: Json = None) -> Answer:
    """Return that the trait is not met."""
    return Answer(status=TraitStatus.FAIL, reason=reason, value=value)


def failure(category: FailureCategory, reason: str) -> Answer:
    """Return that the evaluation failed."""
    return Answer(status=TraitStatus.ERROR, category=category, reason=shown(reason))


def timed_out(seconds: float) -> Answer:
    """Return that the evaluator did not answer in time."""
    return Answer(
        status=TraitStatus.FAIL,
        category=FailureCategory.TIMEOUT,
        reason=f"{TIMED_OUT}: no answer within {seconds:g} s",
    )


def too_large(bytes_max: int = ANSWER_BYTES_MAX) -> Answer:
    """Return that the answer was too large."""
    return failure(
        FailureCategory.PERMANENT,
        f"it answered with more than {bytes_max} bytes; an answer is status, value and reason",
    )


def read_answer(body: bytes) -> Answer:
    """Decode the answer of an evaluator. Anything else is a permanent error."""
    try:
        raw = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        began = shown(body[:80].decode(errors="replace")) or "nothing"
        return failure(FailureCategory.PERMANENT, f"its answer is not the JSON of one: {exc}; it began with {began}")
    status = raw.status.strip().upper()
    if status not in _STATUSES.split(", "):
        return failure(FailureCategory.PERMANENT, f"its status {raw.status[:40]!r} is none of {_STATUSES}")
    return _answer_of(TraitStatus(status), raw)


def _answer_of(status: TraitStatus, raw: _RawAnswer) -> Answer:
    reason = shown(raw.reason or "")
    if status in (TraitStatus.PASS, TraitStatus.STALE):
        return Answer(status=status, reason=reason, value=raw.value)
    name = (raw.failureCategory or "").strip().upper()
    if name and name not in _CATEGORIES.split(", "):
        return failure(FailureCategory.PERMANENT, f"its failureCategory {name[:40]!r} is none of {_CATEGORIES}")
    category = FailureCategory(name) if name else None
    if status is TraitStatus.ERROR and category is None:
        # An error without a category counts as transient.
        category = FailureCategory.TRANSIENT
    return Answer(status=status, reason=reason, value=raw.value, category=category)


def of_failure(error: BaseException) -> Answer:
    """Convert an exception of an evaluator to an answer."""
    match error:
        case TriggerFailedError():
            category = FailureCategory(error.category.value)
        case TransientError():
            category = FailureCategory.TRANSIENT
        case HeadgateError():
            category = FailureCategory.PERMANENT
        case _:
            return failure(FailureCategory.EVALUATOR_CRASH, f"{type(error).__name__}: {error}")
    return failure(category, str(error))
