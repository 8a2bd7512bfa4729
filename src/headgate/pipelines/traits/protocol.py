"""The protocol of evaluators: what one is asked about a trait, and what its answer comes to.

A failure to find out is ERROR with a category, and never mistaken for "not ready": only FAIL without a category says
that the evaluator works and the trait does not hold.
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

# An answer is a few facts. What is longer is a mistake, and is not read to its end.
ANSWER_BYTES_MAX: Final = 1_048_576
TIMED_OUT: Final = "EVALUATOR_TIMEOUT"
_STATUSES: Final = ", ".join(TraitStatus)
_CATEGORIES: Final = ", ".join(FailureCategory)


class Question(Struct, frozen=True, kw_only=True):
    """What an evaluator is asked. `config` is a copy of the trait's, with the run's date and schedule in it."""

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
        """The one moment that everything in an evaluation goes by."""
        return int(self.now.timestamp() * 1000)

    def body(self) -> bytes:
        """Return the question as it is sent to what is not part of this process."""
        return msgspec.json.encode(
            {"pipelineId": self.pipeline_id, "traitType": self.trait_type, "config": self.config}
        )


class Answer(Struct, frozen=True, kw_only=True):
    """What an evaluator found, or why it did not."""

    status: TraitStatus
    reason: str = ""
    value: Json = None
    category: FailureCategory | None = None

    @property
    def is_setback(self) -> bool:
        """Whether it speaks against the evaluator, so that it may be left alone for a while.

        What will be the same next time, and what is merely out of date, does not.
        """
        if self.status not in (TraitStatus.FAIL, TraitStatus.ERROR) or self.category is None:
            return False
        return self.category is not FailureCategory.PERMANENT


class Evaluator(Protocol):
    """One kind of evaluator. Safe to use from many threads."""

    def evaluate(self, question: Question) -> Answer:
        """Return what was found. May raise a `HeadgateError`, which `of_failure` turns into an answer."""


class _RawAnswer(Struct):
    """An answer as it is written by others. What it has besides is left alone."""

    status: str
    value: Any = None
    reason: str | None = None
    failureCategory: str | None = None


_decode: Final = msgspec.json.Decoder(_RawAnswer).decode


def passed(reason: str, value: Json = None) -> Answer:
    """Return that the trait holds."""
    return Answer(status=TraitStatus.PASS, reason=reason, value=value)


def not_met(reason: str, value: Json = None) -> Answer:
    """Return that the trait does not hold, as far as an evaluator that works can tell."""
    return Answer(status=TraitStatus.FAIL, reason=reason, value=value)


def failure(category: FailureCategory, reason: str) -> Answer:
    """Return that it could not be found out."""
    return Answer(status=TraitStatus.ERROR, category=category, reason=shown(reason))


def timed_out(seconds: float) -> Answer:
    """Return that the evaluator did not answer in time: the same for every kind of evaluator."""
    return Answer(
        status=TraitStatus.FAIL,
        category=FailureCategory.TIMEOUT,
        reason=f"{TIMED_OUT}: no answer within {seconds:g} s",
    )


def too_large(bytes_max: int = ANSWER_BYTES_MAX) -> Answer:
    """Return that the evaluator said more than an answer has."""
    return failure(
        FailureCategory.PERMANENT,
        f"it answered with more than {bytes_max} bytes; an answer is status, value and reason",
    )


def read_answer(said: bytes) -> Answer:
    """Return what an evaluator said. What is not an answer is an error that trying again does not mend."""
    try:
        given = _decode(said)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        began = shown(said[:80].decode(errors="replace")) or "nothing"
        return failure(FailureCategory.PERMANENT, f"its answer is not the JSON of one: {exc}; it began with {began}")
    status = given.status.strip().upper()
    if status not in _STATUSES.split(", "):
        return failure(FailureCategory.PERMANENT, f"its status {given.status[:40]!r} is none of {_STATUSES}")
    return _judged(TraitStatus(status), given)


def _judged(status: TraitStatus, given: _RawAnswer) -> Answer:
    reason = shown(given.reason or "")
    if status in (TraitStatus.PASS, TraitStatus.STALE):
        return Answer(status=status, reason=reason, value=given.value)
    said = (given.failureCategory or "").strip().upper()
    if said and said not in _CATEGORIES.split(", "):
        return failure(FailureCategory.PERMANENT, f"its failureCategory {said[:40]!r} is none of {_CATEGORIES}")
    category = FailureCategory(said) if said else None
    if status is TraitStatus.ERROR and category is None:
        # Nothing says that it will be the same next time.
        category = FailureCategory.TRANSIENT
    return Answer(status=status, reason=reason, value=given.value, category=category)


def of_failure(error: BaseException) -> Answer:
    """Return what an error comes to that an evaluator raised."""
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
