"""Dataset names: resolves names in requests to registered datasets, and authorizes by those.

Authorization applies to the dataset, not to an alias of it. Where a request names datasets in its body, the route's
rule checks only the permission and the handler checks the scope here, because a registry lookup may block and rules
must not.
"""

from __future__ import annotations

from collections.abc import Iterable

from headgate.auth.principals import Principal, require
from headgate.auth.roles import Permission
from headgate.errors import DatasetNotFoundError, TransientError
from headgate.health.model import urns
from headgate.health.service import HealthService


class NamedDatasets:
    """Resolves and authorizes dataset names. All but `require` raise `InvalidIdError` for a malformed name."""

    def __init__(self, health: HealthService, permission: Permission) -> None:
        """Use the registry of `health`, and require `permission` on each dataset."""
        self._health = health
        self._names = health.registry.names
        self._permission = permission

    def one(self, given: str, principal: Principal) -> str:
        """Return the registered name of a dataset, or the given one.

        Raises `ForbiddenError`, and `TransientError` if the registry is unavailable.
        """
        urn = self._names.of(given) or given
        if not principal.is_unlimited:
            require(principal, self._permission, urn)
        return urn

    def seen(self, given: str, principal: Principal) -> str:
        """Return the registered name of a dataset, for reads.

        Raises `DatasetNotFoundError` and `ForbiddenError`. Without the registry, returns the given name: cached
        data of the dataset may still be served.
        """
        try:
            urn = self._names.of(given)
        except TransientError:
            urn = given
        if not principal.is_unlimited:
            require(principal, self._permission, urn or given)
        if urn is None:
            raise DatasetNotFoundError(f"dataset {given}: not registered; 'headgate dataset ls' lists datasets")
        return urn

    def is_registered(self, given: str) -> bool:
        """Whether a name resolves to a registered dataset. Raises `TransientError`."""
        return self._names.of(given) is not None

    def column(self, given: str, principal: Principal) -> str:
        """Return a column with the registered name of its dataset. Raises as `one`."""
        dataset_urn, name = urns.column(given)
        return urns.column_urn(self.one(dataset_urn, principal), name)

    def either(self, given: str, principal: Principal) -> str:
        """Return a dataset or a column, as `one` or `column`."""
        is_column = given.startswith(urns.COLUMN_PREFIX)
        return self.column(given, principal) if is_column else self.one(given, principal)

    def require(self, given: Iterable[str], principal: Principal) -> None:
        """Raise `ForbiddenError` if a name is of a dataset out of scope. Malformed names are left to validation."""
        if principal.is_unlimited:
            return
        named = list(dict.fromkeys(given))
        registered = self._names.of_many(name for name in named if urns.is_dataset_urn(name))
        for name in named:
            require(principal, self._permission, registered.get(name) or name)
