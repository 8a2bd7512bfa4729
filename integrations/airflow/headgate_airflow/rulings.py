"""Gate rulings: the question to the gate, its answer, and whether the answer holds a task. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final


class Ruling(StrEnum):
    """The ruling on a dataset, from best to worst."""

    ALLOW = "allow"
    WARN = "warn"
    UNKNOWN = "unknown"
    BLOCK = "block"


class HoldOn(StrEnum):
    """The mildest ruling that holds a task. A dataset that is not registered is UNKNOWN."""

    WARN = "warn"
    UNKNOWN = "unknown"
    BLOCK = "block"


_RANK: Final = {ruling: rank for rank, ruling in enumerate(Ruling)}


@dataclass(frozen=True)
class Question:
    """A question to the gate. `principal` is the consumer; None: the principal of the API key."""

    datasets: tuple[str, ...]
    verb: str = "read"
    principal: str | None = None
    on_unknown: str = "warn"
    max_age: str | None = None

    def __post_init__(self) -> None:
        if not self.datasets:
            raise ValueError("datasets: name at least one")

    def body(self) -> dict[str, Any]:
        """Return the body of the request."""
        members = {
            "datasets": list(self.datasets),
            "verb": self.verb,
            "principal": self.principal,
            "on_unknown": self.on_unknown,
            "max_age": self.max_age,
        }
        return {name: value for name, value in members.items() if value is not None}


@dataclass(frozen=True)
class DatasetRuling:
    """The ruling on one dataset. `until` is when it changes by itself, if that is known."""

    urn: str
    ruling: Ruling
    reasons: tuple[str, ...] = ()
    since: str | None = None
    until: str | None = None

    def lines(self) -> list[str]:
        """Return the ruling and its reasons as lines of a log."""
        since = f", since {self.since}" if self.since else ""
        until = f", until {self.until}" if self.until else ""
        return [f"{self.ruling.upper()} {self.urn}{since}{until}", *(f"  {reason}" for reason in self.reasons)]


@dataclass(frozen=True)
class GateAnswer:
    """The answer of the gate: the worst of its rulings decides."""

    decision: Ruling
    datasets: tuple[DatasetRuling, ...]
    overridable_by: tuple[str, ...] = ()

    def holds(self, hold_on: HoldOn) -> bool:
        """Whether the answer holds a task."""
        return _RANK[self.decision] >= _RANK[Ruling(hold_on.value)]

    def explanation(self, hold_on: HoldOn) -> str:
        """Return why a task is held, until when, and who may override it."""
        limit = _RANK[Ruling(hold_on.value)]
        held = [each for each in self.datasets if _RANK[each.ruling] >= limit]
        lines = [line for each in held for line in each.lines()]
        if held and not any(each.until for each in held):
            lines.append("It ends when the dataset is healthy again.")
        if self.overridable_by:
            roles = " or ".join(self.overridable_by)
            lines.append(f"Override ({roles}): headgate gate override URN --for-time 2h --reason ...")
        return "\n".join(lines)

    def xcom(self) -> dict[str, Any]:
        """Return the answer as JSON, for tasks downstream."""
        rulings = {each.urn: each.ruling.value for each in self.datasets}
        return {"decision": self.decision.value, "datasets": rulings}


def answer_of(found: Mapping[str, Any]) -> GateAnswer:
    """Return the answer of a response. Raises `ValueError` if it is not one."""
    try:
        return GateAnswer(
            decision=Ruling(found["decision"]),
            datasets=tuple(_dataset(each) for each in found["datasets"]),
            overridable_by=tuple(found.get("overridable_by", ())),
        )
    except (KeyError, TypeError) as exc:
        raise ValueError(f"the response is no answer of a gate: {exc!r}") from exc


def _dataset(found: Mapping[str, Any]) -> DatasetRuling:
    reasons: Sequence[Mapping[str, Any]] = found.get("reasons", ())
    return DatasetRuling(
        urn=found["dataset_urn"],
        ruling=Ruling(found["ruling"]),
        reasons=tuple(f"{each['ruling']}: {each['message']}" for each in reasons),
        since=found.get("since"),
        until=found.get("until"),
    )
