"""Cache keys: `ss:{dataset_urn}:{signal_type}`, `dc:{dataset_urn}:{version}`, `rr:{topic_pattern}`.

Dataset URNs contain colons and are not escaped, so that keys stay readable. Keys are unambiguous because the *last*
field has no colon: in it, `%` becomes `%25` and `:` becomes `%3A`. A key splits at its last colon.

Everything up to and including that colon is the key's group (`ss:urn:dp:a:`). A group is not a string
prefix: `ss:urn:dp:a:b:FRESHNESS` starts with `ss:urn:dp:a:`, yet belongs to the dataset `urn:dp:a:b`.
A group ends in a colon and a key never does, so no key is ever a group.
"""

from __future__ import annotations

import enum
from functools import lru_cache
from typing import Final, NewType

from headgate.errors import InvalidItemError

Key = NewType("Key", str)
Group = NewType("Group", str)

LATEST: Final = "LATEST"
# The size of each key cache: every read or write of a signal builds a signal key and a config key.
KEYS_MAX: Final = 16_384


class CacheKind(enum.StrEnum):
    """The kind of a cache entry. The value is the first field of its keys."""

    SIGNAL_STATE = "ss"
    DATASET_CONFIG = "dc"
    RESOLUTION_RULE = "rr"


# A dict lookup is faster than calling the enum, on the path of every read.
_KINDS: Final = {kind.value: kind for kind in CacheKind}


@lru_cache(maxsize=KEYS_MAX)
def signal_state(dataset_urn: str, signal_type: str) -> Key:
    """Return the key of one health signal of a dataset."""
    return _key(signal_states_of(dataset_urn), signal_type)


def signal_states_of(dataset_urn: str) -> Group:
    """Return the group of all health signals of a dataset."""
    return _group(CacheKind.SIGNAL_STATE, dataset_urn)


@lru_cache(maxsize=KEYS_MAX)
def dataset_config(dataset_urn: str, version: int | None = None) -> Key:
    """Return the key of one version of a dataset's config, or of the latest one."""
    return _key(dataset_configs_of(dataset_urn), LATEST if version is None else str(version))


def dataset_configs_of(dataset_urn: str) -> Group:
    """Return the group of all versions of a dataset's config, the latest included."""
    return _group(CacheKind.DATASET_CONFIG, dataset_urn)


def resolution_rules(topic_pattern: str) -> Key:
    """Return the key of the rules under one topic pattern."""
    return _key(all_resolution_rules(), topic_pattern)


def all_resolution_rules() -> Group:
    """Return the group of the rules under every topic pattern."""
    return Group(f"{CacheKind.RESOLUTION_RULE}:")


def is_group(target: Key | Group) -> bool:
    """Whether `target` names a group rather than one key."""
    return target.endswith(":")


def group_of(key: Key) -> Group:
    """Return the one group `key` belongs to."""
    return Group(key[: key.rindex(":") + 1])


def kind_of(target: Key | Group) -> CacheKind:
    """Return the kind of a key or group. Raises `InvalidItemError` for an unknown prefix."""
    try:
        return _KINDS[target[: target.index(":")]]
    except (KeyError, ValueError) as exc:
        raise InvalidItemError(f"cache key {target!r}: it starts with none of {[*_KINDS]} and a colon") from exc


def _group(kind: CacheKind, field: str) -> Group:
    return Group(f"{kind}:{_checked(field)}:")


def _key(group: Group, field: str) -> Key:
    return Key(group + _checked(field).replace("%", "%25").replace(":", "%3A"))


def _checked(field: str) -> str:
    """Refuse an empty field, which would be ambiguous, and lone surrogates, which cannot be encoded."""
    try:
        field.encode()
    except UnicodeEncodeError as exc:
        raise InvalidItemError(f"cache key field {field!r}: it is not Unicode text") from exc
    if not field:
        raise InvalidItemError("cache key field is empty; give a dataset URN, a signal type or a topic pattern")
    return field
