"""Mermaid flowchart of a machine."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Final

from headgate.asl.expressions.scope import Json
from headgate.asl.graph.labels import END, START, Arrow, StateMark, arrows_of, caption, shortened
from headgate.asl.model.definition import StateType
from headgate.asl.model.transitions import TransitionKind, machines_in, states_of

# Readable on light and dark backgrounds: each class sets its own text colour.
_CLASSES: Final = {
    StateMark.VISITED: "fill:#dcfce7,stroke:#15803d,color:#14532d",
    StateMark.CURRENT: "fill:#dbeafe,stroke:#1d4ed8,color:#1e3a8a,stroke-width:3px",
    StateMark.FAILED: "fill:#fee2e2,stroke:#b91c1c,color:#7f1d1d,stroke-width:2px",
    StateMark.CAUGHT: "fill:#fef3c7,stroke:#b45309,color:#78350f",
}
_INDENT: Final = "  "


def mermaid(definition: Mapping[str, Json], statuses: Mapping[str, StateMark]) -> str:
    """Return the flowchart of a machine; a state with a status gets its class."""
    numbers = itertools.count(1)
    used = {status for name, status in statuses.items()}
    lines = ["flowchart TD", *_machine(definition, statuses, numbers, 1, has_ends=True)]
    lines.extend(f"{_INDENT}classDef {status} {style}" for status, style in _CLASSES.items() if status in used)
    return "\n".join(lines) + "\n"


def _machine(
    machine: Mapping[str, Json],
    statuses: Mapping[str, StateMark],
    numbers: Iterator[int],
    depth: int,
    *,
    has_ends: bool,
) -> list[str]:
    states = states_of(machine)
    # State names may have any character; Mermaid ids may not.
    ids = {name: f"s{next(numbers)}" for name in states}
    margin = _INDENT * depth
    lines: list[str] = []
    if has_ends:
        ids[START], ids[END] = "start", "done"
        lines += [f"{margin}start((Start))", f"{margin}done((End))"]
    for name, state in states.items():
        lines.extend(_state(ids[name], name, state, statuses, numbers, depth))
    lines.extend(f"{margin}{_arrow(arrow, ids)}" for arrow in arrows_of(machine, has_ends=has_ends))
    return lines


def _state(
    id: str, name: str, state: Mapping[str, Json], statuses: Mapping[str, StateMark], numbers: Iterator[int], depth: int
) -> list[str]:
    margin = _INDENT * depth
    label = f'"{_quoted(shortened(name))}<br/><small>{_quoted(shortened(caption(state)))}</small>"'
    status = statuses.get(name)
    inner = list(machines_in(state))
    if not inner:
        shape = f"{{{{{label}}}}}" if state.get("Type") == StateType.CHOICE else f"[{label}]"
        return [f"{margin}{id}{shape}{f':::{status}' if status is not None else ''}"]
    lines = [f"{margin}subgraph {id} [{label}]"]
    for number, nested in enumerate(inner, 1):
        if len(inner) > 1:
            lines.append(f'{margin}{_INDENT}subgraph {id}_{number} ["{number}"]')
        lines.extend(_machine(nested.machine, statuses, numbers, depth + 2, has_ends=False))
        if len(inner) > 1:
            lines.append(f"{margin}{_INDENT}end")
    lines.append(f"{margin}end")
    if status is not None:
        lines.append(f"{margin}class {id} {status}")
    return lines


def _arrow(arrow: Arrow, ids: Mapping[str, str]) -> str:
    shaft = "-.->" if arrow.cause is TransitionKind.CATCH else "-->"
    label = f'|"{"<br/>".join(_quoted(shortened(label)) for label in arrow.labels)}"|' if arrow.labels else ""
    return f"{ids[arrow.source]} {shaft}{label} {ids[arrow.target]}"


def _quoted(text: str) -> str:
    """Escape a text for a quoted Mermaid label."""
    return "".join(f"#{ord(sign)};" if sign in '"#&<>`{}[]|\\' else sign for sign in text)
