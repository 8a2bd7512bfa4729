"""Related periods: the earlier periods and upstream periods that the rules of a run read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headgate.errors import UserError
from headgate.pipelines.definition.model import Pipeline, Upstream
from headgate.pipelines.schedule.periods import Periods, periods_inside, periods_of

SAME: Final = "same"
PREVIOUS: Final = "previous"
ALL: Final = "all"
CHOICES: Final = (SAME, PREVIOUS, ALL)


class RelatedPeriods:
    """Computes periods from definitions. `find` returns the definition of a pipeline, or None."""

    def __init__(self, find: Callable[[str], Pipeline | None]) -> None:
        self._find = find

    def earlier(self, pipeline: Pipeline, date: str, count: int) -> list[str]:
        """Return the `count` periods before `date`, latest first. Raises `UserError` if `date` is not a period."""
        periods = periods_of(pipeline)
        dates: list[str] = []
        for _ in range(count):
            date = periods.previous(date)
            dates.append(date)
        return dates

    def of_upstream(self, pipeline: Pipeline, upstream: Upstream, date: str) -> list[str]:
        """Return the periods of another pipeline that a run of `date` depends on.

        With periods of one kind it is the one of the same name, or the one before. Otherwise it is all that start in
        ours (or in the one before ours), or the one that contains our start. Raises `UserError` for an unknown
        pipeline or choice.
        """
        if upstream.periods not in CHOICES:
            raise UserError(f"upstream {upstream.pipeline}: periods {upstream.periods!r}; use {', '.join(CHOICES)}")
        definition = self._find(upstream.pipeline)
        if definition is None:
            raise UserError(f"upstream {upstream.pipeline}: no pipeline has this id; correct it, or define it")
        schedule = definition.schedule(upstream.schedule) if upstream.schedule is not None else None
        ours, theirs = periods_of(pipeline), periods_of(definition, schedule)
        wanted = ours.previous(date) if upstream.periods == PREVIOUS else ours.check(date)
        if _are_alike(ours, theirs) and upstream.periods != ALL:
            # By name, not by time: the third of March is the third of March in every zone.
            return [wanted]
        return periods_inside(ours, wanted, theirs)


def _are_alike(ours: Periods, theirs: Periods) -> bool:
    return ours.period is theirs.period and ours.every_seconds == theirs.every_seconds
