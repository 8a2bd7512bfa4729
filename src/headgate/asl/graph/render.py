"""Graph rendering: draws a machine as SVG, Mermaid or text, optionally with the progress of an execution."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from headgate.asl.expressions.scope import Json
from headgate.asl.graph.labels import MARKS, Arrow, StateMark, arrows_of, caption
from headgate.asl.graph.mermaid import mermaid
from headgate.asl.graph.svg import svg
from headgate.asl.model.transitions import TransitionKind, machines_in, reachable, states_of

__all__ = ["Form", "StateMark", "draw"]

_NO_MARK: Final = "○"


class Form(enum.StrEnum):
    """The output format of a drawing."""

    SVG = "svg"
    MERMAID = "mermaid"
    TEXT = "text"


def draw(definition: Json, form: Form = Form.SVG, statuses: Mapping[str, StateMark] | None = None) -> str:
    """Return a drawing of a definition. Transitions to missing states are left out.

    `statuses` has the progress of an execution by state name; unknown names are ignored.
    """
    marks = statuses or {}
    match form:
        case Form.SVG:
            return svg(definition, marks)
        case Form.MERMAID:
            return mermaid(definition, marks)
        case Form.TEXT:
            return "\n".join(_machine(definition, marks)) + "\n"


def _machine(machine: Mapping[str, Json], statuses: Mapping[str, StateMark]) -> list[str]:
    states = states_of(machine)
    order = reachable(machine)
    order += [name for name in states if name not in set(order)]
    position = {name: index for index, name in enumerate(order)}
    width = max((len(name) for name in order), default=0)
    leaving: dict[str, list[Arrow]] = {}
    for arrow in arrows_of(machine, has_ends=False):
        leaving.setdefault(arrow.source, []).append(arrow)
    lines: list[str] = []
    for name in order:
        status = statuses.get(name)
        mark = MARKS[status] if status is not None else _NO_MARK
        suffix = f"  [{status}]" if status is not None else ""
        lines.append(f"{mark} {name:<{width}}  {caption(states[name])}{suffix}".rstrip())
        lines.extend(_inner(states[name], statuses))
        lines.extend(_arrow(arrow, is_back=position[arrow.target] <= position[name]) for arrow in leaving.get(name, ()))
    return lines


def _arrow(arrow: Arrow, *, is_back: bool) -> str:
    label = " | ".join(arrow.labels)
    sign = "⚡" if arrow.cause is TransitionKind.CATCH else "→"
    suffix = f"  {'if ' if arrow.cause is TransitionKind.CHOICE else ''}{label}" if label else ""
    return f"    {sign} {arrow.target}{' ↑' if is_back else ''}{suffix}"


def _inner(state: Mapping[str, Json], statuses: Mapping[str, StateMark]) -> list[str]:
    inner = list(machines_in(state))
    lines: list[str] = []
    for number, nested in enumerate(inner, 1):
        title = f"branch {number}" if len(inner) > 1 or "Branches" in state else "for each item"
        lines.append(f"    ┌ {title}")
        lines.extend(f"    │ {line}" for line in _machine(nested.machine, statuses))
        lines.append("    └")
    return lines
