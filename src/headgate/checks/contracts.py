"""Data contracts: an ODCS v3 document becomes the config and the checks of datasets. Pure functions.

Every field of the contract is mapped or listed: `unmapped` names what has no counterpart, by its path and with the
reason, so that nothing is dropped silently.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from headgate.checks.definitions import ID
from headgate.checks.queries import COLUMN, TABLE
from headgate.errors import DefinitionError

API_VERSIONS: Final = ("v3.0.0", "v3.0.1", "v3.0.2", "v3.1.0")
_OPERATORS: Final = {
    "mustBe": "equals",
    "mustNotBe": "not_equals",
    "mustBeGreaterThan": "gt",
    "mustBeGreaterOrEqualTo": "gte",
    "mustBeLessThan": "lt",
    "mustBeLessOrEqualTo": "lte",
    "mustBeBetween": "between",
}
# Units of ODCS in seconds.
_UNITS: Final = {
    "s": 1, "second": 1, "seconds": 1, "m": 60, "min": 60, "minute": 60, "minutes": 60, "h": 3_600, "hr": 3_600,
    "hour": 3_600, "hours": 3_600, "d": 86_400, "day": 86_400, "days": 86_400, "w": 604_800, "week": 604_800,
    "weeks": 604_800, "y": 31_536_000, "yr": 31_536_000, "year": 31_536_000, "years": 31_536_000,
}  # fmt: skip
_FRESHNESS: Final = frozenset({"latency", "ly", "freshness"})
_RETENTION: Final = frozenset({"retention", "re"})
_FREQUENCY: Final = frozenset({"frequency", "fy"})
_WARNINGS: Final = frozenset({"warning", "warn", "low", "info", "minor"})
# Options of a logical type that are JSON Schema keywords of field constraints.
_CONSTRAINTS: Final = frozenset(
    {"minLength", "maxLength", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
     "format", "minItems", "maxItems", "uniqueItems"}
)  # fmt: skip
_JSON_TYPES: Final = {"string", "number", "integer", "boolean", "object", "array"}
_SCHEMES: Final = {
    "postgres": "postgresql+psycopg", "postgresql": "postgresql+psycopg", "redshift": "redshift+psycopg2",
    "mysql": "mysql+pymysql", "mariadb": "mariadb+pymysql",
}  # fmt: skip
_NOT_ID: Final = re.compile(r"[^a-z0-9._-]+")
_READ_TOP: Final = frozenset(
    {"apiVersion", "kind", "id", "version", "name", "description", "domain", "schema", "servers", "team", "support",
     "slaProperties", "slaDefaultElement", "tags", "status", "dataProduct", "tenant"}
)  # fmt: skip


_READ_PROPERTY: Final = {
    "name", "logicalType", "logicalTypeOptions", "physicalType", "required", "unique", "primaryKey", "quality",
}  # fmt: skip


class Unmapped(Struct, frozen=True):
    """A part of a contract that was not taken over, and why."""

    path: str
    reason: str


class ImportedDataset(Struct, frozen=True, kw_only=True):
    """The config and the check file of one object of a contract's schema."""

    dataset_urn: str
    config: dict[str, Any]
    checks: dict[str, Any]


class ImportedContract(Struct, frozen=True, kw_only=True):
    """What a contract became."""

    contract_id: str
    datasets: tuple[ImportedDataset, ...]
    unmapped: tuple[Unmapped, ...]


def import_contract(document: Any, *, dataset: str | None = None, server: str | None = None) -> ImportedContract:  # noqa: ANN401 - a parsed file
    """Return the datasets of a contract. Raises `DefinitionError` for a document that is no ODCS v3 contract.

    `dataset` is the URN of a contract with one object; by default it is urn:dp:DOMAIN:OBJECT. `server` names the server
    that checks read; by default it is the first.
    """
    if not isinstance(document, dict) or document.get("kind") != "DataContract":
        raise DefinitionError("kind: it is not DataContract; give an ODCS v3 contract")
    version = document.get("apiVersion")
    if version not in API_VERSIONS:
        raise DefinitionError(f"apiVersion {version!r} is not read; use one of {', '.join(API_VERSIONS)}")
    lacking = [name for name in ("id", "version", "status") if not document.get(name)]
    if lacking:
        raise DefinitionError(f"{lacking[0]} is missing; ODCS requires it")
    objects = [each for each in _list(document.get("schema")) if isinstance(each, dict) and each.get("name")]
    if not objects:
        raise DefinitionError("schema: it has no object with a name; there is no dataset to import")
    if dataset is not None and len(objects) > 1:
        raise DefinitionError(f"schema has {len(objects)} objects; leave --dataset out, or split the contract")
    return _Import(document, dataset, server).result(objects)


class _Import:
    """One import, with what it could not map."""

    def __init__(self, document: dict[str, Any], dataset: str | None, server: str | None) -> None:
        self._document = document
        self._dataset = dataset
        self._server = server
        self._unmapped: list[Unmapped] = []
        self._read_slas: set[int] = set()

    def result(self, objects: Sequence[dict[str, Any]]) -> ImportedContract:
        document = self._document
        for name in sorted(document.keys() - _READ_TOP):
            self._skip(name, "there is no counterpart")
        shared = self._shared_config()
        source = self._source()
        datasets = tuple(self._object(each, index, shared, source) for index, each in enumerate(objects))
        for index in sorted(set(range(len(_list(document.get("slaProperties"))))) - self._read_slas):
            self._skip(f"slaProperties[{index}]", "its element is no object of the schema")
        return ImportedContract(
            contract_id=f"{document['id']}:{document['version']}", datasets=datasets, unmapped=tuple(self._unmapped)
        )

    # The parts that all objects share.

    def _shared_config(self) -> dict[str, Any]:
        document = self._document
        config: dict[str, Any] = {}
        config |= self._owner()
        tags = {
            f"odcs_{name}": str(document[name])
            for name in ("domain", "dataProduct", "tenant", "status")
            if document.get(name)
        }
        tags |= {f"tag_{_slug(str(tag))}": "true" for tag in _list(document.get("tags"))}
        if tags:
            config["tags"] = tags
        for index, support in enumerate(_list(document.get("support"))):
            if isinstance(support, dict) and "oncall_rotation" not in config and support.get("channel"):
                config["oncall_rotation"] = str(support["channel"])
                self._skip_others(support, {"channel"}, f"support[{index}]", "only the channel is kept")
            else:
                self._skip(f"support[{index}]", "a dataset has one on-call rotation")
        return config

    def _owner(self) -> dict[str, Any]:
        team = self._document.get("team")
        if isinstance(team, dict):
            self._skip_others(team, {"name", "members"}, "team", "only the name and an owner's address are kept")
            members, name = _list(team.get("members")), team.get("name")
            place = "team.members"
        else:
            members, name, place = _list(team), None, "team"
        config: dict[str, Any] = {} if not name else {"owner_team": str(name)}
        for index, member in enumerate(members):
            given = member if isinstance(member, dict) else {}
            username = str(given.get("username", ""))
            is_owner = "owner" in str(given.get("role", "")).lower() or "steward" in str(given.get("role", "")).lower()
            if is_owner and "@" in username and "owner_email" not in config:
                config["owner_email"] = username
            elif is_owner and username and "owner_team" not in config:
                config["owner_team"] = username
            else:
                self._skip(f"{place}[{index}]", "a dataset has one owner team and one address")
        return config

    def _source(self) -> dict[str, Any] | None:
        """Return the SQL source of the chosen server, without its table."""
        servers = [each for each in _list(self._document.get("servers")) if isinstance(each, dict)]
        chosen: tuple[int, dict[str, Any]] | None = None
        for index, each in enumerate(servers):
            if chosen is None and self._server in (None, each.get("server")):
                chosen = index, each
            else:
                self._skip(f"servers[{index}]", "checks read one server; name another with --server")
        if self._server is not None and chosen is None:
            names = ", ".join(str(each.get("server")) for each in servers) or "none"
            raise DefinitionError(f"servers: there is no {self._server!r}, but {names}")
        if chosen is None:
            return None
        index, given = chosen
        url = _url(given)
        if url is None:
            self._skip(f"servers[{index}]", f"a server of type {given.get('type')!r} has no URL that checks can read")
            return None
        used = {"server", "type", "host", "port", "database", "schema", "environment"}
        self._skip_others(given, used, f"servers[{index}]", "there is no counterpart")
        return {"url": url, "schema": given.get("schema")}

    # One object of the schema.

    def _object(
        self, given: dict[str, Any], index: int, shared: dict[str, Any], source: dict[str, Any] | None
    ) -> ImportedDataset:
        document, place = self._document, f"schema[{index}]"
        name = str(given["name"])
        table = str(given.get("physicalName") or name)
        if source is not None and source["schema"] and "." not in table:
            table = f"{source['schema']}.{table}"
        urn = self._dataset or f"urn:dp:{_slug(str(document.get('domain') or 'contract'))}:{_slug(name)}"
        properties = [each for each in _list(given.get("properties")) if isinstance(each, dict) and each.get("name")]
        checks = list(self._checks(given, properties, place, table))
        slos, retention_days = self._slas(name, table, checks)
        description = given.get("description") or _description(document.get("description"))
        constraints = self._constraints(properties, place)
        config: dict[str, Any] = {
            **shared,
            "display_name": str(document.get("name") or name) if index == 0 and len(document["schema"]) == 1 else name,
            "contract_binding": {
                "contract_id": f"{document['id']}:{document['version']}",
                "required_fields": [str(each["name"]) for each in properties if each.get("required")],
                "field_constraints": constraints,
            },
        }
        if description:
            config["description"] = str(description)[:1024]
        if slos:
            config["slos"] = slos
        if retention_days is not None:
            config["retention_days"] = retention_days
        self._skip_others(
            given, {"name", "physicalName", "physicalType", "logicalType", "description", "properties", "quality"},
            place, "there is no counterpart",
        )  # fmt: skip
        return ImportedDataset(dataset_urn=urn, config=config, checks=self._check_file(urn, table, source, checks))

    def _check_file(
        self, urn: str, table: str, source: dict[str, Any] | None, checks: list[dict[str, Any]]
    ) -> dict[str, Any]:
        file: dict[str, Any] = {"dataset": urn}
        if source is not None and TABLE.fullmatch(table):
            file["source"] = {"sql": {"url": source["url"], "table": table}}
        elif checks:
            reason = "no server that checks can read" if source is None else f"{table!r} is no name of a table"
            for check in checks:
                self._skip(check.pop("_path"), f"its check is left out: {reason}")
            checks = []
        for check in checks:
            check.pop("_path", None)
        file |= {"every": "1h", "checks": _unique_ids(checks)}
        return file

    def _constraints(self, properties: Sequence[dict[str, Any]], place: str) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for index, each in enumerate(properties):
            path = f"{place}.properties[{index}]"
            constraint: dict[str, Any] = {}
            if each.get("logicalType") in _JSON_TYPES:
                constraint["type"] = each["logicalType"]
            options = each.get("logicalTypeOptions")
            for name, value in (options if isinstance(options, dict) else {}).items():
                if name in _CONSTRAINTS:
                    constraint[name] = value
                else:
                    self._skip(f"{path}.logicalTypeOptions.{name}", "it is no keyword of field constraints")
            if constraint:
                found[str(each["name"])] = constraint
            self._skip_others(each, _READ_PROPERTY, path, "there is no counterpart")
        return found

    def _checks(
        self, given: dict[str, Any], properties: Sequence[dict[str, Any]], place: str, table: str
    ) -> Iterator[dict[str, Any]]:
        if properties:
            columns = {str(each["name"]): str(each.get("physicalType") or "") for each in properties}
            yield {"_path": f"{place}.properties", "id": "schema", "schema": {"columns": columns}}
        keys = [str(each["name"]) for each in properties if each.get("primaryKey")]
        if keys and all(map(COLUMN.fullmatch, keys)):
            yield {"_path": f"{place}.properties", "id": "primary-key", "unique": {"columns": keys}}
        for index, each in enumerate(properties):
            name, path = str(each["name"]), f"{place}.properties[{index}]"
            if not COLUMN.fullmatch(name):
                self._skip(path, f"{name!r} is no name of a column; its checks are left out")
                continue
            if each.get("unique") and not each.get("primaryKey"):
                yield {"_path": f"{path}.unique", "id": f"unique-{_slug(name)}", "unique": {"columns": [name]}}
            for number, rule in enumerate(_list(each.get("quality"))):
                yield from self._quality(rule, f"{path}.quality[{number}]", table, name)
        for number, rule in enumerate(_list(given.get("quality"))):
            yield from self._quality(rule, f"{place}.quality[{number}]", table, None)

    def _quality(self, rule: Any, path: str, table: str, column: str | None) -> Iterator[dict[str, Any]]:  # noqa: ANN401
        """Yield the check of a quality rule, or list why there is none."""
        if not isinstance(rule, dict):
            self._skip(path, "it is no mapping")
            return
        kind = rule.get("type", "library")
        if kind in ("text", "custom"):
            self._skip(
                path, "a rule in words has no check" if kind == "text" else "the engine of a custom rule is not run"
            )
            return
        query = self._query(rule, path, table, column)
        operators = [name for name in (*_OPERATORS, "mustNotBeBetween") if name in rule]
        if query is None:
            return
        if len(operators) != 1 or operators[0] not in _OPERATORS:
            self._skip(path, f"{' and '.join(operators) or 'no operator'}: a check has one comparison")
            return
        metric = str(rule.get("metric") or rule.get("rule") or "sql")
        check: dict[str, Any] = {
            "_path": path,
            "id": _slug(str(rule.get("name") or f"{metric}-{column}" if column else rule.get("name") or metric)),
            "sql": {"query": query, "check": _OPERATORS[operators[0]], "value": rule[operators[0]]},
        }
        if rule.get("description"):
            check["description"] = str(rule["description"])
        if str(rule.get("severity", "")).lower() in _WARNINGS:
            check["severity"] = "warning"
        used = {"type", "metric", "rule", "name", "description", "severity", "unit", "arguments", "query", *_OPERATORS}
        self._skip_others(rule, used, path, "there is no counterpart; checks run at the interval of their file")
        yield check

    def _query(self, rule: Mapping[str, Any], path: str, table: str, column: str | None) -> str | None:
        if rule.get("type") == "sql" or "query" in rule:
            query = str(rule.get("query", ""))
            for name, value in (("object", table), ("table", table), ("property", column), ("column", column)):
                if value is not None:
                    query = query.replace(f"${{{name}}}", value).replace(f"{{{name}}}", value)
            return query
        metric = rule.get("metric") or rule.get("rule")
        given = rule.get("arguments")
        arguments: dict[str, Any] = given if isinstance(given, dict) else {}
        if metric == "rowCount":
            return f"SELECT count(*) FROM {table}"
        columns = [column] if column else [str(each) for each in _list(arguments.get("properties"))]
        if not columns or not all(map(COLUMN.fullmatch, columns)):
            self._skip(path, f"metric {metric}: it names no column")
            return None
        is_percent = str(rule.get("unit", "rows")).lower() == "percent"
        if metric == "duplicateValues":
            keys = ", ".join(columns)
            distinct = f"(SELECT count(*) FROM (SELECT DISTINCT {keys} FROM {table}) AS keys)"
            share = f"100.0 * (count(*) - {distinct}) / nullif(count(*), 0)"
            return f"SELECT {share if is_percent else f'count(*) - {distinct}'} FROM {table}"
        condition = _condition(str(metric), columns[0], arguments)
        if condition is None:
            self._skip(path, f"metric {metric} with these arguments has no query")
            return None
        if is_percent:
            return f"SELECT 100.0 * avg(CASE WHEN {condition} THEN 1.0 ELSE 0.0 END) FROM {table}"
        return f"SELECT count(*) FROM {table} WHERE {condition}"

    def _slas(self, name: str, table: str, checks: list[dict[str, Any]]) -> tuple[dict[str, Any], int | None]:
        slos: dict[str, Any] = {}
        retention_days: int | None = None
        for index, sla in enumerate(_list(self._document.get("slaProperties"))):
            path = f"slaProperties[{index}]"
            given = sla if isinstance(sla, dict) else {}
            kind = str(given.get("property", "")).lower()
            element = str(given.get("element") or self._document.get("slaDefaultElement") or "")
            owner, _, column = element.partition(".")
            if element and owner not in (name, table, table.rpartition(".")[2]):
                continue
            self._read_slas.add(index)
            seconds = _seconds(given.get("value"), given.get("unit"))
            if kind in _FRESHNESS and seconds is not None:
                slos["freshness"] = {"max_delay_seconds": seconds}
                if column and COLUMN.fullmatch(column):
                    checks.append(
                        {"_path": path, "id": "latency", "freshness": {"column": column, "max_age": f"{seconds}s"}}
                    )
            elif kind in _RETENTION and seconds is not None:
                retention_days = max(1, seconds // 86_400)
            elif kind in _FREQUENCY:
                self._skip(path, "a frequency is a schedule of the pipeline that writes the dataset")
            else:
                self._skip(path, f"property {given.get('property')!r} has no counterpart")
        return slos, retention_days

    def _skip(self, path: str, reason: str) -> None:
        self._unmapped.append(Unmapped(path, reason))

    def _skip_others(self, given: Mapping[str, Any], used: set[str], path: str, reason: str) -> None:
        for name in sorted(given.keys() - used):
            if given[name] not in (None, [], {}, ""):
                self._skip(f"{path}.{name}", reason)


def _condition(metric: str, column: str, arguments: Mapping[str, Any]) -> str | None:
    """Return the SQL condition of the rows that a metric counts, or None."""
    if metric == "nullValues":
        return f"{column} IS NULL"
    if metric == "missingValues":
        given = _list(arguments.get("missingValues"))
        values = [_text(each) for each in given if each is not None]
        return f"{column} IS NULL" + (f" OR {column} IN ({', '.join(values)})" if values else "")
    if metric == "invalidValues" and _list(arguments.get("validValues")):
        values = [_text(each) for each in _list(arguments.get("validValues"))]
        return f"{column} IS NOT NULL AND {column} NOT IN ({', '.join(values)})"
    return None


def _url(server: Mapping[str, Any]) -> str | None:
    kind = str(server.get("type", "")).lower()
    database = server.get("database")
    if kind in ("duckdb", "sqlite") and database:
        return f"{kind}:///{database}"
    if kind in _SCHEMES and server.get("host") and database:
        port = f":{server['port']}" if server.get("port") else ""
        return f"{_SCHEMES[kind]}://{server['host']}{port}/{database}"
    return None


def _seconds(value: object, unit: object) -> int | None:
    size = _UNITS.get(str(unit or "d").lower())
    return (
        None if size is None or isinstance(value, bool) or not isinstance(value, int | float) else round(value * size)
    )


def _text(value: object) -> str:
    """Return a value as an SQL literal."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return "'" + str(value).replace("'", "''") + "'"


def _description(given: object) -> str:
    if isinstance(given, dict):
        return " ".join(str(given[name]) for name in ("purpose", "usage", "limitations") if given.get(name))
    return str(given or "")


def _slug(text: str) -> str:
    """Return a text in the form of an id."""
    found = _NOT_ID.sub("-", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", text).lower()).strip("-._")[:60]
    return found if ID.fullmatch(found) else f"c-{found or 'x'}"


def _unique_ids(checks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    seen: dict[str, int] = {}
    found = []
    for check in checks:
        name = str(check["id"])
        seen[name] = seen.get(name, 0) + 1
        found.append(check if seen[name] == 1 else {**check, "id": f"{name}-{seen[name]}"})
    return found


def _list(given: object) -> list[Any]:
    return given if isinstance(given, list) else []
