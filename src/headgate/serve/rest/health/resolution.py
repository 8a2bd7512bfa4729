"""Resolution API: resolve messages to datasets, explain it, and manage the rules."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from headgate import typed_decode
from headgate.auth import rules
from headgate.auth.principals import require
from headgate.auth.roles import Permission
from headgate.auth.rules import Reach
from headgate.errors import InvalidPayloadError, VersionConflictError
from headgate.health.model.signals import ANY_VERSION
from headgate.health.registry.degraded_lookup import FallbackOnMiss, Lookup
from headgate.health.resolution.resolver import Explanation, Resolution
from headgate.health.resolution.rules import Rule, RuleSpec
from headgate.health.service import HealthService
from headgate.serve.http.operations import Answer, Call, NoQuery, Operation, json_object
from headgate.serve.http.preconditions import etag, matching
from headgate.serve.rest.health.models import FullName, Name, PageSize, complete
from headgate.serve.rest.parameters import PageToken, TopicPattern

_OF_DATASET: Final = "/datasets/{dataset_urn}/resolution-rules"
_ONE: Final = "/resolution-rules/{topic_pattern}/{name}"
_EVERY: Final = rules.Rule(Permission.RULE_READ, Reach.ALL)
_WRITE_ALL: Final = rules.Rule(Permission.RULE_WRITE, Reach.ALL)


class Message(Struct, forbid_unknown_fields=True, kw_only=True):
    """A message to resolve."""

    topic: FullName
    payload: Any = None
    headers: dict[str, str] = {}
    schema_id: Name | None = None
    fallback_on_miss: FallbackOnMiss | None = None


class RulesQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Filter and page of rules."""

    topic_pattern: TopicPattern | None = None
    enabled: bool | None = None
    page_token: PageToken | None = None
    page_size: PageSize = 100


class RemoveRule(Struct, forbid_unknown_fields=True, kw_only=True):
    """Reason of the removal."""

    expected_version: Annotated[int, Meta(ge=ANY_VERSION)] | None = None
    reason: str = ""


class RulePage(Struct, frozen=True):
    """A page of rules."""

    items: list[Rule]
    next_page_token: str | None = None


class Resolved(Struct, frozen=True, kw_only=True):
    """The dataset of a message, with its configuration."""

    resolution: Resolution
    config: Lookup | None


def resolution_operations(health: HealthService) -> list[Operation]:
    """Return the operations on resolution."""
    return _Resolutions(health).operations()


class _Resolutions:
    def __init__(self, health: HealthService) -> None:
        self._resolver = health.resolver
        self._registry = health.registry
        self._registered = health.registered

    def operations(self) -> list[Operation]:
        body = {"application/json": RuleSpec}
        asks = rules.Rule(Permission.RULE_READ, Reach.FOUND)
        reads = rules.named(Permission.RULE_READ, "path.dataset_urn")
        writes = rules.named(Permission.RULE_WRITE, "path.dataset_urn")
        return [
            Operation(
                "POST",
                "/resolve",
                "Resolve a message to a dataset",
                self.resolve,
                {200: Resolved},
                body=Message,
                rule=asks,
            ),
            Operation(
                "POST",
                "/resolve/explain",
                "Explain the resolution of a message",
                self.explain,
                {200: Explanation},
                body=Message,
                rule=asks,
            ),
            Operation("GET", _OF_DATASET, "List rules of a dataset", self.of_dataset, {200: RulePage}, rule=reads),
            Operation(
                "POST",
                _OF_DATASET,
                "Add a rule to a dataset",
                self.add,
                {201: Rule},
                body_forms=body,
                rule=writes,
                repeatable=True,
            ),
            Operation(
                "GET", "/resolution-rules", "List rules", self.ls, {200: RulePage}, query=RulesQuery, rule=_EVERY
            ),
            Operation("GET", _ONE, "Show a rule", self.show, {200: Rule}, rule=_EVERY),
            Operation("PUT", _ONE, "Change a rule", self.update, {200: Rule}, body_forms=body, rule=_WRITE_ALL),
            Operation("DELETE", _ONE, "Remove a rule", self.remove, {204: None}, body=RemoveRule, rule=_WRITE_ALL),
        ]

    def resolve(self, call: Call[Message, NoQuery]) -> Answer:
        body = call.body
        found = self._resolver.resolve(body.topic, body.payload, body.headers, body.schema_id)
        require(call.principal, Permission.RULE_READ, found.dataset_urn)
        config = None
        if body.fallback_on_miss is not None:
            config = self._registry.lookup(found.dataset_urn, body.fallback_on_miss)
        return Answer(Resolved(resolution=found, config=config))

    def explain(self, call: Call[Message, NoQuery]) -> Answer:
        body = call.body
        explanation = self._resolver.explain(body.topic, body.payload, body.headers, body.schema_id)
        require(call.principal, Permission.RULE_READ, explanation.resolution.dataset_urn)
        return Answer(explanation)

    def of_dataset(self, call: Call[None, NoQuery]) -> Answer:
        return Answer(complete(RulePage(self._resolver.of_dataset(call.path["dataset_urn"]))))

    def add(self, call: Call[None, NoQuery]) -> Answer:
        given, urn = json_object(call.content), call.path["dataset_urn"]
        # The dataset is in the path and may be omitted in the body.
        if not given.get("conditions"):
            given.setdefault("dataset_urn", urn)
        spec = _spec(given)
        named = [self._registered(each) for _, each in spec.datasets()]
        if urn not in named:
            raise InvalidPayloadError(f"rule: it targets {', '.join(named) or 'no dataset'}, but the path has {urn}")
        for each in named:
            require(call.principal, Permission.RULE_WRITE, each)
        made = self._resolver.add(spec, actor=call.principal.name)
        return Answer(complete(made), 201, etag(made.version))

    def ls(self, call: Call[None, RulesQuery]) -> Answer:
        query = call.query
        found = self._resolver.ls(
            topic_pattern=query.topic_pattern,
            enabled=query.enabled,
            limit=query.page_size,
            cursor=query.page_token,
        )
        return Answer(complete(RulePage(found.rules, found.cursor)))

    def show(self, call: Call[None, NoQuery]) -> Answer:
        found = self._resolver.get(call.path["topic_pattern"], call.path["name"])
        return Answer(complete(found), headers=etag(found.version))

    def update(self, call: Call[None, NoQuery]) -> Answer:
        given = json_object(call.content)
        expected = given.pop("expected_version", None)
        if expected is not None and (type(expected) is not int or expected < ANY_VERSION):
            raise InvalidPayloadError("expected_version: send -1 for any, or the version you read")
        if expected == 0:
            raise VersionConflictError(f"rule {call.path['name'][:80]}: it exists, but expected_version is 0")
        for name in ("topic_pattern", "name"):
            if given.setdefault(name, call.path[name]) != call.path[name]:
                raise InvalidPayloadError(f"{name} {str(given[name])[:80]!r}: the path has {call.path[name][:80]}")
        spec = _spec(given)

        def change(version: int | None) -> Rule:
            wanted = ANY_VERSION if version is None else version
            return self._resolver.update(spec, expected_version=wanted, actor=call.principal.name)

        made = matching(call.headers, expected, change)
        return Answer(complete(made), headers=etag(made.version))

    def remove(self, call: Call[RemoveRule, NoQuery]) -> Answer:
        def change(version: int | None) -> None:
            self._resolver.remove(
                call.path["topic_pattern"],
                call.path["name"],
                expected_version=ANY_VERSION if version is None else version,
                actor=call.principal.name,
                reason=call.body.reason,
            )

        matching(call.headers, call.body.expected_version, change)
        return Answer(status=204)


def _spec(given: dict[str, Any]) -> RuleSpec:
    unknown = given.keys() - set(RuleSpec.__struct_fields__)
    if unknown:
        raise InvalidPayloadError(f"rule: {', '.join(sorted(unknown))[:80]} is not a field of a rule")
    if given.get("conditions") is None:
        given = {name: value for name, value in given.items() if name != "conditions"}
    try:
        return typed_decode.convert(given, RuleSpec)
    except msgspec.ValidationError as exc:
        raise InvalidPayloadError(f"rule: {exc}") from exc
