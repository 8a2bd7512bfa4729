"""Sources of dataset fields: which tool set a field, and which of a tool's values are taken over.

What a person set wins: a tool sets a field that is empty, and changes one that it set itself.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec.structs import replace

from headgate.health.model.datasets import Dataset, DatasetSpec, Metadata

_FIELDS: Final = ("description", "owner_team", "owner_email")
_TAGS: Final = "tags."
_EMPTY: Final = DatasetSpec()


class Described(NamedTuple):
    """A config with the values of a tool, and the sources of its fields."""

    spec: DatasetSpec
    sources: dict[str, str]


def described(spec: DatasetSpec, sources: dict[str, str], found: Metadata) -> Described:
    """Return a config with what a tool knows. Nothing that a person or another tool set is changed."""
    values: dict[str, str] = {}
    owned = dict(sources)
    for name in _FIELDS:
        value = getattr(found, name)
        is_free = getattr(spec, name) == getattr(_EMPTY, name)
        if value and (is_free or sources.get(name) == found.source):
            values[name] = value
            owned[name] = found.source
    tags = dict(spec.tags)
    for key in [key for key in tags if sources.get(f"{_TAGS}{key}") == found.source and key not in found.tags]:
        # The tool removed it.
        del tags[key]
        del owned[f"{_TAGS}{key}"]
    for key, value in found.tags.items():
        if key not in tags or sources.get(f"{_TAGS}{key}") == found.source:
            tags[key] = value
            owned[f"{_TAGS}{key}"] = found.source
    return Described(replace(spec, **values, tags=tags), owned)


def kept_sources(before: Dataset, spec: DatasetSpec) -> dict[str, str]:
    """Return the sources of the fields that a change leaves as they are."""
    return {name: source for name, source in before.field_sources.items() if _value(before, name) == _value(spec, name)}


def completed(spec: DatasetSpec, discovered: Dataset) -> Described:
    """Return a new config of a discovered dataset; what it leaves empty is taken from the tools that know it."""
    values: dict[str, str] = {}
    for name in _FIELDS:
        if name in discovered.field_sources and getattr(spec, name) == getattr(_EMPTY, name):
            values[name] = getattr(discovered, name)
    known = {key: value for key, value in discovered.tags.items() if f"{_TAGS}{key}" in discovered.field_sources}
    after = replace(spec, **values, tags={**known, **spec.tags})
    return Described(after, kept_sources(discovered, after))


def _value(spec: DatasetSpec, name: str) -> str | None:
    if name.startswith(_TAGS):
        return spec.tags.get(name.removeprefix(_TAGS))
    value: str | None = getattr(spec, name)
    return value
