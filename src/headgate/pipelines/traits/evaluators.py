"""Evaluators: selects the evaluator of a trait by its reference, runs it, and stores the result.

A reference is `builtin:NAME`, `plugin:NAME`, `probe:NAME`, an http or https URL, `command:PROGRAM ARGUMENT…`, or
`push` for results that are pushed through the API. Errors of an evaluator become results, and one that
hangs does not block the others.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import DefinitionError
from headgate.pipelines.definition.model import Trait
from headgate.pipelines.enums import FailureCategory, TraitStatus
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.traits import builtin as evaluator_builtin
from headgate.pipelines.traits import plugins, probe_reference
from headgate.pipelines.traits import subprocess as evaluator_process
from headgate.pipelines.traits.breaker import EvaluatorBreakers
from headgate.pipelines.traits.builtin import BuiltinEvaluator
from headgate.pipelines.traits.isolation import Isolation
from headgate.pipelines.traits.probe_reference import ProbeEvaluator
from headgate.pipelines.traits.protocol import Answer, Evaluator, Question, failure
from headgate.pipelines.traits.rows import TraitResult, bounded_value
from headgate.pipelines.traits.traits import PUSH, Also, Traits, expiry_ms
from headgate.triggers.contract import shown

_HTTP: Final = ("http://", "https://")
_FORMS: Final = "use builtin:NAME, plugin:NAME, probe:NAME, http://… or https://…, command:PROGRAM ARGUMENT…, or push"


class TraitOrder(Struct, frozen=True, kw_only=True):
    """A trait to evaluate, and the run it is for. Without a date it applies to all periods."""

    pipeline_id: str
    trait_type: str
    trait: Trait
    schedule_id: str = ""
    date: str = ""
    run_id: str = ""
    # Whether the definition is from the project folder, as an evaluator that runs a program must be.
    is_from_folder: bool = False


class Evaluators:
    """Evaluates traits. Thread-safe.

    Without `probe`, there are no probes. Without `process`, no programs are run. `also` makes the writes, such as
    events, that go with each result.
    """

    def __init__(
        self,
        clock: Clock,
        traits: Traits,
        *,
        builtin: BuiltinEvaluator,
        http: Evaluator,
        process: Evaluator | None = None,
        probe: ProbeEvaluator | None = None,
        breakers: EvaluatorBreakers | None = None,
        isolation: Isolation | None = None,
        also: Also = lambda _result, _before: (),
    ) -> None:
        self._clock = clock
        self._traits = traits
        self._builtin = builtin
        self._http = http
        self._plugin = plugins.PluginEvaluator()
        self._process = process
        self._probe = probe
        self._breakers = breakers if breakers is not None else EvaluatorBreakers(clock)
        self._isolation = isolation if isolation is not None else Isolation()
        self._also = also

    def evaluate_trait(self, order: TraitOrder, now: datetime) -> TraitResult:
        """Evaluate a trait now, store the result and return it. A pushed result is read and not changed.

        Raises errors of the store only.
        """
        if order.trait.evaluator == PUSH:
            return self._pushed(order, now)
        return self._traits.record(self.ask(order, now), also=self._also)

    def ask(self, order: TraitOrder, now: datetime) -> TraitResult:
        """Evaluate a trait now without storing the result. Errors of an evaluator are not raised."""
        if order.trait.evaluator == PUSH:
            return self._pushed(order, now)
        began = self._clock.monotonic()
        answer = self._answer(order, now)
        return _result(order, answer, now, max(0, round((self._clock.monotonic() - began) * 1000)))

    def check(self, trait: Trait) -> None:
        """Raise `DefinitionError` for a trait that can never be evaluated here."""
        if trait.timeout <= 0:
            raise DefinitionError(f"timeout {trait.timeout:g}: an evaluator needs time; give a duration above 0")
        reference = trait.evaluator
        if reference == PUSH or reference.startswith(_HTTP):
            return
        if reference.startswith(evaluator_builtin.PREFIX):
            self._check_builtin(reference)
        elif reference.startswith(plugins.PREFIX):
            plugins.check_reference(reference)
        elif reference.startswith(probe_reference.PREFIX) and self._probe is not None:
            self._probe.check(reference)
        elif reference.startswith(evaluator_process.PREFIX):
            self._check_command(reference)
        else:
            raise DefinitionError(f"evaluator {reference[:80]!r} is of no known kind; {_FORMS}")

    def _check_builtin(self, reference: str) -> None:
        if reference.removeprefix(evaluator_builtin.PREFIX) not in self._builtin.names:
            raise DefinitionError(
                f"evaluator {reference[:80]!r} is unknown; there are {', '.join(self._builtin.names)}"
            )

    def _check_command(self, reference: str) -> None:
        if self._process is None:
            raise DefinitionError(f"evaluator {reference[:80]!r}: no programs are run as evaluators here")

    def _answer(self, order: TraitOrder, now: datetime) -> Answer:
        try:
            self.check(order.trait)
        except DefinitionError as exc:
            return failure(FailureCategory.PERMANENT, str(exc))
        reference = order.trait.evaluator
        if reference.startswith(evaluator_process.PREFIX) and not order.is_from_folder:
            return failure(
                FailureCategory.PERMANENT,
                f"evaluator {reference[:80]!r} runs a program, and the definition of pipeline {order.pipeline_id} was "
                "not loaded from the project folder of the server; put its file there and run 'headgate reload'",
            )
        question = _question(order, now)
        evaluator = self._evaluator(reference)
        name = _name(order)
        return self._breakers.guarded(
            name,
            lambda: self._isolation.run(name, question.timeout_seconds, lambda: evaluator.evaluate(question)),
        )

    def _evaluator(self, reference: str) -> Evaluator:
        if reference.startswith(evaluator_builtin.PREFIX):
            return self._builtin
        if reference.startswith(plugins.PREFIX):
            return self._plugin
        if reference.startswith(_HTTP):
            return self._http
        if reference.startswith(probe_reference.PREFIX) and self._probe is not None:
            return self._probe
        assert self._process is not None, "checked above"
        return self._process

    def _pushed(self, order: TraitOrder, now: datetime) -> TraitResult:
        slot = Slot(order.pipeline_id, order.schedule_id, order.date)
        result = self._traits.find(order.pipeline_id, order.trait_type, slot, now)
        if result is None:
            missing = Answer(status=TraitStatus.FAIL, reason="no result was pushed for this period")
            return _result(order, missing, now, 0)
        now_ms = int(now.timestamp() * 1000)
        return replace(result, status=result.status_at(now_ms), reason=result.reason_at(now_ms))


def _question(order: TraitOrder, now: datetime) -> Question:
    """Return the question for the evaluator, with a copy of the config."""
    run = {"date": order.date, "scheduleID": order.schedule_id}
    return Question(
        reference=order.trait.evaluator,
        pipeline_id=order.pipeline_id,
        trait_type=order.trait_type,
        config={**{name: value for name, value in run.items() if value}, **order.trait.config},
        now=now,
        timeout_seconds=float(order.trait.timeout),
        schedule_id=order.schedule_id,
        date=order.date,
        run_id=order.run_id,
    )


def _name(order: TraitOrder) -> str:
    """Return the breaker key. Built-in evaluators read data of the pipeline, so each trait has its own."""
    reference = order.trait.evaluator
    if reference.startswith((evaluator_builtin.PREFIX, plugins.PREFIX)):
        return f"{reference} of {order.pipeline_id}/{order.trait_type}"
    return reference


def _result(order: TraitOrder, answer: Answer, now: datetime, duration_ms: int) -> TraitResult:
    # Valid from the time of the answer: a slow answer with a short lifetime would otherwise expire at once.
    evaluated_at_ms = int(now.timestamp() * 1000) + duration_ms
    value, note = bounded_value(answer.value)
    return TraitResult(
        pipeline_id=order.pipeline_id,
        trait_type=order.trait_type,
        status=answer.status,
        reason=shown(answer.reason) + note,
        value=value,
        category=answer.category,
        evaluated_at_ms=evaluated_at_ms,
        expires_at_ms=expiry_ms(evaluated_at_ms, float(order.trait.ttl)),
        date=order.date,
        schedule_id=order.schedule_id,
        evaluator=order.trait.evaluator,
        run_id=order.run_id,
        duration_ms=duration_ms,
    )
