"""Rows of the registry: the current config, archived versions, and the versions known of a URN."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, get_args

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.errors import CorruptionError, InvalidPayloadError
from headgate.health.model import enums
from headgate.health.model.datasets import Dataset, DatasetSpec, DatasetStatus
from headgate.health.model.enums import Tier
from headgate.health.model.urns import version_of
from headgate.store.catalogue.tables import DATASET_ALIAS, DATASET_CONFIG, DATASET_CONFIG_VERSION, DATASET_REGISTRY
from headgate.store.model.schema import Key
from headgate.store.model.values import Item

_SPEC_FIELDS: Final = DatasetSpec.__struct_fields__
# Set on answers only, or kept in the row by the registry itself.
_NOT_STORED: Final = ("stale", "age_seconds", "is_fallback")
# Attributes of the current config only: its listing and change-feed positions.
_PATTERN_MAX: Final = 1_024
_NUMBERS: Final = ("min", "max", "minimum", "maximum", "minLength", "maxLength")
_PRESENT_ONLY: Final = ("latest_tier", "latest_owner_team", "feed_sequence")


class Versions(Struct, frozen=True, kw_only=True):
    """The known `:vN` of a URN: registered ones first, then discovered, then deleted ones."""

    registered: tuple[int, ...] = ()
    discovered: tuple[int, ...] = ()
    deleted: tuple[int, ...] = ()
    version: int = 0

    def highest(self) -> int | None:
        """Return the version that the URN without one stands for."""
        return max(self.registered or self.discovered, default=None)

    def last(self) -> int | None:
        """Return the version as `meant` does; if all are deleted, the one before the deletion."""
        return max(self.registered or self.discovered or self.deleted, default=None)

    def moved(self, number: int, status: DatasetStatus) -> Versions:
        """Return the versions after one took a status. The same object if nothing changes."""
        registered, discovered, deleted = (
            {*each} - {number} for each in (self.registered, self.discovered, self.deleted)
        )
        if status is DatasetStatus.DISCOVERED:
            discovered.add(number)
        elif status is DatasetStatus.DELETED:
            deleted.add(number)
        else:
            registered.add(number)
        if (registered, discovered, deleted) == ({*self.registered}, {*self.discovered}, {*self.deleted}):
            return self
        return Versions(
            registered=tuple(sorted(registered)),
            discovered=tuple(sorted(discovered)),
            deleted=tuple(sorted(deleted)),
            version=self.version + 1,
        )


def latest_key(urn: str) -> Key:
    """Return the key of a dataset's current config."""
    return DATASET_CONFIG.key(dataset_urn=urn)


def version_key(urn: str, version: int) -> Key:
    """Return the key of an archived version."""
    return DATASET_CONFIG_VERSION.key(dataset_urn=urn, version=version)


def versions_key(name: str) -> Key:
    """Return the key of the versions of a URN."""
    return DATASET_ALIAS.key(dataset_urn=name)


def tier_partition(tier: Tier, *, is_deleted: bool) -> str:
    """Return the tier-index partition of a dataset. Deleted ones have their own."""
    return f"{DatasetStatus.DELETED}#{tier}" if is_deleted else str(tier)


def latest_item(dataset: Dataset, *, change_id: str, feed_sequence: int) -> Item:
    """Return the row of the current config. Its writer recognises its own write by `change_id`."""
    is_deleted = dataset.status is DatasetStatus.DELETED
    item = {
        **DATASET_REGISTRY.key_attributes(latest_key(dataset.dataset_urn)),
        **{name: value for name, value in written(dataset).items() if name not in _NOT_STORED},
        "change_id": change_id,
        "feed_sequence": feed_sequence,
        "latest_tier": tier_partition(dataset.tier, is_deleted=is_deleted),
    }
    if not is_deleted:
        item["latest_owner_team"] = dataset.owner_team
    if dataset.config_version > 1:
        item["previous_version_sk"] = version_key(dataset.dataset_urn, dataset.config_version - 1).sort
    return item


def archived_item(latest: Item, archived_at: str) -> Item:
    """Return the row of a replaced version, without index attributes."""
    key = version_key(latest["dataset_urn"], latest["config_version"])
    kept = {name: value for name, value in latest.items() if name not in _PRESENT_ONLY}
    return {**kept, **DATASET_REGISTRY.key_attributes(key), "archived_at": archived_at}


def versions_item(name: str, versions: Versions) -> Item:
    """Return the row of the versions of a URN."""
    highest = versions.highest()
    item = {
        **DATASET_REGISTRY.key_attributes(versions_key(name)),
        "registered": list(versions.registered),
        "discovered": list(versions.discovered),
        "deleted": list(versions.deleted),
        "version": versions.version,
    }
    return item if highest is None else {**item, "dataset_urn": f"{name}:v{highest}"}


def dataset_of(item: Item) -> Dataset:
    """Return the dataset of a row. Raises `CorruptionError`."""
    found: Dataset = _converted(item, Dataset)
    return found


def versions_of(item: Item | None) -> Versions:
    """Return the versions of a row. Raises `CorruptionError`."""
    found: Versions = Versions() if item is None else _converted(item, Versions)
    return found


def spec_of(dataset: Dataset) -> DatasetSpec:
    """Return the config of a dataset without its metadata."""
    return DatasetSpec(**{name: getattr(dataset, name) for name in _SPEC_FIELDS})


def fields_of(spec: DatasetSpec) -> dict[str, Any]:
    """Return the config of a dataset, and its status if it has one, as plain values."""
    names = (*_SPEC_FIELDS, "status") if isinstance(spec, Dataset) else _SPEC_FIELDS
    plain = written(spec)
    return {name: plain[name] for name in names if name in plain}


def written(value: Any) -> Any:  # noqa: ANN401 - any part of a struct
    """Return a struct as plain values including defaults, so that queries on the table find them."""
    if isinstance(value, Struct):
        fields = ((name, getattr(value, name)) for name in value.__struct_fields__)
        return {name: written(held) for name, held in fields if held is not None}
    if isinstance(value, tuple):
        return [written(each) for each in value]
    return msgspec.to_builtins(value)


def checked_spec(spec: DatasetSpec) -> DatasetSpec:
    """Return a spec whose every field is within its limits. Raises `InvalidPayloadError`, naming the field."""
    return read_spec(msgspec.to_builtins(spec))


def _refuse_unknown(given: Mapping[str, Any], kind: type[Struct], path: str) -> None:
    """Raise `InvalidPayloadError` for an unknown field of a part: it would be dropped silently."""
    for field in msgspec.structs.fields(kind):
        value = given.get(field.encode_name)
        parts = [each for each in get_args(field.type) if isinstance(each, type) and issubclass(each, Struct)]
        if not parts or not isinstance(value, Mapping):
            continue
        names = parts[0].__struct_fields__
        unknown = value.keys() - {*names}
        if unknown:
            raise InvalidPayloadError(
                f"{path}.{field.name}: no field {sorted(unknown)[0]!r}; it has {', '.join(names)}"
            )
        _refuse_unknown(value, parts[0], f"{path}.{field.name}")


def read_spec(given: Mapping[str, Any]) -> DatasetSpec:
    """Return the spec of a request, with the tier in any spelling.

    Raises `InvalidPayloadError`, naming the field, for an invalid value or an unknown field.
    """
    unknown = given.keys() - {*_SPEC_FIELDS}
    if unknown:
        raise InvalidPayloadError(f"dataset: no field {sorted(unknown)[0]!r}; it has {', '.join(_SPEC_FIELDS)}")
    _refuse_unknown(given, DatasetSpec, "dataset")
    fields = dict(given)
    if "tier" in fields:
        fields["tier"] = enums.tier(fields["tier"])
    try:
        spec = typed_decode.convert(fields, DatasetSpec)
    except msgspec.ValidationError as exc:
        raise InvalidPayloadError(f"dataset: {exc}") from exc
    if not spec.owner_team.strip():
        raise InvalidPayloadError("dataset: owner_team is empty; name the team, or leave it out")
    _check_warnings(spec)
    _check_constraints(spec)
    return spec


def _check_constraints(spec: DatasetSpec) -> None:
    """Raise `InvalidPayloadError` for a field constraint that no value could be checked against."""
    constraints = {} if spec.contract_binding is None else spec.contract_binding.field_constraints
    for field, rules in constraints.items():
        path = f"dataset: contract_binding.field_constraints.{field[:80]}"
        pattern = rules.get("pattern")
        if "pattern" in rules:
            if not isinstance(pattern, str) or len(pattern) > _PATTERN_MAX:
                raise InvalidPayloadError(f"{path}.pattern: write a regular expression, at most {_PATTERN_MAX:,} long")
            try:
                re.compile(pattern)
            except (re.error, RecursionError, OverflowError) as exc:
                raise InvalidPayloadError(f"{path}.pattern {pattern[:80]!r}: not a regular expression: {exc}") from exc
        for name in _NUMBERS:
            if name in rules and (not isinstance(rules[name], int | float) or isinstance(rules[name], bool)):
                raise InvalidPayloadError(f"{path}.{name} {str(rules[name])[:40]!r}: write a number")


def _check_warnings(spec: DatasetSpec) -> None:
    """Raise `InvalidPayloadError` for a warning threshold behind its breach threshold."""
    freshness = None if spec.slos is None else spec.slos.freshness
    if freshness is not None and (freshness.warning_delay_seconds or 0) > freshness.max_delay_seconds:
        raise InvalidPayloadError(
            f"dataset: slos.freshness: warning_delay_seconds {freshness.warning_delay_seconds:g} is more than "
            f"max_delay_seconds {freshness.max_delay_seconds:g}; the warning must come first"
        )
    kept = None if spec.slos is None else spec.slos.contract_compliance
    if kept is None or kept.warning_compliance_rate is None:
        return
    if kept.warning_compliance_rate < kept.min_compliance_rate:
        raise InvalidPayloadError(
            f"dataset: slos.contract_compliance: warning_compliance_rate {kept.warning_compliance_rate:g} is less than "
            f"min_compliance_rate {kept.min_compliance_rate:g}; the warning must come first"
        )


def alias_name(urn: str) -> str | None:
    """Return the URN without a version whose row lists this dataset, or None if it has no version."""
    number = version_of(urn)
    return None if number is None else urn.removesuffix(f":v{number}")


def _converted(item: Item, shape: type[Any]) -> Any:  # noqa: ANN401 - as the caller says
    try:
        return typed_decode.convert(item, shape)
    except msgspec.ValidationError as exc:
        raise CorruptionError(f"row {item.get('PK')} {item.get('SK')}: invalid ({exc})") from exc
