"""Graph: draws a machine, as a picture, as Mermaid, or as text, with how far an execution has come if that is given."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from headgate.asl.expressions.scope import Json
from headgate.asl.graph.labels import Status
from headgate.asl.graph.mermaid import mermaid
from headgate.asl.graph.outline import outline
from headgate.asl.graph.svg import svg

__all__ = ["Form", "Status", "draw"]


class Form(enum.StrEnum):
    """What a drawing is made of."""

    SVG = "svg"
    MERMAID = "mermaid"
    TEXT = "text"


def draw(definition: Json, form: Form = Form.SVG, statuses: Mapping[str, Status] | None = None) -> str:
    """Return a drawing of a definition. Arrows to states that do not exist are left out; nothing is raised for them.

    `statuses` has how far an execution is, by the name of the state; names that the machine does not have are ignored.
    """
    given = statuses or {}
    match form:
        case Form.SVG:
            return svg(definition, given)
        case Form.MERMAID:
            return mermaid(definition, given)
        case Form.TEXT:
            return outline(definition, given)
