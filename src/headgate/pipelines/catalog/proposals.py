"""Proposals: checks definitions that a client sends against the stored ones, before they are stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from headgate.errors import CorruptionError
from headgate.pipelines.authoring.dataset_checks import Unregistered, unknown_datasets
from headgate.pipelines.authoring.loader import Known, Loaded, LoadedPipeline, load_text, unknown_upstreams
from headgate.pipelines.authoring.validation import TraitCheck
from headgate.pipelines.catalog.project import Project
from headgate.pipelines.catalog.store import PipelineStore
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.definition.problems import Problem
from headgate.pipelines.schedule.calendars import Calendars
from headgate.pipelines.schedule.dependencies import cycles, upstreams_of
from headgate.pipelines.traits.subprocess import PREFIX as COMMAND_EVALUATOR
from headgate.triggers.local.command import CommandKind
from headgate.triggers.registry import TriggerKinds

# Most pipelines that are searched for a dependency cycle.
_REACH_MAX: Final = 10_000
_FROM_A_FILE: Final = "put the definition into the project folder of the server, then run 'headgate reload'"


class Proposals:
    """Reads and checks definitions. It stores nothing."""

    def __init__(
        self,
        definitions: PipelineStore,
        calendars: Callable[[], Calendars],
        kinds: TriggerKinds | None = None,
        check_trait: TraitCheck | None = None,
        *,
        project: Project | None = None,
        pools: Mapping[str, int] | None = None,
        unregistered: Unregistered | None = None,
    ) -> None:
        """`kinds` and `check_trait` check triggers and evaluators; without them these are not checked.

        `project` has the archetypes and probes of the project; None: only the built-in archetypes, and probes are not
        checked. `pools` are the declared pools with their sizes; None: not checked.
        `unregistered` finds datasets that the registry does not have; None: not checked.
        """
        self._pools = pools
        self._unregistered = unregistered
        self._project = project
        self._definitions = definitions
        self._calendars = calendars
        self._kinds = kinds
        self._check_trait = check_trait

    def read(self, text: str, source: str) -> Loaded:
        """Return the definitions of a text and its problems, also in combination with the stored pipelines.

        An unknown upstream or dataset is a warning: it may be stored later. A cycle through a stored pipeline is an
        error, and the definition is left out.
        """
        check = None if self._kinds is None else self._kinds.check
        known = Known(
            archetypes=None if self._project is None else self._project.archetypes,
            calendars=self._calendars(),
            check_trigger=check,
            check_trait=self._check_trait,
            pools=self._pools,
            probes=None if self._project is None else self._project.probes,
        )
        loaded = load_text(text, source, known)
        reached = self._reached(loaded.pipelines)
        circling = self._circling(loaded.pipelines, reached.values())
        accepted = tuple(each for each in loaded.pipelines if each.pipeline.id not in circling)
        pipelines = [each.pipeline for each in loaded.pipelines]
        strange = unknown_upstreams(pipelines, reached)
        if self._unregistered is not None:
            strange += unknown_datasets(pipelines, self._unregistered, self._definitions.written_datasets)
        warnings = tuple(replace(problem, source=source) for problem in strange)
        return Loaded(pipelines=accepted, problems=(*loaded.problems, *circling.values(), *warnings))

    def local_problems(self, loaded: LoadedPipeline) -> list[Problem]:
        """Return why a definition may come from the server's own files only: it runs a program there."""
        pipeline, found = loaded.pipeline, []
        if pipeline.trigger is not None and self._is_local(pipeline.trigger.type):
            fact = f"a trigger of type {pipeline.trigger.type} runs a program on the server, and is not taken from here"
            found.append(_local(loaded, "trigger.type", fact))
        for name, trait in pipeline.readiness.traits.items():
            if trait.evaluator.startswith(COMMAND_EVALUATOR):
                fact = "an evaluator of commands runs a program on the server, and is not taken from here"
                found.append(_local(loaded, f"readiness.traits.{name}.evaluator", fact))
        return found

    def _is_local(self, type: str) -> bool:
        return type == CommandKind.name if self._kinds is None else self._kinds.is_local(type)

    def _reached(self, loaded: Sequence[LoadedPipeline]) -> dict[str, Pipeline]:
        """Return the stored pipelines that these depend on, transitively."""
        own = {each.pipeline.id for each in loaded}
        found: dict[str, Pipeline] = {}
        pending = [each.pipeline for each in loaded]
        seen = set(own)
        while pending and len(found) < _REACH_MAX:
            for wanted in sorted({each.upstream.pipeline for each in upstreams_of(pending.pop())} - seen):
                seen.add(wanted)
                known = self._find(wanted)
                if known is not None:
                    found[wanted] = known
                    pending.append(known)
        return found

    def _find(self, pipeline_id: str) -> Pipeline | None:
        try:
            stored = self._definitions.find(pipeline_id)
        except CorruptionError:
            # The list of definitions reports it; it must not block another.
            return None
        return None if stored is None else stored.pipeline

    def _circling(self, loaded: Sequence[LoadedPipeline], reached: Iterable[Pipeline]) -> dict[str, Problem]:
        """Return the problem of each definition that closes a cycle with stored pipelines."""
        own = {each.pipeline.id: each for each in loaded}
        found: dict[str, Problem] = {}
        for circle in cycles([*(each.pipeline for each in loaded), *reached]):
            for member in circle:
                if member in own:
                    fact = f"upstreams go in a circle: {' → '.join((*circle, circle[0]))}"
                    allowed = "take one of them out, or wait for its period before"
                    place = own[member]
                    found[member] = Problem(source=place.source, line=place.line, column=1, fact=fact, allowed=allowed)
        return found


def _local(loaded: LoadedPipeline, field: str, fact: str) -> Problem:
    return Problem(source=loaded.source, line=loaded.line, column=1, field=field, fact=fact, allowed=_FROM_A_FILE)
