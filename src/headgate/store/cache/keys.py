"""The one builder of cache keys: `ss:{dataset_urn}:{signal_type}`, `dc:{dataset_urn}:{version}`, `rr:{topic_pattern}`.

Dataset URNs are full of colons and stay as they are, so that a key can be read and typed. What keeps keys
apart is that the *last* field has none: in it, `%` becomes `%25` and `:` becomes `%3A`. A key therefore
splits in one way only, at its last colon.

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
# How many keys are kept of signals, and of configs: whoever reads or writes a signal asks for both, again and again.
KEYS_MAX: Final = 16_384


class Kind(enum.StrEnum):
    """What is cached. The value is the first field of its keys."""

    SIGNAL_STATE = "ss"
    DATASET_CONFIG = "dc"
    RESOLUTION_RULE = "rr"


# A look-up, not a call of the enum: every read asks for the kind of its key.
_KINDS: Final = {kind.value: kind for kind in Kind}


@lru_cache(maxsize=KEYS_MAX)
def signal_state(dataset_urn: str, signal_type: str) -> Key:
    """Return the key of one health signal of a dataset."""
    return _key(signal_states_of(dataset_urn), signal_type)


def signal_states_of(dataset_urn: str) -> Group:
    """Return the group of all health signals of a dataset."""
    return _group(Kind.SIGNAL_STATE, dataset_urn)


@lru_cache(maxsize=KEYS_MAX)
def dataset_config(dataset_urn: str, version: int | None = None) -> Key:
    """Return the key of one version of a dataset's config, or of the latest one."""
    return _key(dataset_configs_of(dataset_urn), LATEST if version is None else str(version))


def dataset_configs_of(dataset_urn: str) -> Group:
    """Return the group of all versions of a dataset's config, the latest included."""
    return _group(Kind.DATASET_CONFIG, dataset_urn)


def resolution_rules(topic_pattern: str) -> Key:
    """Return the key of the rules under one topic pattern."""
    return _key(all_resolution_rules(), topic_pattern)


def all_resolution_rules() -> Group:
    """Return the group of the rules under every topic pattern."""
    return Group(f"{Kind.RESOLUTION_RULE}:")


def is_group(target: Key | Group) -> bool:
    """Whether `target` names a group rather than one key."""
    return target.endswith(":")


def group_of(key: Key) -> Group:
    """Return the one group `key` belongs to."""
    return Group(key[: key.rindex(":") + 1])


def kind_of(target: Key | Group) -> Kind:
    """Return what `target` names. Raises `InvalidItemError` for a text that this module did not build."""
    try:
        return _KINDS[target[: target.index(":")]]
    except (KeyError, ValueError) as exc:
        raise InvalidItemError(f"cache key {target!r}: it starts with none of {[*_KINDS]} and a colon") from exc


def _group(kind: Kind, field: str) -> Group:
    return Group(f"{kind}:{_checked(field)}:")


def _key(group: Group, field: str) -> Key:
    return Key(group + _checked(field).replace("%", "%25").replace(":", "%3A"))


def _checked(field: str) -> str:
    """Refuse what could not be told apart (an empty field) or sent (half a surrogate pair)."""
    try:
        field.encode()
    except UnicodeEncodeError as exc:
        raise InvalidItemError(f"cache key field {field!r}: it is not Unicode text") from exc
    if not field:
        raise InvalidItemError("cache key field is empty; give a dataset URN, a signal type or a topic pattern")
    return field
