"""State machine validation: from the text of a definition to its problems, warnings and costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from headgate.asl.compile.event_budget import EVENTS_MAX, EventBudget, LoopCost, event_budget
from headgate.asl.compile.problems import Problem
from headgate.asl.compile.severities import Severity, Target
from headgate.asl.documents.definition_text import read_definition
from headgate.asl.expressions.scope import Json
from headgate.asl.model.transitions import all_machines, states_of
from headgate.asl.tasks.local_tasks import LocalTasks
from headgate.errors import DefinitionError

UNREADABLE = "UNREADABLE"


class Finding(Struct, frozen=True):
    """One problem: JSON path, code, fact, and what is allowed."""

    path: str
    code: str
    fact: str
    allowed: str

    def __str__(self) -> str:
        return f"{self.path}: {self.code}: {self.fact}" + (f"; {self.allowed}" if self.allowed else "")


class Costs(Struct, frozen=True):
    """Step Functions history events of an execution, of at most `events_max`."""

    events_per_pass: int
    events_max: int
    loops: list[LoopCost]
    # Events per item of Maps whose number of items is not known, by path.
    events_per_item: dict[str, int]


class Checked(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Validation result.

    `warnings` are probable mistakes, and limits of Step Functions that do not apply here. `notes` are what only AWS can
    run, in a definition for AWS.
    """

    valid: bool
    problems: list[Finding]
    warnings: list[Finding]
    notes: list[Finding] = []
    states: int = 0
    costs: Costs | None = None


class Strictness(Struct, frozen=True):
    """The warnings that are problems."""

    # Each of them.
    all: bool = False
    # Loops that can exceed the event history of Step Functions.
    budget: bool = False


LENIENT: Final = Strictness()


def check_definition(
    text: str,
    variables: Mapping[str, str],
    *,
    target: Target = Target.LOCAL,
    strictness: Strictness = LENIENT,
    tasks: LocalTasks | None = None,
) -> Checked:
    """Validate a definition for a target, of which `tasks` can run; None: whether it can is not checked."""
    try:
        definition = read_definition(text, variables)
    except DefinitionError as exc:
        return unreadable(exc)
    return check_document(definition, target=target, strictness=strictness, tasks=tasks)


def unreadable(error: DefinitionError) -> Checked:
    """Return the result for a text that cannot be parsed."""
    return Checked(valid=False, problems=[Finding("$", UNREADABLE, error.message, "")], warnings=[])


def check_document(
    definition: Json,
    *,
    target: Target = Target.LOCAL,
    strictness: Strictness = LENIENT,
    tasks: LocalTasks | None = None,
) -> Checked:
    """Validate a parsed definition as `check_definition` does."""
    # Imported late: the query languages are slow to load and rarely needed.
    from headgate.asl.compile.validator import findings

    found: dict[Severity, list[Finding]] = {severity: [] for severity in Severity}
    for each in findings(definition, target, tasks):
        found[each.severity].append(_finding(each))
    errors, warnings = found[Severity.ERROR], found[Severity.WARNING]
    if strictness.all:
        errors, warnings = [*errors, *warnings], []
    cost = None
    # The costs of an invalid definition cannot be computed.
    if not found[Severity.ERROR]:
        cost = event_budget(definition)
        (errors if strictness.all or strictness.budget else warnings).extend(map(_finding, cost.problems))
    return Checked(
        valid=not errors,
        problems=errors,
        warnings=warnings,
        notes=found[Severity.NOTE],
        states=0 if cost is None else sum(len(states_of(each.machine)) for each in all_machines(definition)),
        costs=None if cost is None else _costs(cost),
    )


def _finding(problem: Problem) -> Finding:
    return Finding(problem.path, problem.code.value, problem.fact, problem.allowed)


def _costs(cost: EventBudget) -> Costs:
    loops, per_item = list(cost.loops), {each.path: each.events_per_item for each in cost.iterations}
    for _, child in cost.children:
        inner = _costs(child)
        loops += inner.loops
        per_item |= inner.events_per_item
    return Costs(cost.events_per_pass, EVENTS_MAX, loops, per_item)
