"""State machine validation: from the text of a definition to its problems, warnings and costs."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from headgate.asl.compile.event_budget import EVENTS_MAX, EventBudget, LoopCost, event_budget
from headgate.asl.compile.parser import load
from headgate.asl.compile.problems import Problem
from headgate.asl.expressions.scope import Json
from headgate.asl.model.substitution import substitute
from headgate.asl.model.transitions import all_machines, states_of
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
    """Validation result. `warnings` concern Step Functions limits, which do not apply here."""

    valid: bool
    problems: list[Finding]
    warnings: list[Finding]
    states: int = 0
    costs: Costs | None = None


def check_definition(text: str, variables: Mapping[str, str], *, strict_budget: bool = False) -> Checked:
    """Validate a definition; with `strict_budget` warnings are problems."""
    try:
        definition = read_definition(text, variables)
    except DefinitionError as exc:
        return Checked(valid=False, problems=[Finding("$", UNREADABLE, exc.message, "")], warnings=[])
    # Imported late: the query languages are slow to load and rarely needed.
    from headgate.asl.compile.validator import problems

    found = [_finding(each) for each in problems(definition)]
    if found:
        return Checked(valid=False, problems=found, warnings=[])
    cost = event_budget(definition)
    over = [_finding(each) for each in cost.problems]
    return Checked(
        valid=not (strict_budget and over),
        problems=over if strict_budget else [],
        warnings=[] if strict_budget else over,
        states=sum(len(states_of(nested.machine)) for nested in all_machines(definition)),
        costs=_costs(cost),
    )


def read_definition(text: str, variables: Mapping[str, str]) -> Json:
    """Parse a definition with its variables substituted. Raises `DefinitionError`."""
    filled, _ = substitute(text, variables)
    try:
        definition = load(filled)
        # It is stored as JSON: lone surrogates and non-finite numbers are refused here.
        msgspec.json.encode(definition)
    except DefinitionError:
        raise
    except (ValueError, OverflowError, RecursionError) as exc:
        raise DefinitionError(f"the definition cannot be stored as JSON: {exc}; correct it there") from exc
    return definition


def _finding(problem: Problem) -> Finding:
    return Finding(problem.path, problem.code.value, problem.fact, problem.allowed)


def _costs(cost: EventBudget) -> Costs:
    loops, per_item = list(cost.loops), {each.path: each.events_per_item for each in cost.iterations}
    for _, child in cost.children:
        inner = _costs(child)
        loops += inner.loops
        per_item |= inner.events_per_item
    return Costs(cost.events_per_pass, EVENTS_MAX, loops, per_item)
