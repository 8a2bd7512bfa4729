"""Format detection: recognises the formats of definitions, and converts the older ones.

The first generation names a pipeline by `name` and has traits and archetypes; the second names it by `pipeline.id` and
has sensors and rules. Nodes keep their positions, so that a problem names the line and field of the file. Fields that
those formats ignore take effect here, or are refused with the reason; none is dropped silently.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from headgate.pipelines.authoring.formats.interlock_v1 import from_older
from headgate.pipelines.authoring.formats.interlock_v2 import from_newer
from headgate.pipelines.definition.problems import Problem
from headgate.pipelines.definition.source_map import Node
from headgate.pipelines.definition.typed_decoder import DecodeReport


class Format(enum.StrEnum):
    """The format of a document."""

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
    """Return the format of a document, by field names that only one format has. An unknown one counts as ours."""
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


def converted(document: Node, reading: DecodeReport) -> Node | None:
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
