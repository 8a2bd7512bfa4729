"""Access rules: the permission that a route needs, and the datasets that it is about.

A rule is attached to each route, not to URL patterns, so that no route is served without one. It is checked before the
handler runs. If the dataset is only known after a lookup, or the response lists many, the handler completes the check,
as `Reach` defines.
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
    """How a route determines its datasets."""

    # It is about no dataset: scopes do not matter.
    NONE = "none"
    # It is about all datasets: the principal's scope must be unlimited.
    ALL = "all"
    # The request names the datasets, and the rule checks all of them.
    NAMED = "named"
    # The request names another resource, such as an incident: the handler looks it up and calls `require` again.
    FOUND = "found"
    # The response lists resources of many datasets: the handler filters out those out of scope. If the request is
    # limited to datasets, the rule checks those.
    FILTERED = "filtered"


class Rule(Struct, frozen=True):
    """The permission that a route needs.

    `dataset` locates the datasets in the request: the path of a field (`evidence.dataset_urn`, also through lists),
    several paths, or a function of the request. A column counts as its dataset.
    """

    permission: Permission
    reach: Reach = Reach.NONE
    dataset: str | tuple[str, ...] | Callable[[Any], Iterable[str]] | None = None

    def datasets(self, request: object) -> list[str]:
        """Return the datasets that a request, a mapping or an object, names."""
        if self.dataset is None:
            return []
        if callable(self.dataset):
            return [_dataset(urn) for urn in self.dataset(request)]
        paths = (self.dataset,) if isinstance(self.dataset, str) else self.dataset
        return [_dataset(urn) for path in paths for urn in _named(request, path.split("."))]

    def admit(self, principal: Principal | None, request: object) -> Principal:
        """Return the principal if the rule admits the request. Raises `UnauthenticatedError` or `ForbiddenError`."""
        known = require(principal, self.permission)
        if known.is_unlimited:
            return known
        named = self.datasets(request)
        for urn in dict.fromkeys(named):
            require(known, self.permission, urn)
        if self.reach is Reach.ALL or (self.reach is Reach.NAMED and not named):
            scopes = ", ".join(known.scopes) or "no dataset"
            remedy = "name a dataset" if self.reach is Reach.NAMED else "this is about all datasets"
            raise ForbiddenError(f"{known.name}: may {self.permission} on {scopes} only; {remedy}")
        return known


def named(permission: Permission, *fields: str) -> Rule:
    """Return the rule of a request that names its datasets in these fields."""
    return Rule(permission, Reach.NAMED, fields or ("dataset_urn",))


def found(permission: Permission) -> Rule:
    """Return the rule of a request whose handler looks up the dataset and checks it."""
    return Rule(permission, Reach.FOUND)


def filtered(permission: Permission, *fields: str) -> Rule:
    """Return the rule of a list that its handler filters, and that these fields may limit to datasets."""
    return Rule(permission, Reach.FILTERED, fields or ("dataset_urn",))


def incident_update(fields: Iterable[str]) -> Permission:
    """Return the permission for changing these fields of an incident; the root-cause summary alone needs less."""
    return Permission.INCIDENT_ANNOTATE if set(fields) <= _ANNOTATIONS else Permission.INCIDENT_WRITE


def _named(value: object, path: Sequence[str]) -> Iterator[str]:
    """Yield the non-empty texts at a path, descending into lists."""
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
