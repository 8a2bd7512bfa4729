"""Datasets over HTTP: registered, changed, compared, rolled back, found by other names, and followed."""

from __future__ import annotations

from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec
from msgspec import Meta, Struct

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
from headgate.serve.rest.health.models import Name, PageQuery, PageSize, Text, complete

_ONE: Final = "/datasets/{dataset_urn}"
_READ: Final = rules.named(Permission.DATASET_READ, "path.dataset_urn")
_WRITE: Final = rules.named(Permission.DATASET_WRITE, "path.dataset_urn")
# What a change says besides the config itself.
_NOT_SPEC: Final = frozenset({"dataset_urn", "expected_version", "approval_ticket", "reason"})
# What an answer says besides. Whoever sends back what they have read, with a change, need not take it out.
_ANSWERED: Final = frozenset({*Dataset.__struct_fields__} - {*DatasetSpec.__struct_fields__})
_VERSION_LATEST: Final = "LATEST"


class DatasetBody(Struct, kw_only=True):
    """What is said of a dataset: the fields of its config, and on what grounds."""

    dataset_urn: Name = ""
    expected_version: Annotated[int, Meta(ge=ANY_VERSION)] | None = None
    approval_ticket: Name | None = None
    reason: Text = ""
    display_name: str = ""
    description: str = ""
    tier: str | int = "TIER_3"
    owner_team: str = "unowned"
    owner_email: str | None = None
    oncall_rotation: str | None = None
    source: dict[str, Any] | None = None
    schema_binding: dict[str, Any] | None = None
    contract_binding: dict[str, Any] | None = None
    slos: dict[str, Any] | None = None
    pii_policy: dict[str, Any] | None = None
    retention_days: int | None = None
    tags: dict[str, str] = {}
    # Only looked at: whoever would change it so is told how that is done.
    status: str | None = None


class Grounds(Struct, forbid_unknown_fields=True, kw_only=True):
    """On what grounds a dataset is changed."""

    expected_version: Annotated[int, Meta(ge=ANY_VERSION)] | None = None
    approval_ticket: Name | None = None
    reason: Text = ""


class Rollback(Grounds, forbid_unknown_fields=True, kw_only=True):
    """Which version a dataset is to be as again."""

    version: Annotated[int, Meta(ge=1)]


class AliasBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Another name of a dataset, as some producer calls it."""

    namespace: Name
    name: Name
    why: Text = "set by hand"


class ListQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which datasets, and which page of them."""

    tier: str | None = None
    owner_team: str | None = None
    status: DatasetStatus | None = None
    source_type: str | None = None
    search: str | None = None
    page_token: str | None = None
    page_size: PageSize = 50


class ShowQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which version; with `fallback_on_miss`, what to say of a dataset that is not there."""

    version: str = _VERSION_LATEST
    fallback_on_miss: FallbackOnMiss | None = None


class DiffQuery(Struct, forbid_unknown_fields=True, kw_only=True, rename={"from_version": "from", "to_version": "to"}):
    """Which two versions."""

    from_version: Annotated[int, Meta(ge=1)]
    to_version: Annotated[int, Meta(ge=1)]


class FeedQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Changes after which checkpoint; none: from the beginning."""

    after: str | None = None
    limit: PageSize = 100


class NameQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """The name that a producer uses."""

    namespace: Name
    name: Name


class UnnameQuery(NameQuery, forbid_unknown_fields=True, kw_only=True):
    """The name that is to stand for nothing any more, and why."""

    why: Text = "taken back by hand"


class DatasetPage(Struct, frozen=True):
    """Some datasets, and the token of the next page if there may be more."""

    items: list[Dataset]
    next_page_token: str | None = None


class VersionPage(Struct, frozen=True):
    """Some versions of a dataset, newest first."""

    items: list[Dataset]
    next_page_token: str | None = None


class Diff(Struct, frozen=True):
    """In what two versions differ."""

    dataset_urn: str
    changes: list[FieldChange]


class Aliases(Struct, frozen=True):
    """Other names of a dataset."""

    aliases: list[Alias]


class Feed(Struct, frozen=True):
    """Changes of datasets in their order, and where to go on."""

    changes: list[Change]
    checkpoint: str


def dataset_operations(health: HealthService) -> list[Operation]:
    """Return what can be asked of datasets."""
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
                "Find the dataset that a producer's name means",
                self.named,
                shown,
                query=NameQuery,
                rule=Rule(Permission.DATASET_READ, Reach.FOUND),
            ),
            Operation(
                "DELETE",
                "/dataset-names",
                "Let a producer's name mean no dataset any more",
                self.unalias,
                {200: Alias},
                query=UnnameQuery,
                rule=Rule(Permission.DATASET_WRITE, Reach.FOUND),
            ),
            Operation(
                "GET",
                "/dataset-export",
                "Read every dataset in chunks, deleted ones too",
                self.export,
                {200: Chunk},
                query=FeedQuery,
                rule=every,
            ),
            Operation("GET", _ONE, "Show a dataset", self.show, shown, query=ShowQuery, rule=_READ),
            Operation("PUT", _ONE, "Change a dataset", self.update, changed, body=DatasetBody, rule=_WRITE),
            Operation("DELETE", _ONE, "Mark a dataset as deleted", self.delete, changed, body=Grounds, rule=_WRITE),
            Operation(
                "POST",
                f"{_ONE}/deprecate",
                "Say that a dataset should not be used any more",
                self.deprecate,
                changed,
                body=Grounds,
                rule=_WRITE,
            ),
            Operation(
                "POST",
                f"{_ONE}/restore",
                "Take back a deletion or deprecation",
                self.restore,
                changed,
                body=Grounds,
                rule=_WRITE,
            ),
            Operation(
                "POST",
                f"{_ONE}/rollback",
                "Make a dataset as it was",
                self.rollback,
                changed,
                body=Rollback,
                rule=_WRITE,
            ),
            Operation(
                "GET",
                f"{_ONE}/versions",
                "List the versions of a dataset",
                self.versions,
                {200: VersionPage},
                query=PageQuery,
                rule=_READ,
            ),
            Operation(
                "GET", f"{_ONE}/diff", "Compare two versions", self.diff, {200: Diff}, query=DiffQuery, rule=_READ
            ),
            Operation("GET", f"{_ONE}/aliases", "List other names", self.aliases, {200: Aliases}, rule=_READ),
            Operation(
                "PUT",
                f"{_ONE}/aliases",
                "Give a dataset another name",
                self.alias,
                {200: Alias},
                body=AliasBody,
                rule=_WRITE,
            ),
        ]

    def ls(self, call: Call[None, ListQuery]) -> Answer:
        asked = call.query
        wanted = DatasetFilter(
            tier=None if asked.tier is None else tier(asked.tier),
            owner_team=asked.owner_team,
            status=asked.status,
            source_type=asked.source_type,
            search=asked.search,
        )
        page = self._registry.ls(wanted, limit=asked.page_size, cursor=asked.page_token)
        seen = [each for each in page.datasets if call.principal.reaches(each.dataset_urn)]
        return Answer(complete(DatasetPage(seen, page.cursor)))

    def create(self, call: Call[DatasetBody, NoQuery]) -> Answer:
        body = call.body
        if body.expected_version not in (None, 0, ANY_VERSION):
            raise VersionConflictError(
                f"dataset {body.dataset_urn}: expected_version {body.expected_version} is of one that exists; "
                "change that one with PUT, or leave it out"
            )
        made = self._registry.create(
            body.dataset_urn,
            _spec(call.content),
            actor=call.principal.name,
            ticket=body.approval_ticket,
            reason=body.reason,
        )
        location = f"{PREFIX}/datasets/{quote(made.dataset_urn, safe='')}"
        return Answer(complete(made), 201, {**etag(made.config_version), "location": location})

    def show(self, call: Call[None, ShowQuery]) -> Answer:
        urn, asked = call.path["dataset_urn"], call.query
        if asked.fallback_on_miss is not None:
            found = self._registry.lookup(urn, asked.fallback_on_miss)
            warning = {} if found.warning is None else {"warning": f'199 headgate "{_quoted(found.warning)}"'}
            return _shown(found.dataset, warning)
        if asked.version.upper() == _VERSION_LATEST:
            return _shown(self._registry.get(urn))
        number = asked.version.removeprefix("CONFIG#").removeprefix("v")
        if not (number.isascii() and number.isdecimal()) or len(number) > 9:
            raise InvalidPayloadError(f"version {asked.version[:20]!r}: a number, or {_VERSION_LATEST}")
        return _shown(self._registry.get(urn, version=int(number)))

    def update(self, call: Call[DatasetBody, NoQuery]) -> Answer:
        body, urn, spec = call.body, call.path["dataset_urn"], _spec(call.content)
        if body.dataset_urn not in ("", urn):
            raise InvalidPayloadError(f"dataset_urn {body.dataset_urn[:80]!r}: the path says {urn}")
        held = self._registry.find(urn) if body.status else None
        if held is not None and body.status not in (None, held.status):
            raise InvalidPayloadError(
                f"status {body.status[:20]!r}: it is {held.status}, and not changed so; deprecate, restore or delete it"
            )

        def change(version: int | None) -> Dataset:
            return self._registry.update(
                urn,
                spec,
                expected_version=ANY_VERSION if version is None else version,
                actor=call.principal.name,
                ticket=body.approval_ticket,
                reason=body.reason,
            )

        return _shown(matching(call.headers, body.expected_version, change))

    def delete(self, call: Call[Grounds, NoQuery]) -> Answer:
        return self._moved(call, "delete", call.path["dataset_urn"])

    def deprecate(self, call: Call[Grounds, NoQuery]) -> Answer:
        return self._moved(call, "deprecate", call.path["dataset_urn"])

    def restore(self, call: Call[Grounds, NoQuery]) -> Answer:
        # What is deleted is registered under no name: here the one is meant that it was registered under.
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
            # It is taken from another dataset, whose events go elsewhere from then on.
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
                f"{call.query.namespace} {call.query.name}: no dataset has this name; give one an alias"
            )
        require(call.principal, Permission.DATASET_READ, urn)
        return _shown(self._registry.get(urn))

    def unalias(self, call: Call[None, UnnameQuery]) -> Answer:
        asked = call.query
        held = self._registry.named(asked.namespace, asked.name)
        if held is not None:
            require(call.principal, Permission.DATASET_WRITE, held)
        return Answer(self._registry.unalias(asked.namespace, asked.name, why=asked.why, actor=call.principal.name))

    def export(self, call: Call[None, FeedQuery]) -> Answer:
        return Answer(complete(self._registry.export(call.query.after, limit=call.query.limit)))

    def feed(self, call: Call[None, FeedQuery]) -> Answer:
        found = self._registry.changes(call.query.after, limit=call.query.limit)
        return Answer(Feed(found.changes, found.checkpoint))


def _spec(content: bytes) -> DatasetSpec:
    """Return what is said of a dataset. Raises `InvalidPayloadError` naming the field that is wrong."""
    given = msgspec.json.decode(content.strip() or b"{}")
    return read_spec({name: value for name, value in given.items() if name not in _NOT_SPEC | _ANSWERED})


def _shown(dataset: Dataset, headers: dict[str, str] | None = None) -> Answer:
    return Answer(complete(dataset), headers={**etag(dataset.config_version), **(headers or {})})


def _quoted(text: str) -> str:
    return text.encode("ascii", "replace").decode().replace("\\", "").replace('"', "'")
