"""Graph rendering: draws a machine as SVG, Mermaid or text, optionally with the progress of an execution."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from headgate.asl.expressions.scope import Json
from headgate.asl.graph.labels import StateMark
from headgate.asl.graph.mermaid import mermaid
from headgate.asl.graph.outline import outline
from headgate.asl.graph.svg import svg

__all__ = ["Form", "StateMark", "draw"]


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
            return outline(definition, marks)
