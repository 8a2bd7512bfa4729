"""Dataset API: register, change, diff, roll back, alias and list datasets, and read the change feed."""

from __future__ import annotations

from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from headgate.auth import rules
from headgate.auth.principals import require
from headgate.auth.roles import Permission
from headgate.auth.rules import Reach, Rule
from headgate.errors import DatasetNotFoundError, InvalidPayloadError, VersionConflictError
from headgate.health.model.datasets import Dataset, DatasetSpec, DatasetStatus
from headgate.health.model.enums import tier
from headgate.health.model.signals import ANY_VERSION
from headgate.health.registry.aliases import Alias
from headgate.health.registry.change_feed import Change
from headgate.health.registry.degraded_lookup import FallbackOnMiss
from headgate.health.registry.listing import DatasetFilter
from headgate.health.registry.rows import read_spec
from headgate.health.registry.service import Chunk
from headgate.health.registry.versions import FieldChange
from headgate.health.service import HealthService
from headgate.serve.http.operations import PREFIX, Answer, Call, NoQuery, Operation
from headgate.serve.http.preconditions import etag, matching
from headgate.serve.http.problem import Problem
from headgate.serve.rest.health.models import FullName, Name, PageQuery, PageSize, Text, complete
from headgate.serve.rest.parameters import Cursor, PageToken, described

_ONE: Final = "/datasets/{dataset_urn}"
_READ: Final = rules.named(Permission.DATASET_READ, "path.dataset_urn")
_WRITE: Final = rules.named(Permission.DATASET_WRITE, "path.dataset_urn")
# Fields of a change besides the configuration.
_NOT_SPEC: Final = frozenset({"dataset_urn", "expected_version", "approval_ticket", "reason"})
# Fields of a response besides the configuration. Clients may send a response back as a change.
_ANSWERED: Final = frozenset({*Dataset.__struct_fields__} - {*DatasetSpec.__struct_fields__})
_VERSION_LATEST: Final = "LATEST"
MERGE_PATCH: Final = "application/merge-patch+json"


class DatasetBody(Struct, kw_only=True):
    """Configuration of a dataset, and the reason of the change."""

    dataset_urn: Name = ""
    expected_version: Annotated[int, Meta(ge=ANY_VERSION)] | None = None
    approval_ticket: Name | None = None
    reason: Text = ""
    display_name: str = ""
    description: str = ""
    tier: str | int = "TIER_3"
    owner_team: Annotated[str, Meta(extra_json_schema={"minLength": 1})] = "unowned"
    owner_email: str | None = None
    oncall_rotation: str | None = None
    source: dict[str, Any] | None = None
    schema_binding: dict[str, Any] | None = None
    contract_binding: dict[str, Any] | None = None
    slos: dict[str, Any] | None = None
    pii_policy: dict[str, Any] | None = None
    gate: dict[str, Any] | None = None
    retention_days: Annotated[int, Meta(ge=1, le=36_500)] | UnsetType = UNSET
    tags: dict[str, str] = {}
    # Read-only: a change of status has its own operation.
    status: str | None = None


class DatasetPatch(Struct, kw_only=True):
    """A merge patch of a configuration (RFC 7396): null resets a field, a field that is left out stays.

    Parts merge as well: `{"slos": {"freshness": null}}` removes the freshness SLO and keeps the others.
    """

    dataset_urn: Name = ""
    expected_version: Annotated[int, Meta(ge=ANY_VERSION)] | None = None
    approval_ticket: Name | None = None
    reason: Text = ""
    display_name: str | UnsetType | None = UNSET
    description: str | UnsetType | None = UNSET
    tier: str | int | UnsetType | None = UNSET
    owner_team: Annotated[str, Meta(extra_json_schema={"minLength": 1})] | UnsetType | None = UNSET
    owner_email: str | UnsetType | None = UNSET
    oncall_rotation: str | UnsetType | None = UNSET
    source: dict[str, Any] | UnsetType | None = UNSET
    schema_binding: dict[str, Any] | UnsetType | None = UNSET
    contract_binding: dict[str, Any] | UnsetType | None = UNSET
    slos: dict[str, Any] | UnsetType | None = UNSET
    pii_policy: dict[str, Any] | UnsetType | None = UNSET
    gate: dict[str, Any] | UnsetType | None = UNSET
    retention_days: Annotated[int, Meta(ge=1, le=36500)] | UnsetType | None = UNSET
    tags: dict[str, str | None] | UnsetType | None = UNSET
    # Read-only: a change of status has its own operation.
    status: str | None = None


class Grounds(Struct, forbid_unknown_fields=True, kw_only=True):
    """Reason and expected version of a change."""

    expected_version: Annotated[int, Meta(ge=ANY_VERSION)] | None = None
    approval_ticket: Name | None = None
    reason: Text = ""


class Rollback(Grounds, forbid_unknown_fields=True, kw_only=True):
    """Version to roll back to."""

    version: Annotated[int, Meta(ge=1)]


class AliasBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """An alias of a dataset, as a producer names it."""

    namespace: FullName
    name: FullName
    why: Text = "set by hand"


class ListQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Filter and page of datasets."""

    tier: str | None = None
    owner_team: str | None = None
    status: DatasetStatus | None = None
    source_type: str | None = None
    search: str | None = None
    page_token: PageToken | None = None
    page_size: PageSize = 50


class ShowQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Version; with `fallback_on_miss`, how to answer for an unregistered dataset."""

    version: Annotated[str, described(r"[0-9]{1,9}|(?:LATEST|latest)")] = _VERSION_LATEST
    fallback_on_miss: FallbackOnMiss | None = None


class DiffQuery(Struct, forbid_unknown_fields=True, kw_only=True, rename={"from_version": "from", "to_version": "to"}):
    """Two versions to compare."""

    from_version: Annotated[int, Meta(ge=1)]
    to_version: Annotated[int, Meta(ge=1)]


class FeedQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Checkpoint to continue after; by default from the start."""

    after: Cursor | None = None
    limit: PageSize = 100


class NameQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """A producer's name."""

    namespace: FullName
    name: FullName


class UnnameQuery(NameQuery, forbid_unknown_fields=True, kw_only=True):
    """The alias to remove, and the reason."""

    why: Text = "taken back by hand"


class DatasetPage(Struct, frozen=True):
    """A page of datasets."""

    items: list[Dataset]
    next_page_token: str | None = None


class VersionPage(Struct, frozen=True):
    """A page of versions, newest first."""

    items: list[Dataset]
    next_page_token: str | None = None


class Diff(Struct, frozen=True):
    """Differences between two versions."""

    dataset_urn: str
    changes: list[FieldChange]


class Aliases(Struct, frozen=True):
    """Aliases of a dataset."""

    aliases: list[Alias]


class Feed(Struct, frozen=True):
    """Changes of datasets in order, and the next checkpoint."""

    changes: list[Change]
    checkpoint: str


def dataset_operations(health: HealthService) -> list[Operation]:
    """Return the operations on datasets."""
    return _Datasets(health).operations()


class _Datasets:
    def __init__(self, health: HealthService) -> None:
        self._registry = health.registry

    def operations(self) -> list[Operation]:
        shown, changed = {200: Dataset}, {200: Dataset, 409: Problem, 412: Problem}
        every = Rule(Permission.DATASET_READ, Reach.ALL)
        created = rules.named(Permission.DATASET_WRITE, "body.dataset_urn")
        listed = Rule(Permission.DATASET_READ, Reach.FILTERED)
        return [
            Operation("GET", "/datasets", "List datasets", self.ls, {200: DatasetPage}, query=ListQuery, rule=listed),
            Operation(
                "POST",
                "/datasets",
                "Register a dataset",
                self.create,
                {201: Dataset, 409: Problem},
                body=DatasetBody,
                rule=created,
                repeatable=True,
            ),
            Operation("GET", "/dataset-changes", "Follow changes", self.feed, {200: Feed}, query=FeedQuery, rule=every),
            Operation(
                "GET",
                "/dataset-names",
                "Find a dataset by alias",
                self.named,
                shown,
                query=NameQuery,
                rule=Rule(Permission.DATASET_READ, Reach.FOUND),
            ),
            Operation(
                "DELETE",
                "/dataset-names",
                "Remove an alias",
                self.unalias,
                {200: Alias},
                query=UnnameQuery,
                rule=Rule(Permission.DATASET_WRITE, Reach.FOUND),
            ),
            Operation(
                "GET",
                "/dataset-export",
                "Read the change feed of datasets, deleted ones included",
                self.export,
                {200: Chunk},
                query=FeedQuery,
                rule=every,
            ),
            Operation("GET", _ONE, "Show a dataset", self.show, shown, query=ShowQuery, rule=_READ),
            Operation("PUT", _ONE, "Change a dataset", self.update, changed, body=DatasetBody, rule=_WRITE),
            Operation(
                "PATCH",
                _ONE,
                "Change fields of a dataset",
                self.patch,
                changed,
                body=DatasetPatch,
                body_forms={MERGE_PATCH: DatasetPatch},
                rule=_WRITE,
            ),
            Operation("DELETE", _ONE, "Mark a dataset as deleted", self.delete, changed, body=Grounds, rule=_WRITE),
            Operation(
                "POST",
                f"{_ONE}/deprecate",
                "Deprecate a dataset",
                self.deprecate,
                changed,
                body=Grounds,
                rule=_WRITE,
            ),
            Operation(
                "POST",
                f"{_ONE}/restore",
                "Restore a dataset",
                self.restore,
                changed,
                body=Grounds,
                rule=_WRITE,
            ),
            Operation(
                "POST",
                f"{_ONE}/rollback",
                "Roll back a dataset",
                self.rollback,
                changed,
                body=Rollback,
                rule=_WRITE,
            ),
            Operation(
                "GET",
                f"{_ONE}/versions",
                "List versions of a dataset",
                self.versions,
                {200: VersionPage},
                query=PageQuery,
                rule=_READ,
            ),
            Operation(
                "GET", f"{_ONE}/diff", "Compare two versions", self.diff, {200: Diff}, query=DiffQuery, rule=_READ
            ),
            Operation("GET", f"{_ONE}/aliases", "List aliases", self.aliases, {200: Aliases}, rule=_READ),
            Operation(
                "PUT",
                f"{_ONE}/aliases",
                "Add an alias",
                self.alias,
                {200: Alias},
                body=AliasBody,
                rule=_WRITE,
            ),
        ]

    def ls(self, call: Call[None, ListQuery]) -> Answer:
        query = call.query
        wanted = DatasetFilter(
            tier=None if query.tier is None else tier(query.tier),
            owner_team=query.owner_team,
            status=query.status,
            source_type=query.source_type,
            search=query.search,
        )
        page = self._registry.ls(wanted, limit=query.page_size, cursor=query.page_token)
        seen = [each for each in page.datasets if call.principal.reaches(each.dataset_urn)]
        return Answer(complete(DatasetPage(seen, page.cursor)))

    def create(self, call: Call[DatasetBody, NoQuery]) -> Answer:
        body = call.body
        if body.expected_version not in (None, 0, ANY_VERSION):
            raise VersionConflictError(
                f"dataset {body.dataset_urn}: expected_version {body.expected_version} is of an existing dataset; "
                "change that one with PUT, or leave it out"
            )
        made = self._registry.create(
            body.dataset_urn,
            read_spec(_fields(call.content)),
            actor=call.principal.name,
            ticket=body.approval_ticket,
            reason=body.reason,
        )
        location = f"{PREFIX}/datasets/{quote(made.dataset_urn, safe='')}"
        return Answer(complete(made), 201, {**etag(made.config_version), "location": location})

    def show(self, call: Call[None, ShowQuery]) -> Answer:
        urn, query = call.path["dataset_urn"], call.query
        if query.fallback_on_miss is not None:
            found = self._registry.lookup(urn, query.fallback_on_miss)
            warning = {} if found.warning is None else {"warning": f'199 headgate "{_quoted(found.warning)}"'}
            return _shown(found.dataset, warning)
        if query.version.upper() == _VERSION_LATEST:
            return _shown(self._registry.get(urn))
        number = query.version.removeprefix("CONFIG#").removeprefix("v")
        if not (number.isascii() and number.isdecimal()) or len(number) > 9:
            raise InvalidPayloadError(f"version {query.version[:20]!r}: a number, or {_VERSION_LATEST}")
        return _shown(self._registry.get(urn, version=int(number)))

    def patch(self, call: Call[DatasetPatch, NoQuery]) -> Answer:
        body, urn, fields = call.body, call.path["dataset_urn"], _fields(call.content)
        self._check_unchangeable(urn, body)

        def change(version: int | None) -> Dataset:
            return self._registry.patch(
                urn,
                fields,
                expected_version=ANY_VERSION if version is None else version,
                actor=call.principal.name,
                ticket=body.approval_ticket,
                reason=body.reason,
            )

        return _shown(matching(call.headers, body.expected_version, change))

    def _check_unchangeable(self, urn: str, body: DatasetBody | DatasetPatch) -> None:
        """Raise `InvalidPayloadError` if a change names another dataset or another status."""
        if body.dataset_urn not in ("", urn):
            raise InvalidPayloadError(f"dataset_urn {body.dataset_urn[:80]!r}: the path has {urn}")
        held = self._registry.find(urn) if body.status else None
        if held is not None and body.status is not None and body.status != held.status:
            raise InvalidPayloadError(
                f"status {body.status[:20]!r}: the status is {held.status}; use deprecate, restore or delete"
            )

    def update(self, call: Call[DatasetBody, NoQuery]) -> Answer:
        body, urn, stated = call.body, call.path["dataset_urn"], _fields(call.content)
        spec = read_spec(stated)
        self._check_unchangeable(urn, body)

        def change(version: int | None) -> Dataset:
            return self._registry.update(
                urn,
                spec,
                expected_version=ANY_VERSION if version is None else version,
                actor=call.principal.name,
                ticket=body.approval_ticket,
                reason=body.reason,
                stated=stated,
            )

        return _shown(matching(call.headers, body.expected_version, change))

    def delete(self, call: Call[Grounds, NoQuery]) -> Answer:
        return self._moved(call, "delete", call.path["dataset_urn"])

    def deprecate(self, call: Call[Grounds, NoQuery]) -> Answer:
        return self._moved(call, "deprecate", call.path["dataset_urn"])

    def restore(self, call: Call[Grounds, NoQuery]) -> Answer:
        # A deleted dataset has no registered name: this is the name it was registered under.
        urn = call.path["dataset_urn"]
        known = self._registry.ever(urn)
        if known is not None:
            urn = known.dataset_urn
            require(call.principal, Permission.DATASET_WRITE, urn)
        return self._moved(call, "restore", urn)

    def _moved(self, call: Call[Grounds, NoQuery], verb: str, urn: str) -> Answer:
        body, move = call.body, getattr(self._registry, verb)

        def change(version: int | None) -> Dataset:
            moved: Dataset = move(
                urn,
                expected_version=ANY_VERSION if version is None else version,
                actor=call.principal.name,
                ticket=body.approval_ticket,
                reason=body.reason,
            )
            return moved

        return _shown(matching(call.headers, body.expected_version, change))

    def rollback(self, call: Call[Rollback, NoQuery]) -> Answer:
        body = call.body

        def change(version: int | None) -> Dataset:
            return self._registry.rollback(
                call.path["dataset_urn"],
                body.version,
                expected_version=ANY_VERSION if version is None else version,
                actor=call.principal.name,
                ticket=body.approval_ticket,
                reason=body.reason,
            )

        return _shown(matching(call.headers, body.expected_version, change))

    def versions(self, call: Call[None, PageQuery]) -> Answer:
        found = self._registry.history(
            call.path["dataset_urn"], limit=call.query.page_size, cursor=call.query.page_token
        )
        return Answer(complete(VersionPage(found.versions, found.cursor)))

    def diff(self, call: Call[None, DiffQuery]) -> Answer:
        urn = call.path["dataset_urn"]
        return Answer(Diff(urn, self._registry.diff(urn, call.query.from_version, call.query.to_version)))

    def aliases(self, call: Call[None, NoQuery]) -> Answer:
        return Answer(Aliases(self._registry.aliases(call.path["dataset_urn"])))

    def alias(self, call: Call[AliasBody, NoQuery]) -> Answer:
        body, held = call.body, self._registry.named(call.body.namespace, call.body.name)
        if held is not None:
            # The alias moves from another dataset, whose events go to this one from now on.
            require(call.principal, Permission.DATASET_WRITE, held)
        return Answer(
            self._registry.alias(
                body.namespace, body.name, call.path["dataset_urn"], why=body.why, actor=call.principal.name
            )
        )

    def named(self, call: Call[None, NameQuery]) -> Answer:
        urn = self._registry.named(call.query.namespace, call.query.name)
        if urn is None:
            raise DatasetNotFoundError(
                f"{call.query.namespace} {call.query.name}: no dataset has this alias; add it to one"
            )
        require(call.principal, Permission.DATASET_READ, urn)
        return _shown(self._registry.get(urn))

    def unalias(self, call: Call[None, UnnameQuery]) -> Answer:
        query = call.query
        held = self._registry.named(query.namespace, query.name)
        if held is not None:
            require(call.principal, Permission.DATASET_WRITE, held)
        return Answer(self._registry.unalias(query.namespace, query.name, why=query.why, actor=call.principal.name))

    def export(self, call: Call[None, FeedQuery]) -> Answer:
        return Answer(complete(self._registry.export(call.query.after, limit=call.query.limit)))

    def feed(self, call: Call[None, FeedQuery]) -> Answer:
        found = self._registry.changes(call.query.after, limit=call.query.limit)
        return Answer(Feed(found.changes, found.checkpoint))


def _fields(content: bytes) -> dict[str, Any]:
    """Return the fields of a configuration as they were sent."""
    given = msgspec.json.decode(content.strip() or b"{}")
    return {name: value for name, value in given.items() if name not in _NOT_SPEC | _ANSWERED}


def _shown(dataset: Dataset, headers: dict[str, str] | None = None) -> Answer:
    return Answer(complete(dataset), headers={**etag(dataset.config_version), **(headers or {})})


def _quoted(text: str) -> str:
    return text.encode("ascii", "replace").decode().replace("\\", "").replace('"', "'")
