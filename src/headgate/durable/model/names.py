"""Names and ids: the rules for names of workflows, activities, queues and signals, for execution ids and for tags."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from headgate.errors import DefinitionError, InvalidIdError, InvalidPayloadError

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
# Excludes the separators of internal keys: `#` between parts, `~` before a derived id.
_EXECUTION_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/=+-]{0,199}")
_DERIVED: Final = "~"
_TAG_VALUE_MAX: Final = 256
_TAGS_MAX: Final = 50
_HEADERS_MAX: Final = 20
_HEADER_VALUE_MAX: Final = 1_000
_UPDATE_ID: Final = re.compile(r"[A-Za-z0-9._:@=+-]{1,100}")
_SIGNAL_NAME_MAX: Final = 200
# The name prefix of workflows and activities that are part of the product.
BUILT_IN: Final = "headgate."


def check_name(kind: str, name: str) -> str:
    """Return `name`. Raises `DefinitionError` if it is not a valid name of an activity, workflow or subscription."""
    if not _NAME.fullmatch(name):
        raise DefinitionError(
            f"{kind} {name!r}: use up to 128 letters, digits, '_', '.' and '-', beginning with a letter or '_'"
        )
    return name


def is_built_in(name: str) -> bool:
    """Whether the name is reserved for workflows and activities that are part of the product."""
    return name.lower().startswith(BUILT_IN)


def check_not_built_in(kind: str, name: str) -> None:
    """Raise `InvalidPayloadError` if the name is reserved: built-in workflows are started by Headgate only."""
    if is_built_in(name):
        raise InvalidPayloadError(
            f"{kind} {name[:80]!r}: names that begin with {BUILT_IN!r} are reserved for Headgate itself; use one of an "
            "app, or for a state machine 'headgate asl run'"
        )


def check_execution_id(execution_id: str, *, derived: bool = False) -> str:
    """Return the id. Raises `InvalidIdError` if it is not a valid execution id; `derived` also allows ids of children.

    A value that is not text raises `InvalidIdError` too.
    """
    text = execution_id if isinstance(execution_id, str) else ""
    plain = text.replace(_DERIVED, "-") if derived else text
    if not _EXECUTION_ID.fullmatch(plain[:200] if derived else plain) or len(text) > 1000:
        raise InvalidIdError(
            f"execution id {_quoted(execution_id, 80)}: use 1 to 200 letters, digits and . _ : @ / = + -, "
            "beginning with a letter or digit"
        )
    return execution_id


def check_new_execution_id(execution_id: str) -> str:
    """Return the id that a client has chosen. Raises `InvalidIdError`, also for a part that is empty, `.` or `..`.

    Clients and proxies shorten such paths, so that no URL would reach the execution.
    """
    check_execution_id(execution_id)
    if not {"", ".", ".."}.isdisjoint(execution_id.split("/")):
        raise InvalidIdError(
            f"execution id {_quoted(execution_id, 80)}: a part between '/' must not be empty, '.' or '..'"
        )
    return execution_id


def check_signal_name(name: str) -> str:
    """Return the name. Raises `InvalidIdError` if it is not a valid signal name."""
    if not isinstance(name, str) or not 1 <= len(name) <= _SIGNAL_NAME_MAX:
        raise InvalidIdError(f"signal name {_quoted(name, 40)}: use 1 to {_SIGNAL_NAME_MAX} characters")
    return name


def check_signal_id(signal_id: str) -> str:
    """Return the idempotency key of a signal. Raises `InvalidIdError` if it is not valid."""
    if not isinstance(signal_id, str) or not 1 <= len(signal_id) <= _SIGNAL_NAME_MAX:
        raise InvalidIdError(f"signal id {_quoted(signal_id, 40)}: use 1 to {_SIGNAL_NAME_MAX} characters")
    return signal_id


def check_update_id(update_id: str) -> str:
    """Return the idempotency key of an update. Raises `InvalidIdError` if it is not valid."""
    if not isinstance(update_id, str) or not _UPDATE_ID.fullmatch(update_id):
        raise InvalidIdError(f"update id {_quoted(update_id, 40)}: use 1 to 100 letters, digits and . _ : @ = + -")
    return update_id


def check_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of the tags. Raises `InvalidIdError` for an invalid name, an invalid value, or too many tags."""
    for name, value in tags.items():
        if not isinstance(value, str) or len(value) > _TAG_VALUE_MAX or not _NAME.fullmatch(name):
            raise InvalidIdError(f"tag {name!r}: a name of letters, digits, _ . - and a text of up to 256 characters")
    if len(tags) > _TAGS_MAX:
        raise InvalidIdError(f"{len(tags)} tags: at most {_TAGS_MAX}")
    return dict(tags)


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of the headers of a call. Raises `InvalidIdError` for an invalid name or value, or too many."""
    for name, value in headers.items():
        if not isinstance(value, str) or len(value) > _HEADER_VALUE_MAX or not _NAME.fullmatch(name):
            raise InvalidIdError(
                f"header {_quoted(name, 40)}: a name of letters, digits, _ . - and a text of up to {_HEADER_VALUE_MAX}"
            )
    if len(headers) > _HEADERS_MAX:
        raise InvalidIdError(f"{len(headers)} headers: at most {_HEADERS_MAX}")
    return dict(headers)


def child_id(parent_id: str, run: int, seq: int) -> str:
    """Return the default id of a child: unique, and the same on every replay."""
    return f"{parent_id}{_DERIVED}{run}.{seq}"


def _quoted(value: object, characters_max: int) -> str:
    return repr(value[:characters_max]) if isinstance(value, str) else repr(value)[:characters_max]
