"""Rules: which permission each thing that can be asked needs, and which datasets it is about.

They are attached to routes, never to patterns of addresses, so that nothing is served without. A
rule is checked before the handler runs. Where the dataset is known only once a thing was found, or an answer lists
many, the handler has a part of it to do, which `Reach` says.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from headgate.auth.principals import Principal, require
from headgate.auth.roles import Permission
from headgate.errors import ForbiddenError

_COLUMN: Final = "urn:col:"
_ANNOTATIONS: Final = frozenset({"rca_summary"})


class Reach(enum.StrEnum):
    """How something that is asked comes to its datasets."""

    # It is about none: scopes do not matter.
    NONE = "none"
    # It is about all of them at once: only those whose scope is everything may ask.
    ALL = "all"
    # The request names them, and the rule checks them all.
    NAMED = "named"
    # The request names something else, such as an incident: once it is found, the handler calls `require` again.
    FOUND = "found"
    # The answer lists things of many datasets: the handler leaves out those that the principal does not reach. If the
    # request narrows it to datasets, the rule checks those.
    FILTERED = "filtered"


class Rule(Struct, frozen=True):
    """What a caller must be allowed.

    `dataset` says where the request names datasets: the path of a field (`evidence.dataset_urn`, through lists too),
    several of them, or a function of the request. A column stands for its dataset.
    """

    permission: Permission
    reach: Reach = Reach.NONE
    dataset: str | tuple[str, ...] | Callable[[Any], Iterable[str]] | None = None

    def datasets(self, request: object) -> list[str]:
        """Return the datasets that a request names: the fields of a mapping, or of an object."""
        if self.dataset is None:
            return []
        if callable(self.dataset):
            return [_dataset(urn) for urn in self.dataset(request)]
        paths = (self.dataset,) if isinstance(self.dataset, str) else self.dataset
        return [_dataset(urn) for path in paths for urn in _named(request, path.split("."))]

    def admit(self, principal: Principal | None, request: object) -> Principal:
        """Return the principal if it may ask this. Raises `UnauthenticatedError` or `ForbiddenError`."""
        known = require(principal, self.permission)
        if known.is_unlimited:
            # Whatever it names is in scope, and need not be looked for.
            return known
        named = self.datasets(request)
        for urn in dict.fromkeys(named):
            require(known, self.permission, urn)
        if self.reach is Reach.ALL or (self.reach is Reach.NAMED and not named):
            scopes = ", ".join(known.scopes) or "no dataset"
            remedy = "name a dataset" if self.reach is Reach.NAMED else "this is about all datasets"
            raise ForbiddenError(f"{known.name}: may {self.permission} on {scopes} alone; {remedy}")
        return known


def named(permission: Permission, *fields: str) -> Rule:
    """Return the rule of what names its datasets in these fields."""
    return Rule(permission, Reach.NAMED, fields or ("dataset_urn",))


def found(permission: Permission) -> Rule:
    """Return the rule of what is about a thing whose dataset its handler finds, and then checks."""
    return Rule(permission, Reach.FOUND)


def filtered(permission: Permission, *fields: str) -> Rule:
    """Return the rule of a list, which its handler filters, and which these fields may narrow to datasets."""
    return Rule(permission, Reach.FILTERED, fields or ("dataset_urn",))


def incident_update(fields: Iterable[str]) -> Permission:
    """Return what someone needs who changes these fields of an incident: a summary of its cause takes less."""
    return Permission.INCIDENT_ANNOTATE if set(fields) <= _ANNOTATIONS else Permission.INCIDENT_WRITE


def _named(value: object, path: Sequence[str]) -> Iterator[str]:
    """Go through the texts at a path, into lists on the way. What is not there, or empty, names nothing."""
    if isinstance(value, str):
        if value and not path:
            yield value
    elif isinstance(value, Mapping):
        if path:
            yield from _named(value.get(path[0]), path[1:])
    elif isinstance(value, Iterable):
        for each in value:
            yield from _named(each, path)
    elif value is not None and path:
        yield from _named(getattr(value, path[0], None), path[1:])


def _dataset(urn: str) -> str:
    return urn.removeprefix(_COLUMN).rpartition(":")[0] if urn.startswith(_COLUMN) else urn
