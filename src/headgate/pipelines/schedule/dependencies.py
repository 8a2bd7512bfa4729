"""Dependencies between pipelines, and on datasets and event types; detection of dependency cycles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from headgate.pipelines.definition.model import Pipeline, Rule, Upstream
from headgate.pipelines.schedule.related_periods import PREVIOUS
from headgate.pipelines.schedule.timetables import schedule_id_of


def dataset_source(dataset_urn: str) -> str:
    """Return the index name of pipelines that wait for a dataset. It is never a pipeline id."""
    return f"dataset:{dataset_urn}"


def event_source(event_type: str) -> str:
    """Return the index name of pipelines that an event type starts. It is never a pipeline id."""
    return f"event:{event_type}"


_JOB_LOG: Final = "builtin:upstream-job-log"
# Sensor keys and evaluators that name a probe. They are index names as they are, and never pipeline ids.
PROBE: Final = "probe:"


class Dependency(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pipeline whose runs this one waits for (`starts` is false) or is started by."""

    upstream: Upstream
    # The schedule that depends; empty: all of them.
    schedule: str = ""
    starts: bool = False


def upstreams_of(pipeline: Pipeline) -> list[Dependency]:
    """Return all upstream pipelines: of schedules, readiness rules and traits."""
    dependencies = [
        Dependency(upstream=upstream, schedule=schedule_id_of(schedule), starts=True)
        for schedule in pipeline.schedules
        for upstream in schedule.upstream
    ]
    rules = _walked(pipeline.readiness.rules)
    dependencies += [Dependency(upstream=rule.upstream) for rule in rules if rule.upstream is not None]
    for trait in pipeline.readiness.traits.values():
        named = trait.config.get("upstreamPipeline")
        if trait.evaluator == _JOB_LOG and isinstance(named, str) and named:
            schedule = trait.config.get("upstreamSchedule")
            known = schedule if isinstance(schedule, str) else None
            dependencies.append(Dependency(upstream=Upstream(pipeline=named, schedule=known)))
    return list(dict.fromkeys(dependencies))


def datasets_of(pipeline: Pipeline) -> tuple[str, ...]:
    """Return the datasets whose health a pipeline waits for."""
    named = (rule.dataset for rule in _walked(pipeline.readiness.rules) if rule.dataset is not None)
    return tuple(dict.fromkeys(named))


def probes_of(pipeline: Pipeline) -> tuple[str, ...]:
    """Return the probes that a pipeline reads, with their prefix: in rules, sensor triggers and traits."""
    rules = list(_walked((*pipeline.readiness.rules, *pipeline.post_run.rules)))
    keys = [rule.key for rule in rules if rule.key is not None]
    keys += [rule.other.rpartition(".")[0] for rule in rules if rule.other is not None]
    keys += [schedule.sensor.key for schedule in pipeline.schedules if schedule.sensor is not None]
    keys += [trait.evaluator for trait in pipeline.readiness.traits.values()]
    return tuple(dict.fromkeys(key for key in keys if key.startswith(PROBE)))


def sources_of(pipeline: Pipeline) -> list[str]:
    """Return the datasets, event types and probes that a pipeline depends on, by index name."""
    datasets = map(dataset_source, datasets_of(pipeline))
    events = (event_source(schedule.event) for schedule in pipeline.schedules if schedule.event is not None)
    return list(dict.fromkeys((*datasets, *events, *probes_of(pipeline))))


def cycles(pipelines: Iterable[Pipeline]) -> list[tuple[str, ...]]:
    """Return each dependency cycle once, from its first id on.

    Waiting for the own previous period is no cycle, because it has ended. Being started by it is one.
    """
    edges = {pipeline.id: _edges(pipeline) for pipeline in pipelines}
    unique: dict[tuple[str, ...], None] = {}
    done: set[str] = set()
    for start in sorted(edges):
        for cycle in _cycles_from(start, edges, done):
            unique.setdefault(cycle)
    return sorted(unique)


def _edges(pipeline: Pipeline) -> list[str]:
    wanted = (each for each in upstreams_of(pipeline) if each.starts or each.upstream.periods != PREVIOUS)
    return sorted({each.upstream.pipeline for each in wanted})


def _cycles_from(start: str, edges: dict[str, list[str]], done: set[str]) -> Iterator[tuple[str, ...]]:
    """Walk depth-first without recursion: a chain of pipelines may exceed Python's stack."""
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
            yield _from_smallest(trail[trail.index(following) :])
        elif following not in done:
            trail.append(following)
            on_trail.add(following)
            pending.append(iter(edges.get(following, ())))


def _from_smallest(circle: Sequence[str]) -> tuple[str, ...]:
    first = circle.index(min(circle))
    return (*circle[first:], *circle[:first])


def _walked(rules: Iterable[Rule]) -> Iterator[Rule]:
    """Yield rules with all nested ones."""
    for rule in rules:
        yield rule
        nested = rule.n_of.rules if rule.n_of is not None else ()
        turned = (rule.not_,) if rule.not_ is not None else ()
        yield from _walked((*(rule.all or ()), *(rule.any or ()), *nested, *turned))
