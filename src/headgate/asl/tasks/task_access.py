"""Task access: which AWS calls Tasks may make, by the allow-list of the settings. Nothing is allowed by default.

A rule is `service:action`, or `service:action:resource`, with `*` in the action and the resource. Tables, buckets,
queues and machines of Headgate itself are refused whatever the rules say, by whatever form of their names.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import unquote

from msgspec import Struct

from headgate.asl.expressions.scope import Json
from headgate.asl.tasks.integrations import Integration
from headgate.errors import SettingsError

_RULE: Final = re.compile(r"([a-z0-9-]{2,60}):([A-Za-z0-9*]{1,100})(?::(\S{1,1000}))?")
# Services that could give a machine more access than its rules, whatever they allow.
_REFUSED_SERVICES: Final = frozenset(
    {"account", "backup", "dax", "dynamodbstreams", "iam", "organizations", "s3control", "ssoadmin", "sts"}
)
_ALIASES: Final = {"cloudwatchevents": "events", "cloudwatchlogs": "logs", "eventbridge": "events", "sfn": "states"}
# The actions of DynamoDB whose tables are known from their parameters. PartiQL names tables within statements.
_TABLE_ACTIONS: Final = frozenset(
    {"batchGetItem", "batchWriteItem", "deleteItem", "describeTable", "getItem", "putItem", "query", "scan",
     "transactGetItems", "transactWriteItems", "updateItem"}
)  # fmt: skip
# The parameter that names what a service acts on; of several, the first that is given.
_RESOURCE_PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = {
    "athena": ("WorkGroup",),
    "batch": ("JobDefinition",),
    "ecs": ("TaskDefinition",),
    "firehose": ("DeliveryStreamName",),
    "glue": ("JobName", "Name"),
    "http": ("ApiEndpoint",),
    "kinesis": ("StreamName", "StreamARN"),
    "kms": ("KeyId",),
    "lambda": ("FunctionName",),
    "logs": ("LogGroupName",),
    "s3": ("Bucket",),
    "secretsmanager": ("SecretId", "Name"),
    "sns": ("TopicArn", "TargetArn", "Name"),
    "sqs": ("QueueUrl", "QueueName"),
    "ssm": ("Name",),
    "states": ("StateMachineArn", "ExecutionArn"),
}
_DEFAULTS: Final = {"athena": "primary"}
# Calls that carry data of users, in which the name of a table of Headgate means nothing.
_DATA_CALLS: Final = frozenset(
    {("events", "putEvents"), ("http", "invoke"), ("lambda", "invoke"), ("sns", "publish"), ("sns", "publishBatch"),
     ("sqs", "sendMessage"), ("sqs", "sendMessageBatch"), ("s3", "getObject"), ("s3", "headObject"),
     ("s3", "putObject"), ("s3", "deleteObject"), ("s3", "listObjectsV2"), ("s3", "listObjects")}
)  # fmt: skip
_NAME_CHARACTERS: Final = "[A-Za-z0-9_-]"
# The part of a URL before its path.
_ORIGIN: Final = re.compile(r"https?://[^/?#]*")


class AccessRule(Struct, frozen=True):
    """What one entry of the allow-list permits."""

    service: str
    action: str
    resource: str = "*"

    def allows_action(self, integration: Integration) -> bool:
        return self.service == service_name(integration) and _matches(self.action.lower(), integration.action.lower())

    def allows_resource(self, name: str) -> bool:
        if self.service == "http":
            return _matches_url(self.resource, name)
        # Of an object, its bucket may be named alone.
        forms = [name, name.partition("/")[0]] if self.service == "s3" else _forms(name)
        return any(_matches(self.resource, form) for form in forms)


class OwnNames(Struct, frozen=True):
    """The physical names of Headgate's own tables, buckets, queues and machines."""

    names: frozenset[str] = frozenset()

    @classmethod
    def of(cls, names: Iterable[str | None]) -> OwnNames:
        """Return these names, each also as the last part of its ARN or URL. Compared without case."""
        forms = (form for name in names if name for form in _forms(name.strip().lower()))
        return cls(frozenset(form for form in forms if form))

    def has(self, name: str) -> bool:
        """Whether a name, ARN or URL means one of them."""
        return any(part in self.names for part in _parts(name))

    def found_in(self, document: Json) -> str | None:
        """Return one of them that a text anywhere in a document mentions."""
        if not self.names:
            return None
        mention = _mention(self.names)
        return next((found[0] for text in _texts(document) if (found := mention.search(text)) is not None), None)


def parse_rule(text: str) -> AccessRule:
    """Parse an entry of tasks.aws. Raises `SettingsError`."""
    found = _RULE.fullmatch(text)
    if found is None:
        raise SettingsError(
            f"tasks.aws: {text[:80]!r}: write service:action or service:action:resource, such as s3:getObject:reports "
            "or dynamodb:*:orders"
        )
    service = _ALIASES.get(found[1], found[1])
    if service in _REFUSED_SERVICES:
        raise SettingsError(f"tasks.aws: {text[:80]!r}: no Task can call {service}; remove the entry")
    return AccessRule(service, found[2], found[3] or "*")


def service_name(integration: Integration) -> str:
    """Return the service as rules name it."""
    return _ALIASES.get(integration.service, integration.service)


class TaskAccess:
    """The allow-list of the settings. Safe to use from many threads."""

    def __init__(self, rules: Sequence[str] = (), own: OwnNames | None = None) -> None:
        """Raises `SettingsError` for an invalid rule, or for one that names something of Headgate itself."""
        self._rules = tuple(map(parse_rule, rules))
        self._own = own or OwnNames()
        for text, rule in zip(rules, self._rules, strict=True):
            if self._own.has(rule.resource):
                raise SettingsError(f"tasks.aws: {text[:80]!r}: {rule.resource} belongs to Headgate itself; remove it")

    @property
    def is_empty(self) -> bool:
        """Whether it allows nothing."""
        return not self._rules

    def names_service(self, service: str) -> bool:
        """Whether a rule is about a service."""
        return any(rule.service == service for rule in self._rules)

    def allows(self, integration: Integration, parameters: Json) -> bool:
        """Whether rules allow a call. A call that names something of Headgate itself is refused by `own_name`."""
        rules = [rule for rule in self._rules if rule.allows_action(integration)]
        if not rules or service_name(integration) in _REFUSED_SERVICES or not integration.is_supported:
            return False
        names = resources_of(integration, parameters)
        if names is None:
            # What it acts on is not known from its parameters.
            return any(rule.resource == "*" for rule in rules)
        return all(any(rule.allows_resource(name) for rule in rules) for name in names)

    def may_allow(self, integration: Integration, constants: Mapping[str, Json], *, is_complete: bool) -> bool:
        """Whether rules may allow a call before its parameters are computed.

        `constants` are the parameters known so far; `is_complete`: there are no others.
        """
        rules = [rule for rule in self._rules if rule.allows_action(integration)]
        if not rules or service_name(integration) in _REFUSED_SERVICES or not integration.is_supported:
            return False
        names = _RESOURCE_PARAMETERS.get(service_name(integration), ("TableName",))
        if is_complete or any(name in _pascal(constants) for name in names):
            return self.allows(integration, constants) and self.own_name(integration, constants) is None
        return True

    def own_name(self, integration: Integration, parameters: Json) -> str | None:
        """Return the table, bucket, queue or machine of Headgate that a call names; None: there is none."""
        for name in resources_of(integration, parameters) or ():
            # The key of an object may be any text.
            if self._own.has(name.partition("/")[0] if service_name(integration) == "s3" else name):
                return name
        if service_name(integration) == "dynamodb" or (service_name(integration), integration.action) in _DATA_CALLS:
            return None
        return self._own.found_in(parameters)

    def refusal(self, integration: Integration, parameters: Json) -> str:
        """Return why no rule allows a call, and the remedy."""
        names = resources_of(integration, parameters)
        on = f" on {', '.join(names)[:200]}" if names else ""
        rule = f"{service_name(integration)}:{integration.action}"
        example = f"{rule}:{_example(service_name(integration), names[0])[:80]}" if names else rule
        return (
            f'{integration.name}{on}: no setting allows this call; add "{example}" to tasks.aws, or map the resource '
            "in a resource map (--resources FILE)"
        )


def _example(service: str, name: str) -> str:
    if service in ("http", "s3"):
        return name if service == "http" else name.partition("/")[0]
    return _forms(name)[-1]


def resources_of(integration: Integration, parameters: Json) -> list[str] | None:
    """Return the names of what a call acts on; None: its parameters do not tell.

    Of DynamoDB, an action whose tables are not known from its parameters acts on a table without a name, which no rule
    allows.
    """
    given = _pascal(parameters)
    service = service_name(integration)
    if service == "dynamodb":
        return list(_tables(integration.action, given)) or [""]
    if service == "events" and integration.action == "putEvents":
        entries = given.get("Entries")
        return [str(_pascal(each).get("EventBusName", "default")) for each in entries] if entries else ["default"]
    names = [given[name] for name in _RESOURCE_PARAMETERS.get(service, ()) if given.get(name)]
    if not names:
        return [_DEFAULTS[service]] if service in _DEFAULTS else None
    found = [str(names[0])]
    if service == "s3":
        found = [_object(found[0], given.get("Key"))]
        if "CopySource" in given:
            found.append(_copied(given["CopySource"]))
    return found


def _tables(action: str, given: Mapping[str, Json]) -> Iterator[str]:
    if action not in _TABLE_ACTIONS:
        return
    if action in ("batchGetItem", "batchWriteItem"):
        yield from map(str, given.get("RequestItems") or {})
    elif action in ("transactGetItems", "transactWriteItems"):
        for item in given.get("TransactItems") or ():
            for request in _pascal(item).values():
                yield str(_pascal(request).get("TableName", ""))
    else:
        yield str(given.get("TableName", ""))


def _object(bucket: str, key: Json) -> str:
    # An access point may lead to any bucket: its name says nothing.
    if bucket.startswith("arn:") or bucket.endswith(("-s3alias", "--ol-s3", ".mrap")):
        return ""
    return f"{bucket}/{key}" if isinstance(key, str) and key else bucket


def _copied(source: Json) -> str:
    if isinstance(source, dict):
        given = _pascal(source)
        return _object(str(given.get("Bucket", "")), given.get("Key"))
    bucket, _, key = unquote(str(source)).lstrip("/").partition("/")
    return _object(bucket, key)


def _pascal(parameters: Json) -> dict[str, Json]:
    """Return parameters by their names in Pascal case; SDKs of some languages use lower camel case."""
    if not isinstance(parameters, Mapping):
        return {}
    return {str(name)[:1].upper() + str(name)[1:]: value for name, value in parameters.items()}


def _forms(name: str) -> list[str]:
    """Return a name as given, and the name at the end of an ARN or URL, without qualifier or revision."""
    if name.startswith(("http://", "https://")):
        return [name, re.split("[/?]", name.rstrip("/"))[-1]]
    if not name.startswith("arn:"):
        return [name, name.partition(":")[0]]
    # The sixth part is NAME, KIND:NAME:QUALIFIER or KIND/NAME/INDEX.
    resource = name.split(":", 5)[-1]
    kind, separator, rest = resource.partition("/" if "/" in resource else ":")
    return [name, re.split("[/:]", rest)[0] if separator else kind]


def _parts(name: str) -> Iterator[str]:
    """Return every part of a name that could be that of a table, bucket, queue or machine, in lower case."""
    text = name.strip().lower()
    yield text
    yield from (part.strip() for part in re.split(r"[:/?#\s]", text) if part.strip())


@functools.lru_cache(maxsize=16)
def _mention(names: frozenset[str]) -> re.Pattern[str]:
    """Return the pattern of one of these names in a text, also within a host or after a catalogue and a database."""
    listed = "|".join(map(re.escape, sorted(names)))
    return re.compile(f"(?<!{_NAME_CHARACTERS})(?:{listed})(?!{_NAME_CHARACTERS})", re.IGNORECASE)


def _texts(document: Json) -> Iterator[str]:
    pending = [document]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            pending.extend(value.keys())
            pending.extend(value.values())
        elif isinstance(value, list | tuple):
            pending.extend(value)


@functools.lru_cache(maxsize=1024)
def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def _matches(pattern: str, text: str) -> bool:
    # An empty name is that of something unknown, which no pattern means.
    return bool(text) and _pattern(pattern).fullmatch(text) is not None


def _matches_url(pattern: str, url: str) -> bool:
    """Whether a URL matches; a `*` in the scheme or host of a pattern matches no path, query or fragment."""
    if pattern == "*":
        return bool(url)
    wanted, given = _ORIGIN.match(pattern), _ORIGIN.match(url)
    if wanted is None or given is None:
        return False
    path = pattern[wanted.end() :]
    if not path and pattern.endswith("*"):
        path = "*"
    return _matches(wanted[0], given[0]) and _pattern(path).fullmatch(url[given.end() :]) is not None
