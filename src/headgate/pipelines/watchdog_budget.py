"""The budget of a check: how long it may take, and what it came to."""

from __future__ import annotations

from collections import Counter
from typing import Final

from headgate.clock import Clock

_PROBLEMS_MAX: Final = 20


class Budget:
    """How long a check may go on. Asked between two things to do: what is left is for the next tick."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._ends_at = clock.monotonic() + seconds

    def is_over(self) -> bool:
        """Whether the time is up."""
        return self._clock.monotonic() >= self._ends_at


class Tally:
    """What checks found, by name, and what each could not look at."""

    def __init__(self) -> None:
        self.findings: Counter[str] = Counter()
        self.problems: dict[str, list[str]] = {}

    def found(self, check: str, *, count: int = 1) -> None:
        """Count a finding."""
        self.findings[check] += count

    def failed(self, check: str, what: str, error: BaseException) -> None:
        """Note that something could not be looked at. The rest is."""
        problems = self.problems.setdefault(check, [])
        if len(problems) < _PROBLEMS_MAX:
            problems.append(f"{what}: {type(error).__name__}: {error}")
