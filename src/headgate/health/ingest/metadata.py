"""Metadata of datasets from OpenLineage facets: description, owner, tags, fields and the origins of columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from headgate.health.ingest.error_text import plain_text
from headgate.health.ingest.facets import Documentation, FacetOwner, Facets, Ownership, Schema, SchemaField, Tags
from headgate.health.model.dataset_fields import FIELDS_MAX, DatasetField, Origin
from headgate.health.model.datasets import Metadata

TEXT_MAX: Final = 1_000
NAME_MAX: Final = 200
TAGS_MAX: Final = 50
_DEPTH_MAX: Final = 8
_OWNER_KIND: Final = re.compile(r"^(team|group|user|person|owner):", re.IGNORECASE)


def metadata_of(facets: Facets, source: str) -> Metadata | None:
    """Return the description, owner and tags of a dataset, or None if its facets have none."""
    documentation = facets.get("documentation", Documentation)
    ownership = facets.get("ownership", Ownership)
    tags = facets.get("tags", Tags)
    team, email = owner_of(ownership.owners or [] if ownership is not None else [])
    found = Metadata(
        source=source,
        description=plain_text(documentation.description if documentation is not None else "", TEXT_MAX),
        owner_team=team,
        owner_email=email,
        tags=tags_of({each.key: each.value or "" for each in (tags.tags or [] if tags else []) if each.field is None}),
    )
    return None if found == Metadata(source=source) else found


def owner_of(owners: Sequence[FacetOwner]) -> tuple[str, str]:
    """Return the team and the address of the first owners that are one."""
    names = [plain_text(_OWNER_KIND.sub("", each.name.strip()).lstrip("@"), NAME_MAX) for each in owners]
    team = next((each for each in names if each and "@" not in each), "")
    return team, next((each for each in names if "@" in each), "")


def tags_of(given: Mapping[str, str]) -> dict[str, str]:
    """Return tags within the limits of a config."""
    named = ((plain_text(key.strip(), NAME_MAX), plain_text(value.strip(), NAME_MAX)) for key, value in given.items())
    return dict([(key, value) for key, value in named if key][:TAGS_MAX])


def fields_of(facet: Schema | None, origins: Mapping[str, Sequence[Origin]], source: str) -> tuple[DatasetField, ...]:
    """Return the fields of a schema with the columns that they derive from."""
    flat = dict(_flat(facet.fields or [] if facet is not None else [], "", 0))
    missing = {name: SchemaField(name) for name in origins if name not in flat}
    return tuple(
        DatasetField(
            name=name,
            type=plain_text(field.type or "", NAME_MAX),
            description=plain_text(field.description or "", TEXT_MAX),
            origins=tuple(origins.get(name, ())),
            source=source,
        )
        for name, field in [*flat.items(), *missing.items()][:FIELDS_MAX]
    )


def _flat(fields: Sequence[SchemaField], prefix: str, depth: int) -> Iterator[tuple[str, SchemaField]]:
    for each in fields:
        name = plain_text(f"{prefix}{each.name}", NAME_MAX)
        if not name.strip():
            continue
        yield name, each
        if each.fields and depth < _DEPTH_MAX:
            yield from _flat(each.fields, f"{name}.", depth + 1)
