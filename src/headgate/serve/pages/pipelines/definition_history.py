"""Definition history: the latest versions of a pipeline, each with what it changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final

from msgspec import Struct

from headgate import typed_decode
from headgate.durable.model.duration import from_json_type
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.definition.serialization import differences
from headgate.serve.pages.api_calls import ApiCaller

VERSIONS_MAX: Final = 10


class Version(Struct, frozen=True):
    """A version as the API returns it, and its changes to the one before; `is_first`: there is none before."""

    stored: Any
    changes: list[str]
    is_first: bool


class History(Struct, frozen=True):
    """The latest versions, newest first; `has_more`: there are older ones. `missing` is why there is none."""

    versions: list[Version]
    has_more: bool
    missing: str = ""


def definition_of(view: Mapping[str, Any]) -> Pipeline:
    """Return the definition of a version that the API returned."""
    return typed_decode.convert(view["definition"], Pipeline, dec_hook=from_json_type)


def history_of(api: ApiCaller, pipeline_id: str) -> History:
    """Return the history of a pipeline."""
    query = {"limit": VERSIONS_MAX + 1}
    found = api.section("GET /pipelines/{id}/versions", path={"id": pipeline_id}, query=query)
    listed = found.items("pipelines")
    return History(versions(listed)[:VERSIONS_MAX], len(listed) > VERSIONS_MAX, found.missing)


def versions(listed: Sequence[Mapping[str, Any]]) -> list[Version]:
    """Return versions, newest first, with what each changed; the oldest is compared with nothing."""
    return [
        Version(newer, [] if older is None else _changes(older, newer), is_first=older is None)
        for newer, older in zip_longest(listed, listed[1:])
    ]


def _changes(older: Mapping[str, Any], newer: Mapping[str, Any]) -> list[str]:
    if newer["deleted"]:
        return ["- the pipeline was deleted"]
    restored = ["+ the pipeline was restored"] if older["deleted"] else []
    return [*restored, *differences(definition_of(older), definition_of(newer))]
