"""Datasets as callers name them: found under the name they are registered by, and judged by that.

Whether someone may have to do with a dataset is a question about the dataset itself, whatever they call it. So where a
request names datasets in its body, the rule of its route asks for the permission alone, and the handler does the rest
here: a look at the registry may take a while, and rules are asked where nobody may wait.
"""

from __future__ import annotations

from collections.abc import Iterable

from headgate.auth.principals import Principal, require
from headgate.auth.roles import Permission
from headgate.errors import DatasetNotFoundError, TransientError
from headgate.health.model import urns
from headgate.health.service import HealthService


class NamedDatasets:
    """Says which dataset a name means. All but `require` raise `InvalidIdError` for what is no name of one."""

    def __init__(self, health: HealthService, permission: Permission) -> None:
        """Take what knows the registry, and what someone needs who names a dataset."""
        self._health = health
        self._names = health.registry.names
        self._permission = permission

    def one(self, given: str, principal: Principal) -> str:
        """Return the name that a dataset is registered under, or the given one.

        Raises `ForbiddenError` for who may not have to do with it, and `TransientError` if that cannot be found out.
        """
        urn = self._names.of(given) or given
        if not principal.is_unlimited:
            require(principal, self._permission, urn)
        return urn

    def seen(self, given: str, principal: Principal) -> str:
        """Return the name that a dataset is registered under, for those who only look.

        Raises `DatasetNotFoundError` if there is none, and `ForbiddenError`. If the registry cannot be asked it is the
        given one: what is remembered of the dataset may still be told.
        """
        try:
            urn = self._names.of(given)
        except TransientError:
            urn = given
        if not principal.is_unlimited:
            require(principal, self._permission, urn or given)
        if urn is None:
            raise DatasetNotFoundError(f"dataset {given}: it is not registered; 'headgate dataset ls' lists those")
        return urn

    def is_registered(self, given: str) -> bool:
        """Whether a name means a dataset that is registered. Raises `TransientError`."""
        return self._names.of(given) is not None

    def column(self, given: str, principal: Principal) -> str:
        """Return a column of the dataset as it is registered. Raises as `one` does."""
        dataset_urn, name = urns.column(given)
        return urns.column_urn(self.one(dataset_urn, principal), name)

    def either(self, given: str, principal: Principal) -> str:
        """Return a dataset or a column, as `one` or `column` does."""
        is_column = given.startswith(urns.COLUMN_PREFIX)
        return self.column(given, principal) if is_column else self.one(given, principal)

    def require(self, given: Iterable[str], principal: Principal) -> None:
        """Raise `ForbiddenError` if someone names a dataset that they may have nothing to do with.

        What is no name is left to whoever reads it.
        """
        if principal.is_unlimited:
            return
        named = list(dict.fromkeys(given))
        registered = self._names.of_many(name for name in named if urns.is_dataset_urn(name))
        for name in named:
            require(principal, self._permission, registered.get(name) or name)
