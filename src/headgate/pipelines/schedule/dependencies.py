"""Dependencies between pipelines: who waits for whom, who is started by whom, and whether that goes in a circle.

Sources: what pipelines depend on that is no pipeline, by the names under which those are listed who do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from headgate.pipelines.definition.model import Pipeline, Rule, Upstream
from headgate.pipelines.schedule.related_periods import PREVIOUS
from headgate.pipelines.schedule.timetables import schedule_id_of


def dataset_source(dataset_urn: str) -> str:
    """Return under what those are listed who wait for the health of a dataset. No pipeline has an id like it."""
    return f"dataset:{dataset_urn}"


def event_source(event_type: str) -> str:
    """Return under what those are listed who are begun by a type of events. No pipeline has an id like it."""
    return f"event:{event_type}"


_JOB_LOG: Final = "builtin:upstream-job-log"


class Dependency(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run of another pipeline that this one waits for (`starts` is false) or is started by."""

    upstream: Upstream
    # Of the pipeline that depends; none where all of them do.
    schedule: str = ""
    starts: bool = False


def upstreams_of(pipeline: Pipeline) -> list[Dependency]:
    """Return everything that a pipeline depends on: schedules, rules of readiness, and traits that ask for a run."""
    found = [
        Dependency(upstream=upstream, schedule=schedule_id_of(schedule), starts=True)
        for schedule in pipeline.schedules
        for upstream in schedule.upstream
    ]
    found += [Dependency(upstream=upstream) for upstream in _of_rules(pipeline.readiness.rules)]
    for trait in pipeline.readiness.traits.values():
        named = trait.config.get("upstreamPipeline")
        if trait.evaluator == _JOB_LOG and isinstance(named, str) and named:
            schedule = trait.config.get("upstreamSchedule")
            known = schedule if isinstance(schedule, str) else None
            found.append(Dependency(upstream=Upstream(pipeline=named, schedule=known)))
    return list(dict.fromkeys(found))


def datasets_of(pipeline: Pipeline) -> tuple[str, ...]:
    """Return the datasets whose health a pipeline waits for."""
    named = (rule.dataset for rule in _walked(pipeline.readiness.rules) if rule.dataset is not None)
    return tuple(dict.fromkeys(named))


def sources_of(pipeline: Pipeline) -> list[str]:
    """Return what a pipeline waits for or is begun by that is no pipeline: datasets and types of events."""
    datasets = map(dataset_source, datasets_of(pipeline))
    events = (event_source(schedule.event) for schedule in pipeline.schedules if schedule.event is not None)
    return list(dict.fromkeys((*datasets, *events)))


def circles(pipelines: Iterable[Pipeline]) -> list[tuple[str, ...]]:
    """Return each circle of pipelines that wait for or start one another, once, from its first id on.

    To wait for the period before is no circle: it has been. To be started by it is one: it would never end.
    """
    edges = {pipeline.id: _edges(pipeline) for pipeline in pipelines}
    found: dict[tuple[str, ...], None] = {}
    done: set[str] = set()
    for start in sorted(edges):
        for circle in _circles_from(start, edges, done):
            found.setdefault(circle)
    return sorted(found)


def _edges(pipeline: Pipeline) -> list[str]:
    wanted = (each for each in upstreams_of(pipeline) if each.starts or each.upstream.periods != PREVIOUS)
    return sorted({each.upstream.pipeline for each in wanted})


def _circles_from(start: str, edges: dict[str, list[str]], done: set[str]) -> Iterator[tuple[str, ...]]:
    """Walk in depth without recursion: a chain of pipelines may be longer than Python's stack."""
    if start in done:
        return
    trail: list[str] = [start]
    on_trail = {start}
    pending: list[Iterator[str]] = [iter(edges.get(start, ()))]
    while pending:
        following = next(pending[-1], None)
        if following is None:
            pending.pop()
            left = trail.pop()
            on_trail.discard(left)
            done.add(left)
        elif following in on_trail:
            yield _turned(trail[trail.index(following) :])
        elif following not in done:
            trail.append(following)
            on_trail.add(following)
            pending.append(iter(edges.get(following, ())))


def _turned(circle: Sequence[str]) -> tuple[str, ...]:
    first = circle.index(min(circle))
    return (*circle[first:], *circle[:first])


def _of_rules(rules: Iterable[Rule]) -> Iterator[Upstream]:
    return (rule.upstream for rule in _walked(rules) if rule.upstream is not None)


def _walked(rules: Iterable[Rule]) -> Iterator[Rule]:
    """Give rules, and all that they are made of."""
    for rule in rules:
        yield rule
        nested = rule.n_of.rules if rule.n_of is not None else ()
        turned = (rule.not_,) if rule.not_ is not None else ()
        yield from _walked((*(rule.all or ()), *(rule.any or ()), *nested, *turned))
