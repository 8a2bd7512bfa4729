"""The two older formats of definitions: recognising them, and saying in our words what each of their fields says.

The first generation names a pipeline by `name` and has traits and archetypes; the second names it by `pipeline.id` and
has sensors and rules. Nodes are taken over as they are, so that a problem names the line and the field of the file.
What those formats accept and then ignore counts here, or is refused with the reason; never is it dropped in silence.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from headgate.pipelines.authoring.formats.interlock_v1 import from_older
from headgate.pipelines.authoring.formats.interlock_v2 import from_newer
from headgate.pipelines.definition.problems import Problem
from headgate.pipelines.definition.source_map import Node
from headgate.pipelines.definition.typed_decoder import Reading


class Format(enum.StrEnum):
    """What a document is."""

    OURS = "headgate"
    OLDER = "traits"
    NEWER = "sensors"
    PROJECT = "project"
    ARCHETYPE = "archetype"
    CALENDAR = "calendar"


_REASONS: Final[Mapping[Format, tuple[str, str]]] = {
    Format.PROJECT: (
        "this is a project's own settings and no pipeline",
        "say in headgate.toml where state is kept and what is served, and leave definitions in the folder pipelines",
    ),
    Format.ARCHETYPE: ("this is an archetype and no pipeline", "put it into the folder archetypes"),
    Format.CALENDAR: ("this is a calendar and no pipeline", "put it into the folder calendars"),
}


def recognise(document: Node) -> Format:
    """Return what a document is, by the names that only one of them has. What is unknown counts as ours."""
    names = document.mapping().keys()
    if "pipeline" in names and "id" not in names:
        return Format.NEWER
    if "provider" in names and names & {"pipelineDirs", "archetypeDirs", "evaluatorDirs"}:
        return Format.PROJECT
    if names & {"required_traits", "requiredTraits"}:
        return Format.ARCHETYPE
    if "name" in names and names <= {"name", "days", "dates", "weekends", "holidays"}:
        return Format.CALENDAR
    return Format.OLDER if "name" in names and "id" not in names else Format.OURS


def in_our_words(document: Node, reading: Reading) -> Node | None:
    """Return a document of any format in ours; None, with the reason in `reading`, if it is no pipeline."""
    match recognise(document):
        case Format.OURS:
            return document
        case Format.NEWER:
            return from_newer(document, reading)
        case Format.OLDER:
            return from_older(document, reading)
        case other:
            fact, allowed = _REASONS[other]
            reading.problems.append(
                Problem(source=reading.source, line=document.line, column=document.column, fact=fact, allowed=allowed)
            )
            return None
