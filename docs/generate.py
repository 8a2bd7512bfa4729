"""Generates docs/reference from the code: settings, tables, errors, commands, access, triggers. Run by `make docs`.

A test compares the pages with the code.
"""

from __future__ import annotations

import runpy
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import msgspec
import typer.main

from headgate import embedded_metrics, errors
from headgate.auth.roles import MATRIX, Permission, Role, roles_with
from headgate.auth.rules import Rule
from headgate.checks.metrics import SERIES as CHECK_SERIES
from headgate.cli.main import load
from headgate.clock import SystemClock
from headgate.durable.model import duration
from headgate.durable.model.duration import Seconds
from headgate.durable.sdk.app import App
from headgate.exit_codes import ExitCode
from headgate.metric_series import Series
from headgate.notify import messages as _messages
from headgate.notify.configuration import CHANNEL_SPECS, NotifyConfig
from headgate.notify.decisions import EscalationStep
from headgate.notify.routes import Route
from headgate.pipelines.authoring.json_schema import DESCRIPTIONS as PIPELINE_FIELDS
from headgate.pipelines.authoring.json_schema import SchemaKind, json_schema
from headgate.pipelines.definition import problems as _problems
from headgate.pipelines.definition.model import TriggerSpec
from headgate.serve.components import open_components
from headgate.serve.execution_metrics import (
    COUNTED_MAX,
    COUNTED_MAX_DYNAMODB,
    PROCESS_SERIES,
    REFRESHED_EVERY_SECONDS,
    STORE_SERIES,
)
from headgate.serve.fanout_metrics import SERIES as FANOUT_SERIES
from headgate.serve.graphql.schema import RULES
from headgate.serve.http.audited_operations import Unaudited
from headgate.serve.http.operations import Operation, OperationHandler
from headgate.serve.incident_metrics import INCIDENTS_EVERY_SECONDS
from headgate.serve.incident_metrics import SERIES as INCIDENT_SERIES
from headgate.serve.pipeline_metrics import SERIES
from headgate.serve.rest.audited_actions import AUDITED
from headgate.serve.routes import rest_routes
from headgate.serve.rpc.methods import Method
from headgate.serve.rpc.statestore.service import statestore_methods
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.serve.runtime.watch_hub import WatchHub
from headgate.settings import Settings, describe
from headgate.store.catalogue.retention import ending_of
from headgate.store.catalogue.tables import ALL_TABLES
from headgate.store.model.schema import Shards, Table
from headgate.telemetry import Tracing
from headgate.triggers.field_descriptions import DESCRIPTIONS as FIELD_DESCRIPTIONS
from headgate.triggers.kinds import BUILT_IN

FOLDER = Path(__file__).parent / "reference"
NOTE = "<!-- Written by docs/generate.py; run `make docs` after changing the code. -->\n"


def settings_page() -> str:
    rows = [
        f"| `{row.key}` | `{row.variable}` | {_cell(row.allowed)} | {_code(row.default)} | {_cell(row.description)} |"
        for row in describe()
    ]
    return "\n".join(
        [
            "# Settings",
            "",
            NOTE,
            "Later sources take precedence: the file `headgate.toml` (or that of `--config` or `HEADGATE_CONFIG`),",
            "then the environment, then flags.",
            "In the file, a dot is a section: `store.backend` is `backend` in `[store]`. Unknown names are rejected.",
            "",
            "| Key | Variable | Allowed | Default | For |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def alerts_page() -> str:
    lines = [
        "# Alerts",
        "",
        NOTE,
        "The section `[notify]` of `headgate.toml`, or the file `notify.toml` in the home folder; not both. The file",
        "may omit the name of the section: `[channels.ops]` there is `[notify.channels.ops]` in `headgate.toml`.",
        "Unknown fields are rejected. `headgate validate FOLDER` checks the format, and `headgate alert test` sends a",
        "message.",
        "",
        "A secret is a reference: `file:/path/of/it`, `aws-secret:NAME` or `aws-secret:NAME#key`.",
        "",
        *_fields_section("notify", NotifyConfig),
        *_fields_section("notify.routes[]", Route),
        *_fields_section("notify.escalation[]", EscalationStep),
    ]
    for spec in CHANNEL_SPECS:
        kind = str(spec.__struct_config__.tag)
        lines += _fields_section(f'notify.channels.NAME with kind = "{kind}"', spec)
    return "\n".join(lines)


def _fields_section(title: str, struct: type[msgspec.Struct]) -> list[str]:
    purpose = (struct.__doc__ or "").split("\n\n")[0]
    rows = []
    for each in msgspec.structs.fields(struct):
        described = [meta.description for meta in get_args(each.type)[1:] if meta.description]
        default = "required" if each.required else _code(_default(each.default))
        rows.append(f"| `{each.encode_name}` | {default} | {_cell(described[-1])} |")
    return [f"## `{title}`", "", purpose, "", "| Field | Default | For |", "|---|---|---|", *rows, ""]


def _default(value: object) -> str:
    if value in (None, (), "", {}, msgspec.NODEFAULT):
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def tables_page() -> str:
    lines = [
        "# Tables",
        "",
        NOTE,
        "Every table. On SQLite each is a table of `HOME/headgate.db`; on DynamoDB a table of its own.",
        "The settings `store.table_prefix` and `store.table_names` change the names. Every index projects whole",
        "items and contains only those with all of its key attributes. On DynamoDB, a value with shards is spread",
        "over so many partitions: `VALUE`, `VALUE*1`, `VALUE*2` and so on ([ADR 45](../adr/0045-shards.md)).",
        "",
    ]
    for table in ALL_TABLES:
        lines += _table_section(table)
    return "\n".join(lines)


def _table_section(table: Table) -> Iterator[str]:
    keys = " + ".join(
        f"`{part.name}` ({part.kind.value})" for part in (table.partition, table.sort) if part is not None
    )
    facts = [
        f"TTL `{table.ttl_attribute}`" if table.ttl_attribute else "no TTL",
        "change stream" if table.stream else "a stream on DynamoDB alone" if table.wakes else "no stream",
        table.billing.value,
        table.classification.value,
        *_shard_facts(table.shards),
    ]
    yield from (f"## {table.name}", "", f"{table.purpose}.", "", f"Key: {keys}. {'; '.join(facts)}.", "")
    for index in table.indexes:
        by = " + ".join(f"`{attribute.name}` ({attribute.kind.value})" for attribute in index.attributes())
        yield "; ".join((f"- Index `{index.name}`: {by}", *_shard_facts(index.shards)))
    if table.indexes:
        yield ""
    yield from ("| Entity | Partition | Sort | Index attributes | Ends |", "|---|---|---|---|---|")
    for entity in table.entities:
        indexed = ", ".join(f"{name} = `{pattern}`" for name, pattern in entity.index_keys.items())
        ending = ending_of(table.name, entity.name)
        end = ending.how + (f": `{ending.setting}`" if ending.setting else "")
        yield f"| {entity.name} | `{entity.partition}` | {_code(entity.sort or '')} | {indexed} | {end} |"
    yield ""


def _shard_facts(shards: Shards | None) -> list[str]:
    if shards is None:
        return []
    spread = ", ".join(f"`{prefix}`" for prefix in shards.of)
    return [f"{shards.count} shards of {spread}" if spread else f"{shards.count} shards"]


def _series_rows(series: Sequence[Series]) -> list[str]:
    return [
        "| Series | Type | Labels | For |",
        "|---|---|---|---|",
        *(
            f"| `{each.name}{'_total' if each.kind == 'counter' else ''}` | {each.kind} "
            f"| {', '.join(f'`{label}`' for label in each.labels)} | {_cell(each.help)} |"
            for each in series
        ),
    ]


def metrics_page() -> str:
    return "\n".join(
        [
            "# Metrics",
            "",
            NOTE,
            "The server exports them at `/metrics`, in the Prometheus format. Alarms on them are in",
            "`deploy/prometheus/pipeline-rules.yml`. No label names a pipeline, because there may be very many:",
            "`headgate run ls` and `headgate expect ls` name them. Gauges are read every 15",
            "seconds. Counters and histograms start at 0 with the server.",
            "",
            *_series_rows(SERIES),
            "",
            "## Checks",
            "",
            "No label names a check: `headgate check ls` lists them. Each server counts the checks that it ran.",
            "",
            *_series_rows(CHECK_SERIES),
            "",
            "## Fan-outs",
            "",
            "The server reads them from the store every 15 seconds, for all workers: with several servers take the",
            "largest, not the sum. Counters start at 0 with the server. Alarms on them are in",
            "`deploy/prometheus/fanout-rules.yml`. No label is the id of a fan-out: `headgate fanout ls` lists them.",
            "",
            *_series_rows(FANOUT_SERIES),
            "",
            "## Incidents",
            "",
            f"Counted every {INCIDENTS_EVERY_SECONDS:.0f} seconds; the same on every server of a store.",
            "",
            *_series_rows(INCIDENT_SERIES),
            "",
            "## Executions, turns and activities",
            "",
            "The server exports them for the workflows that it runs itself, and each `headgate worker` with",
            "`--metrics` at its own address: sum over both. Labels name workflows and activities of apps, 200 of each",
            "at most; further ones are counted as `other`. No label is the id of an execution.",
            "",
            *_series_rows(PROCESS_SERIES),
            "",
            "## Pending work",
            "",
            "The server alone exports it, for all workers of the store. Counts come from indexes, every",
            f"{REFRESHED_EVERY_SECONDS:.0f} seconds, up to {COUNTED_MAX:,} entries ({COUNTED_MAX_DYNAMODB:,} on",
            "DynamoDB, which bills each).",
            "",
            *_series_rows(STORE_SERIES),
            "",
            "## CloudWatch",
            "",
            "Functions write these in the embedded metric format if the Terraform variable `custom_metrics` is set,",
            f"in the namespace `{embedded_metrics.NAMESPACE}`. A value is counted in every set of dimensions.",
            f"A scheduled function always writes `{embedded_metrics.COMPLETED}`, in the namespace",
            f"`{embedded_metrics.FUNCTIONS_NAMESPACE}` with the dimension `function`, when it has completed.",
            "",
            "| Metric | Unit | Dimensions |",
            "|---|---|---|",
            *(
                f"| `{each.name}` | {each.unit} | {_dimension_sets(each)} |"
                for each in embedded_metrics.METRICS.values()
            ),
            "",
        ]
    )


def _dimension_sets(metric: embedded_metrics.CloudWatchMetric) -> str:
    return "; ".join(", ".join(f"`{name}`" for name in names) or "none" for names in metric.dimensions)


def errors_page() -> str:
    lines = [
        "# Errors",
        "",
        NOTE,
        "Every error has a stable code and belongs to a family that determines how to react. The same code",
        "appears in HTTP problem documents and on standard error of the command line.",
        "",
        "| Code | Class | Family | HTTP | gRPC | Exit | Meaning |",
        "|---|---|---|---|---|---|---|",
    ]
    families: dict[type[errors.HeadgateError], str] = {
        errors.UserError: "fix the input",
        errors.ConflictError: "re-read, then decide",
        errors.TransientError: "retry with backoff",
        errors.FatalError: "stop, page a human",
    }
    # Imported for their errors, so that the page does not depend on other imports.
    assert _messages.__name__
    assert _problems.__name__
    for family, remedy in families.items():
        for kind in _with_subclasses(family):
            meaning = (kind.__doc__ or "").splitlines()[0]
            cells = (f"`{kind.code}`", kind.__name__, remedy, kind.http_status, kind.grpc_status, kind.exit_code)
            lines.append(f"| {' | '.join(map(str, cells))} | {_cell(meaning)} |")
    return "\n".join([*lines, ""])


def _with_subclasses(kind: type[errors.HeadgateError]) -> Iterator[type[errors.HeadgateError]]:
    """Yield a class and its public subclasses of Headgate, at any depth, in the order of their definition.

    Of subclasses in different modules that order depends on what was imported first, so modules are sorted.
    """
    if kind.__module__.startswith("headgate.") and not kind.__name__.startswith("_"):
        yield kind
        for each in sorted(kind.__subclasses__(), key=lambda each: each.__module__):
            yield from _with_subclasses(each)


def commands_page() -> str:
    root = typer.main.get_command(load())
    lines = [
        "# Commands",
        "",
        NOTE,
        "Noun, then verb. `--json` prints JSON instead of tables, and errors as JSON on standard error.",
        "",
        "## Exit codes",
        "",
        "Of every command and server process:",
        "",
        "| Exit code | Name | Meaning |",
        "|---|---|---|",
        *(f"| {int(each)} | `{each.name}` | {_cell(each.meaning)} |" for each in ExitCode),
        "",
    ]
    for path, command in _walk(root, "headgate"):
        lines += _command_section(path, command)
    return "\n".join(lines)


def _walk(command: Any, path: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - typer carries a click of its own
    children = getattr(command, "commands", {})
    if not children:
        yield path, command
    for name in sorted(children):
        if not children[name].hidden:
            yield from _walk(children[name], f"{path} {name}")


def _command_section(path: str, command: Any) -> Iterator[str]:  # noqa: ANN401
    arguments = [str(p.name).upper() for p in command.params if p.param_type_name == "argument"]
    yield from (f"## `{' '.join([path, *arguments])}`", "", " ".join((command.help or "").split()), "")
    options = [p for p in command.params if p.param_type_name == "option" and "--help" not in p.opts]
    for option in options:
        value = f" {option.metavar}" if getattr(option, "metavar", None) else ""
        yield f"- `{option.opts[-1]}{value}`: {getattr(option, 'help', '') or ''}"
    if options:
        yield ""


_ACCESS = """\
Every role and every operation, from the rules that the server checks. A caller has the permissions of all its roles.
A local program without a key has the role `admin`, unless `auth.required` is set. The defences and their tests:
[security](../security.md).

Outside of these tables:

- `/`, `/health`, `/health/live`, `/health/ready`, `/api` and `/api/openapi.json` need no permission.
- `/metrics` and `/health/deep` need `server.read`.
- A page below `/ui` shows what its caller may read with the operations below.
- `POST /callbacks/{run_id}` needs no key but the token of the run (header `headgate-callback-token`), which is valid
  for that run alone and expires. Its entry in the audit log is `run.callback`.
- `POST /notify/slack/{channel}` and `POST /notify/pagerduty/{channel}` need no key but the signature of Slack or
  PagerDuty with the secret of the channel. The acknowledgement has an entry under the person's name.
- The routes of a user's app need an authenticated caller, and check permissions themselves.

**Datasets** says which datasets a caller with limited scopes reaches:

- `none`: the operation is about no dataset; scopes do not matter.
- `all`: the operation is about all datasets; the scope must be unlimited.
- `named`: the request names the datasets; all of them must be in scope.
- `found`: the request names a resource, such as an incident or an alias; the dataset it belongs to must be in scope.
- `filtered`: the response lists only what is in scope.

**Audit** says how an operation that is not a GET is audited: the action of its own entry; `by the service`, in the
transaction of the change; `report`, what it writes is itself the record; `read`, it changes nothing.
"""


def access_page() -> str:
    operations, methods = _served()
    ruled = [(f"{each.method} {each.path}", each.rule, _audit(each)) for each in operations if each.rule is not None]
    calls = [(each.label, each.rule) for each in methods]
    return "\n".join(
        [
            "# Access",
            "",
            NOTE,
            _ACCESS,
            "## Roles and permissions",
            "",
            f"| Permission | {' | '.join(f'`{role}`' for role in Role)} |",
            f"|---|{':-:|' * len(Role)}",
            *(
                f"| `{permission}` | {' | '.join('yes' if permission in MATRIX[role] else '' for role in Role)} |"
                for permission in Permission
            ),
            "",
            "## REST operations",
            "",
            "Below `/api/v1`. `PATCH /incidents/{incident_id}` needs `incident.write` for more than `rca_summary`.",
            "",
            "| Operation | Permission | Datasets | Roles | Audit |",
            "|---|---|---|---|---|",
            *(f"{_access_row(name, rule)} {audit} |" for name, rule, audit in ruled),
            "",
            "## RPC methods",
            "",
            "Of the package `observability.statestore.v1`, over gRPC and Connect.",
            "",
            *_access_table("Method", calls),
            "## GraphQL fields",
            "",
            *_access_table("Field", RULES.items()),
        ]
    )


def _served() -> tuple[list[Operation], list[Method]]:
    """Return the REST operations and RPC methods of a server on a home of its own."""
    clock = SystemClock()
    with (
        tempfile.TemporaryDirectory() as home,
        open_components(
            Settings(home=Path(home)),
            version="",
            clock=clock,
            tracing=Tracing(),
            app=App("headgate"),
            environ={},
        ) as components,
        closing(WorkPool()) as pool,
    ):
        handlers = [each for each in rest_routes(components, pool, clock) if isinstance(each, OperationHandler)]
        bus, watches = components.service.bus, WatchHub(components.service.store)
        methods = statestore_methods(components.health, bus, watches=watches, pool=pool, local_reads=True)
    operations = [operation for handler in handlers for operation in handler.operations]
    return sorted(operations, key=lambda each: (each.path, each.method)), methods


def _audit(operation: Operation) -> str:
    if operation.method == "GET":
        return ""
    audited = AUDITED[operation.method, operation.path]
    return str(audited) if isinstance(audited, Unaudited) else f"`{audited.action}`"


def _access_table(noun: str, rules: Iterable[tuple[str, Rule]]) -> Iterator[str]:
    yield from (f"| {noun} | Permission | Datasets | Roles |", "|---|---|---|---|")
    for name, rule in rules:
        yield _access_row(name, rule)
    yield ""


def _access_row(name: str, rule: Rule | None) -> str:
    assert rule is not None, name
    return f"| `{name}` | `{rule.permission}` | {rule.reach} | {', '.join(roles_with(rule.permission))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


_TRIGGERS = """\
Every kind of trigger with every field of its `config`. `headgate pipeline schema` prints the same as a JSON Schema for
editors, with the kinds of installed packages; `headgate validate` refuses a config that does not fit it.

Texts may contain `${date}`, `${date_compact}`, `${day_compact}`, `${year}`, `${week}`, `${month}`, `${day}`, `${hour}`,
`${minute}`, `${schedule}`, `${pipeline}`, `${run_id}`, `${attempt}`; of a job that calls back, `${callback_url}` and
`${callback_token}`. `$${` stands for `${`. Fields that may hold secrets also take `${env:HG_SECRET_NAME}` and
`${file:NAME}`, a file below `HOME/secrets`. Relative paths are below the project folder. A duration is a number of
seconds or a text such as `90s`, `5m` or `1h30m`.

Beside `type` and `config`, every trigger has these fields:
"""


def triggers_page() -> str:
    lines = ["# Triggers", "", NOTE, _TRIGGERS]
    own = [field for field in _fields(TriggerSpec) if field.name not in ("type", "config")]
    lines += _fields_table(own, "TriggerSpec", PIPELINE_FIELDS)
    for name, kind in BUILT_IN.items():
        secrets = ", ".join(f"`{field}`" for field in sorted(kind.secret_fields))
        notes = [
            *(["Only definitions of the project folder may use it."] if kind.is_local else []),
            *([f"May hold secrets: {secrets}."] if secrets else []),
        ]
        lines += [f"## {name}", "", " ".join([_summary(kind.config_type), *notes]), ""]
        lines += _fields_table(_fields(kind.config_type), name, FIELD_DESCRIPTIONS)
        for nested in _nested(kind.config_type):
            field = next(field for field, cls in nested.items())
            cls = nested[field]
            lines += [f"### {name}: {field}", "", _summary(cls), ""]
            lines += _fields_table(_fields(cls), cls.__name__, FIELD_DESCRIPTIONS)
    return "\n".join(lines)


def _summary(cls: type) -> str:
    return " ".join((cls.__doc__ or "").split("\n\n")[0].split())


def _fields(cls: type) -> list[Any]:
    info = msgspec.inspect.type_info(cls)
    assert isinstance(info, msgspec.inspect.StructType)
    return list(info.fields)


def _nested(cls: type) -> list[dict[str, type]]:
    """Return the fields that hold a struct."""
    found = []
    for field in _fields(cls):
        kinds = getattr(field.type, "types", (field.type,))
        found += [{field.encode_name: kind.cls} for kind in kinds if isinstance(kind, msgspec.inspect.StructType)]
    return found


def _fields_table(fields: Iterable[Any], owner: str, described: Mapping[str, str]) -> Iterator[str]:
    yield from ("| Field | Value | Default | For |", "|---|---|---|---|")
    for field in fields:
        default = "required" if field.required else _code(_default_text(field))
        about = described[f"{owner}.{field.name}"]
        yield f"| `{field.encode_name}` | {_cell(_type_text(field.type))} | {default} | {_cell(about)} |"
    yield ""


def _default_text(field: Any) -> str:  # noqa: ANN401 - a field of msgspec's
    default = field.default
    if isinstance(default, Seconds):
        return duration.text(float(default))
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, tuple):
        return ", ".join(map(str, default))
    return str(default) if isinstance(default, str | int | float) else ""


_TYPE_TEXTS = {
    msgspec.inspect.StrType: "text",
    msgspec.inspect.IntType: "whole number",
    msgspec.inspect.FloatType: "number",
    msgspec.inspect.BoolType: "true or false",
    msgspec.inspect.CustomType: "duration",
    msgspec.inspect.AnyType: "any",
    msgspec.inspect.StructType: "mapping, below",
}


def _type_text(kind: Any) -> str:  # noqa: ANN401 - a type of msgspec's
    match kind:
        case msgspec.inspect.UnionType():
            members = [each for each in kind.types if not isinstance(each, msgspec.inspect.NoneType)]
            return " or ".join(_type_text(each) for each in members)
        case msgspec.inspect.LiteralType():
            return ", ".join(f"`{value}`" for value in kind.values)
        case msgspec.inspect.ListType() | msgspec.inspect.VarTupleType():
            return f"list of {_type_text(kind.item_type)}"
        case msgspec.inspect.TupleType():
            return f"list of {len(kind.item_types)}: {', '.join(_type_text(each) for each in kind.item_types)}"
        case msgspec.inspect.DictType():
            return f"mapping to {_type_text(kind.value_type)}"
    return _TYPE_TEXTS[type(kind)]


def probes_page() -> str:
    lines = [
        "# Probes",
        "",
        NOTE,
        "The fields of a file in the folder `probes`. How to use them: [probe data](../how-to/probe-data.md).",
        "",
    ]
    parts = json_schema(SchemaKind.PROBE)["$defs"]
    for name in sorted(parts, key=lambda each: each != "Probe"):
        part = parts[name]
        if "properties" not in part:
            continue
        required = part.get("required", ())
        lines += [
            f"## {name}",
            "",
            part["description"],
            "",
            "| Field | Required | Default | For |",
            "|---|---|---|---|",
        ]
        for field, schema in part["properties"].items():
            default = _code(str(schema["default"])) if "default" in schema else ""
            is_required = "yes" if field in required else ""
            lines.append(f"| `{field}` | {is_required} | {default} | {_cell(schema.get('description', ''))} |")
        lines.append("")
    return "\n".join(lines)


def python_page() -> str:
    page: str = runpy.run_path(str(FOLDER.parent / "python_reference.py"))["page"](NOTE)
    return page


PAGES = {
    "python.md": python_page,
    "probes.md": probes_page,
    "settings.md": settings_page,
    "alerts.md": alerts_page,
    "tables.md": tables_page,
    "errors.md": errors_page,
    "commands.md": commands_page,
    "access.md": access_page,
    "metrics.md": metrics_page,
    "triggers.md": triggers_page,
}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())
        print(f"wrote {FOLDER.name}/{name}", file=sys.stderr)
    runpy.run_path(str(FOLDER.parent / "pipeline_cases.py"), run_name="__main__")


if __name__ == "__main__":
    main()
