"""Fields of datasets: the schema that tools observe, column lineage, and what changed between two observations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

FIELDS_MAX: Final = 2_000
# Over all fields: a row of the registry has at most 400 KB.
ORIGINS_MAX: Final = 1_000
CHANGES_MAX: Final = 20
SOURCES_MAX: Final = 8
NAMED_MAX: Final = 20


class Origin(Struct, frozen=True, omit_defaults=True):
    """A column that a field derives from, and how."""

    dataset_urn: str
    column: str
    transformation: str = ""


class DatasetField(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A field. Nested fields are named with dots. `source` is the tool that reported it."""

    name: str
    type: str = ""
    description: str = ""
    origins: tuple[Origin, ...] = ()
    source: str = ""


class Retyped(Struct, frozen=True):
    """A field whose type changed."""

    name: str
    before: str
    after: str


class SchemaChange(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What differs between two observations of one tool."""

    at: str
    source: str
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    retyped: tuple[Retyped, ...] = ()

    @property
    def is_breaking(self) -> bool:
        """Whether readers of the dataset may fail: a field is gone, or has another type."""
        return bool(self.removed or self.retyped)

    @property
    def signatures(self) -> tuple[str, ...]:
        """The failure signatures of a breaking change."""
        removed = (f"FIELD_REMOVED:{each}" for each in self.removed)
        return (*removed, *(f"FIELD_RETYPED:{each.name}" for each in self.retyped))

    @property
    def sentence(self) -> str:
        """The change in words, with the first names of each kind."""
        parts = [
            _listed("removed", self.removed),
            _listed("retyped", [f"{each.name} {each.before} -> {each.after}" for each in self.retyped]),
            _listed("added", self.added),
        ]
        return "; ".join(part for part in parts if part)


class Observation(Struct, frozen=True, kw_only=True):
    """The fields that a tool reports. `is_whole`: these are all fields, with their types."""

    source: str
    at: str
    fields: tuple[DatasetField, ...] = ()
    is_whole: bool = False


class DatasetFields(Struct, frozen=True, kw_only=True):
    """The fields of a dataset as last observed, and the latest changes, newest first.

    `observed` has the types of each tool's last whole observation: changes are found within one tool, because tools
    spell types differently.
    """

    dataset_urn: str
    fields: tuple[DatasetField, ...] = ()
    changes: tuple[SchemaChange, ...] = ()
    source: str = ""
    at: str = ""
    observed: dict[str, dict[str, str]] = {}
    observed_at: dict[str, str] = {}
    # The last whole observation changed fields that readers may use; the next one without a change ends that.
    is_drifting: bool = False
    version: int = 0


def folded(known: DatasetFields, seen: Observation) -> DatasetFields:
    """Return the fields with one more observation. The same object if it says nothing new, or is older."""
    if seen.at < known.observed_at.get(seen.source, "") or not seen.fields:
        return known
    bounded = replace(seen, fields=_bounded(seen.fields))
    if not seen.is_whole:
        after = _documented(known, bounded)
        return after if after.fields != known.fields else known
    types = {each.name: each.type for each in bounded.fields}
    before = known.observed.get(seen.source)
    change = None if before is None else _difference(before, types, seen)
    descriptions = {each.name: each for each in known.fields}
    fields = tuple(_completed(each, descriptions.get(each.name)) for each in bounded.fields)
    is_drifting = change is not None and change.is_breaking
    if fields == known.fields and change is None and is_drifting == known.is_drifting and before == types:
        return known
    kept = {name: known.observed[name] for name in sorted(known.observed_at, key=known.observed_at.__getitem__)}
    others = {name: each for name, each in [*kept.items()][-(SOURCES_MAX - 1) :] if name != seen.source}
    return DatasetFields(
        dataset_urn=known.dataset_urn,
        fields=fields,
        changes=known.changes if change is None else (change, *known.changes)[:CHANGES_MAX],
        source=seen.source,
        at=seen.at,
        observed={**others, seen.source: types},
        observed_at={**{name: known.observed_at[name] for name in others}, seen.source: seen.at},
        is_drifting=is_drifting,
        version=known.version,
    )


def _difference(before: Mapping[str, str], after: Mapping[str, str], seen: Observation) -> SchemaChange | None:
    retyped = [
        Retyped(name, before[name], after[name])
        for name in sorted(before.keys() & after.keys())
        if before[name] and after[name] and before[name].casefold() != after[name].casefold()
    ]
    added, removed = after.keys() - before.keys(), before.keys() - after.keys()
    if not (retyped or added or removed):
        return None
    return SchemaChange(
        at=seen.at,
        source=seen.source,
        added=tuple(sorted(added)[:NAMED_MAX]),
        removed=tuple(sorted(removed)[:NAMED_MAX]),
        retyped=tuple(retyped[:NAMED_MAX]),
    )


def _documented(known: DatasetFields, seen: Observation) -> DatasetFields:
    """Return the fields with descriptions and origins added. Fields without a whole observation are taken as given."""
    given = {each.name: each for each in seen.fields}
    if not known.observed:
        had = {each.name: each for each in known.fields}
        fields = [_completed(each, had.get(each.name)) for each in seen.fields]
        fields += [each for name, each in had.items() if name not in given]
        return replace(known, fields=tuple(fields), source=seen.source, at=seen.at)
    fields = [_completed(given[each.name], each) if each.name in given else each for each in known.fields]
    return replace(known, fields=tuple(fields))


def _completed(field: DatasetField, known: DatasetField | None) -> DatasetField:
    if known is None:
        return field
    return replace(
        field,
        type=field.type or known.type,
        description=field.description or known.description,
        origins=field.origins or known.origins,
        source=field.source if field.type or not known.type else known.source,
    )


def _bounded(fields: Sequence[DatasetField]) -> tuple[DatasetField, ...]:
    """Return the fields within the limits of a row."""
    left = ORIGINS_MAX
    kept = []
    for each in fields[:FIELDS_MAX]:
        origins = each.origins[:left]
        left -= len(origins)
        kept.append(each if origins == each.origins else replace(each, origins=origins))
    return tuple(kept)


def _listed(verb: str, names: Sequence[str]) -> str:
    return f"{verb} {', '.join(names)}" if names else ""
