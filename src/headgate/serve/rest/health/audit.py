"""Audit and API key API: list and verify the audit log, manage API keys."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from headgate.auth.api_keys import ApiKey, ApiKeys
from headgate.auth.roles import Permission, Role, role
from headgate.auth.rules import Reach, Rule
from headgate.durable.model.duration import seconds
from headgate.errors import NotFoundError
from headgate.health.audit.hash_chain import Head, Record
from headgate.health.audit.verify import Report
from headgate.health.model import timestamps, urns
from headgate.health.service import HealthService
from headgate.serve.http.operations import Answer, Call, NoQuery, Operation
from headgate.serve.http.problem import Problem
from headgate.serve.rest.health.models import FullName, Name, PageSize
from headgate.serve.rest.parameters import Duration, PageToken, Timestamp

_AUDIT: Final = Rule(Permission.AUDIT_READ, Reach.ALL)
# Reopening a tampered chain is for administrators.
_MENDS: Final = Rule(Permission.KEY_MANAGE, Reach.ALL)
_KEYS: Final = Rule(Permission.KEY_MANAGE, Reach.NONE)
RoleName = Annotated[str, Meta(extra_json_schema={"enum": [each.value for each in Role]})]


class AuditQuery(Struct, forbid_unknown_fields=True, kw_only=True, rename={"since": "from", "until": "to"}):
    """Filter of audit entries by actor, entity and time, and page."""

    entity: FullName | None = None
    actor: Name | None = None
    since: Timestamp | None = None
    until: Timestamp | None = None
    page_token: PageToken | None = None
    page_size: PageSize = 50


class Anchors(Struct, forbid_unknown_fields=True, kw_only=True):
    """Chain heads that were read earlier and stored externally."""

    heads: Annotated[list[Head], Meta(max_length=10_000)] = []


class Reopen(Struct, forbid_unknown_fields=True, kw_only=True):
    """Reason for reopening a tampered chain."""

    reason: Annotated[str, Meta(min_length=1, max_length=2000)]


class NewKey(Struct, forbid_unknown_fields=True, kw_only=True):
    """Owner, roles and scope of a new key."""

    principal: Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 200})]
    roles: Annotated[list[RoleName], Meta(min_length=1)]
    scopes: list[str] = msgspec.field(default_factory=lambda: ["*"])
    expires_in: Duration | None = None
    note: Annotated[str, Meta(extra_json_schema={"maxLength": 1000})] = ""


class RotateKey(Struct, forbid_unknown_fields=True, kw_only=True):
    """Overlap during which the old key stays valid, and the reason."""

    overlap: Duration = 0.0
    reason: Annotated[str, Meta(extra_json_schema={"maxLength": 2000})] = ""


class KeyQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Filter and page of keys."""

    principal: FullName | None = None
    page_token: PageToken | None = None
    page_size: PageSize = 100


class AuditPage(Struct, frozen=True):
    """A page of audit entries, newest first."""

    items: list[Record]
    next_page_token: str | None = None


class HeadList(Struct, frozen=True):
    """The head of each chain."""

    heads: list[Head]


class KeyPage(Struct, frozen=True):
    """A page of API keys."""

    items: list[ApiKey]
    next_page_token: str | None = None


class IssuedView(Struct, frozen=True):
    """A new key with its secret, which is never shown again."""

    key: ApiKey
    text: str


def audit_operations(health: HealthService, keys: ApiKeys) -> list[Operation]:
    """Return the operations on the audit and of API keys."""
    return [*_Audits(health).operations(), *_Keys(keys).operations()]


class _Audits:
    def __init__(self, health: HealthService) -> None:
        self._audit = health.audit
        self._ever = health.registry.ever

    def operations(self) -> list[Operation]:
        return [
            Operation("GET", "/audit", "List changes", self.ls, {200: AuditPage}, query=AuditQuery, rule=_AUDIT),
            Operation(
                "GET",
                "/audit/verify",
                "Verify the audit log",
                self.verify,
                {200: Report},
                rule=_AUDIT,
            ),
            Operation(
                "POST",
                "/audit/verify",
                "Verify the audit log against stored chain heads",
                self.verify_from,
                {200: Report},
                body=Anchors,
                rule=_AUDIT,
            ),
            Operation("GET", "/audit/heads", "Show the chain heads", self.heads, {200: HeadList}, rule=_AUDIT),
            Operation(
                "POST",
                "/audit/chains/{chain}/reopen",
                "Reopen a tampered chain",
                self.reopen,
                {200: HeadList, 409: Problem},
                body=Reopen,
                rule=_MENDS,
            ),
        ]

    def ls(self, call: Call[None, AuditQuery]) -> Answer:
        query = call.query
        page = self._audit.ls(
            entity=None if query.entity is None else self._named(query.entity),
            actor=query.actor,
            since=None if query.since is None else timestamps.moment(query.since, field="from"),
            until=None if query.until is None else timestamps.moment(query.until, field="to"),
            limit=query.page_size,
            cursor=query.page_token,
        )
        return Answer(AuditPage(list(page.entries), page.cursor))

    def _named(self, entity: str) -> str:
        """Return the audit name of an entity: a dataset by the name it is or was registered under."""
        found = self._ever(entity) if urns.is_dataset_urn(entity) else None
        return entity if found is None else found.dataset_urn

    def verify(self, _call: Call[None, NoQuery]) -> Answer:
        return Answer(self._audit.verify())

    def verify_from(self, call: Call[Anchors, NoQuery]) -> Answer:
        return Answer(self._audit.verify(call.body.heads))

    def heads(self, _call: Call[None, NoQuery]) -> Answer:
        return Answer(HeadList(self._audit.heads()))

    def reopen(self, call: Call[Reopen, NoQuery]) -> Answer:
        chain = call.path["chain"]
        if not (chain.isascii() and chain.isdecimal()) or len(chain) > 4:
            raise NotFoundError(f"audit chain {chain[:20]}: chains are numbers; 'headgate audit verify' names them")
        head = self._audit.reopen(int(chain), actor=call.principal.name, reason=call.body.reason)
        return Answer(HeadList([head]))


class _Keys:
    def __init__(self, keys: ApiKeys) -> None:
        self._keys = keys

    def operations(self) -> list[Operation]:
        one = "/api-keys/{key_id}"
        return [
            Operation("GET", "/api-keys", "List API keys", self.ls, {200: KeyPage}, query=KeyQuery, rule=_KEYS),
            Operation("POST", "/api-keys", "Create an API key", self.issue, {201: IssuedView}, body=NewKey, rule=_KEYS),
            Operation("GET", one, "Show an API key", self.show, {200: ApiKey}, rule=_KEYS),
            Operation(
                "POST",
                f"{one}/rotate",
                "Rotate an API key",
                self.rotate,
                {201: IssuedView},
                body=RotateKey,
                rule=_KEYS,
            ),
            Operation("DELETE", one, "Revoke an API key", self.revoke, {200: ApiKey}, rule=_KEYS),
        ]

    def ls(self, call: Call[None, KeyQuery]) -> Answer:
        page = self._keys.ls(call.query.principal, limit=call.query.page_size, cursor=call.query.page_token)
        return Answer(KeyPage(list(page.keys), page.cursor))

    def issue(self, call: Call[NewKey, NoQuery]) -> Answer:
        body = call.body
        made = self._keys.issue(
            body.principal,
            [role(each) for each in body.roles],
            body.scopes,
            issuer=call.principal,
            expires_seconds=None if body.expires_in is None else int(seconds(body.expires_in, name="expires_in")),
            note=body.note,
        )
        return Answer(IssuedView(made.about, made.key.reveal()), 201, {"cache-control": "no-store"})

    def show(self, call: Call[None, NoQuery]) -> Answer:
        return Answer(self._keys.show(call.path["key_id"]))

    def rotate(self, call: Call[RotateKey, NoQuery]) -> Answer:
        overlap = int(seconds(call.body.overlap, name="overlap"))
        made = self._keys.rotate(
            call.path["key_id"], issuer=call.principal, overlap_seconds=overlap, reason=call.body.reason
        )
        return Answer(IssuedView(made.about, made.key.reveal()), 201, {"cache-control": "no-store"})

    def revoke(self, call: Call[None, NoQuery]) -> Answer:
        return Answer(self._keys.revoke(call.path["key_id"], issuer=call.principal))
