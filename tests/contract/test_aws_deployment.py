"""Deployment: Terraform, the package and handler names agree with the code."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from bench import function_starts
from headgate.aws import invocation
from headgate.aws.function_settings import (
    AppSettings,
    FunctionSettings,
    read_app_settings,
    read_function_settings,
    read_settings,
)
from headgate.cli.aws import package as aws_package
from headgate.durable.model.history import Woken
from headgate.durable.model.records import Activity, Timer, message
from headgate.durable.serverless.wakeups import wake_for
from headgate.errors import (
    HeadgateError,
    InvalidPayloadError,
    SettingsError,
    StoreBusyError,
    ThrottledError,
    VersionConflictError,
)
from headgate.pipelines.lifecycle import starter
from headgate.pipelines.lifecycle.starter import lifecycle_definition
from headgate.pipelines.watchdog.watchdog import LIMIT_SECONDS
from headgate.settings import describe
from headgate.store.catalogue.tables import ACTIVITIES, ALL_TABLES, EVENTS, INBOXES, TIMERS
from headgate.store.dynamodb.marshalling import to_attributes
from headgate.store.model.schema import Table
from headgate.triggers.contract import FailureCategory, TriggerFailedError
from tests.aws_rig import FILTERS, FUNCTIONS, MACHINE_FUNCTIONS, ROOT, TERRAFORM, handler_of
from tests.pipeline_rig import Rig
from tests.workflow_rig import FILTERS as WAKE_FILTERS
from tests.workflow_rig import lets_through

DEPLOY: Final = ROOT / "deploy"
TEXT: Final = "\n".join(path.read_text() for path in sorted(TERRAFORM.glob("*.tf")))
REQUIRED: Final = {
    "STATE_MACHINE_ARN": "arn:aws:states:eu-west-1:123456789012:stateMachine:lifecycle",
    "SLA_MONITOR_ARN": "arn:aws:lambda:eu-west-1:123456789012:function:sla-monitor",
    "SCHEDULER_ROLE_ARN": "arn:aws:iam::123456789012:role/scheduler",
    "SCHEDULER_GROUP_NAME": "headgate",
}


# Terraform.


def test_tables__as_terraform_makes_them__are_those_of_the_catalogue() -> None:
    rendered = runpy.run_path(str(DEPLOY / "tables.py"))["rendered"]

    assert (TERRAFORM / "tables.json").read_text() == rendered(), "run: python deploy/tables.py"


def test_functions__as_terraform_makes_them__have_handlers_tables_and_time() -> None:
    known = {table.name for table in ALL_TABLES}

    assert all(callable(handler_of(name)) for name in FUNCTIONS)
    assert {table for each in FUNCTIONS.values() for table in (*each["reads"], *each["writes"])} <= known
    # Lambda ends whatever takes longer, and every check of the watchdog must have had its time before that.
    assert all(each["timeout_seconds"] <= 900 for each in FUNCTIONS.values())
    with Rig() as rig:
        from headgate.bootstrap.watchdog import build_watchdog
        from headgate.pipelines.watchdog.liveness_check import Lifecycle

        lifecycle = Lifecycle(is_open=lambda _: True, orchestrate=rig.pipelines.orchestrator, end_job=lambda _: None)
        watchdog = build_watchdog(rig.pipelines, lifecycle)
    assert FUNCTIONS["watchdog"]["timeout_seconds"] >= len(watchdog._checks) * LIMIT_SECONDS


@pytest.mark.parametrize("module", sorted({each["handler"].rpartition(".")[0] for each in FUNCTIONS.values()}))
def test_handlers__of_a_module__load_nothing_of_a_server_that_they_do_not_use(module: str) -> None:
    function = next(name for name, each in FUNCTIONS.items() if each["handler"].startswith(f"{module}."))

    loaded = function_starts.start(function).modules

    assert loaded & {*function_starts.UNUSED} == set()
    assert (function_starts.WEB in loaded) == (module == "headgate.aws.http.handlers")


def test_calls__that_functions_may_make__are_given_a_resource() -> None:
    resources = set(re.findall(r'"([a-z]+:[A-Z]\w+)"\s*= ', TEXT))

    assert {call for each in FUNCTIONS.values() for call in each["calls"]} == resources


def test_machine__its_variables__are_filled_in_with_functions_of_ours() -> None:
    filled = dict(re.findall(r'(\w+)\s*= aws_lambda_alias\.live\["([a-z-]+)"\]\.arn\n', TEXT))

    assert {name: filled.get(name) for name in starter.FUNCTIONS} == MACHINE_FUNCTIONS
    assert set(re.findall(r"\$\{(\w+)\}", lifecycle_definition())) == set(starter.FUNCTIONS)
    assert set(MACHINE_FUNCTIONS.values()) <= set(FUNCTIONS)


def test_environment__that_terraform_sets__is_what_functions_read() -> None:
    block = TEXT[TEXT.index("environment = merge(") : TEXT.index("var.settings,\n")]
    given = set(re.findall(r"\b([A-Z][A-Z_]+)\s*= ", block))
    settings = {each.variable for each in describe()}

    assert {name for name in given if name.startswith("HEADGATE_")} <= settings
    assert given - settings == {name.upper() for name in FunctionSettings.__struct_fields__}
    start = TEXT.index("workflow_environment = {")
    of_apps = set(re.findall(r"\b([A-Z][A-Z_]+)\s*= ", TEXT[start : TEXT.index("\n  }\n", start)]))
    assert of_apps <= (wanted := {name.upper() for name in AppSettings.__struct_fields__})
    assert wanted <= of_apps | given


def test_variables__that_are_declared__are_all_used() -> None:
    declared = set(re.findall(r'^variable "(\w+)"', TEXT, re.MULTILINE))

    assert set(re.findall(r"\bvar\.(\w+)", TEXT)) == declared


def test_variables__that_are_declared__are_described_and_checked() -> None:
    blocks = re.findall(r'^variable "(\w+)" \{\n(.*?)^\}', TEXT, re.MULTILINE | re.DOTALL)
    # A boolean and a map of free texts have nothing to check.
    free = {name for name, block in blocks if "type        = bool" in block} | {"tags"}

    assert [name for name, block in blocks if "description = " not in block] == []
    assert {name for name, block in blocks if "validation {" not in block} == free


def test_callers__of_functions__call_the_alias_that_a_failed_check_leaves_in_place() -> None:
    callers = re.findall(r"aws_lambda_function\.function\[[^]]+\]\.arn", TEXT)

    assert callers == []
    assert re.search(
        r'resource "aws_lambda_alias" "live" \{.*?depends_on = \[aws_lambda_invocation\.check\]', TEXT, re.DOTALL
    )


def test_filters__of_the_stream__let_through_what_the_router_acts_on() -> None:
    names = [name for each in FILTERS for key in each["dynamodb"]["Keys"].values() for name in key["S"]]
    let_through = {name if isinstance(name, str) else name["prefix"] for name in names}

    with Rig() as rig:
        assert let_through == {"MARKER#", "CONFIG", *rig.pipelines.router._routes}
    # More than five need to be asked for.
    assert len(FILTERS) <= 5


def test_filters__of_rows_that_wake__let_through_what_asks_for_something_and_nothing_else() -> None:
    mail = message("o-1", Woken("now"), 7, "u")
    timer = Timer("o-1#1#000002", "o-1", 1, 2, 9_000)
    task = Activity("o-1#1#000001", "charge", "1", "{}", "0", 7, queue_pk="Q#default", available_at_ms=7)
    claimed = replace(task, queue_pk=None, available_at_ms=None, lease_pk="wrk_1", lease_expires_ms=9)
    signal_id = {"execution_id": "o-1", "message_id": "S#1"}

    rows: list[tuple[Table, Mapping[str, Any]]] = [
        (INBOXES, mail.put().item),
        (INBOXES, signal_id),
        (TIMERS, timer.put().item),
        (ACTIVITIES, task.put().item),
        (ACTIVITIES, claimed.put().item),
    ]

    asked = [wake_for(table, item) is not None for table, item in rows]
    let_through = [any(lets_through(each, record(item)) for each in WAKE_FILTERS[table.name]) for table, item in rows]

    assert let_through == asked == [True, False, True, True, False]
    # The event log feeds the sink, which takes every new event.
    assert {table.name for table in ALL_TABLES if table.wakes} == {*WAKE_FILTERS, EVENTS.name}


def record(item: Mapping[str, Any]) -> dict[str, Any]:
    return {"eventName": "INSERT", "dynamodb": {"NewImage": to_attributes(item)}}


# Settings.


def test_settings__of_a_function__are_those_of_the_product_in_a_lambda() -> None:
    settings = read_settings({"AWS_REGION": "eu-west-1", "HEADGATE_STORE_BLOB_BUCKET": "b", **REQUIRED})

    assert (settings.store.backend, settings.store.aws_region) == ("dynamodb", "eu-west-1")
    assert (str(settings.home), settings.log.format) == ("/tmp/headgate", "json")
    assert read_function_settings(REQUIRED).keys_secret_arn == ""


def test_settings__variables_missing__are_all_named() -> None:
    with pytest.raises(SettingsError, match="STATE_MACHINE_ARN, SLA_MONITOR_ARN"):
        read_function_settings({**REQUIRED, "STATE_MACHINE_ARN": "", "SLA_MONITOR_ARN": ""})


def test_settings__of_an_app__name_queues_and_leave_the_product_its_own() -> None:
    given = {name.upper(): "x" for name in AppSettings.__struct_fields__} | {"ACTIVITY_QUEUE_URLS": '{"default": "u"}'}

    settings = read_app_settings(given)

    assert (settings.headgate_app, settings.activity_queues()) == ("x", {"default": "u"})
    assert (
        read_settings({"AWS_REGION": "eu-west-1", "HEADGATE_STORE_BLOB_BUCKET": "b", **given}).store.blob_bucket == "b"
    )
    with pytest.raises(SettingsError, match="HEADGATE_APP, TURNS_QUEUE_URL"):
        read_app_settings({})
    with pytest.raises(SettingsError, match="ACTIVITY_QUEUE_URLS"):
        read_app_settings({**given, "ACTIVITY_QUEUE_URLS": "[]"}).activity_queues()


# Failures.


def tasks(machine: dict[str, Any]) -> list[dict[str, Any]]:
    found = [state for state in machine["States"].values() if state["Type"] == "Task"]
    inner = [state["ItemProcessor"] for state in machine["States"].values() if "ItemProcessor" in state]
    return found + [task for each in inner for task in tasks(each)]


@pytest.mark.parametrize("error", [ThrottledError("x"), StoreBusyError("x"), VersionConflictError("x")])
def test_failure__that_passes__is_retried_by_every_state(error: HeadgateError) -> None:
    raised = invocation.lambda_error(error)

    assert error.code in str(raised)
    for task in tasks(json.loads(lifecycle_definition())):
        assert type(raised).__name__ in task["Retry"][0]["ErrorEquals"]


def test_failure__that_stays__keeps_its_own_name() -> None:
    for error in (InvalidPayloadError("x"), TriggerFailedError("x", FailureCategory.TRANSIENT)):
        assert invocation.lambda_error(error) is error


# The package.


def link(target: Path, path: Path) -> None:
    """Have a file of the package at a place, with what Python has compiled of it here: that takes a second."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.symlink_to(path)
    if path.suffix == ".py" and (path.parent / "__pycache__").is_dir():
        cached = target.parent / "__pycache__"
        if not cached.is_symlink():
            cached.symlink_to(path.parent / "__pycache__")


def package(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(DEPLOY / "package.py"), str(tmp_path / "headgate.zip"), *arguments]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)


def test_package__alerts_definitions_and_app_that_functions_would_refuse__is_not_built(tmp_path: Path) -> None:
    (tmp_path / "notify.toml").write_text('[channels.topic]\nkind = "sns"\ntopic_arn = "my-topic"\n')
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "a.yaml").write_text("id: a\ntrigger: {type: lambda, config: {functionn: load}}\n")
    (tmp_path / "orders.py").write_text("import headgate as hg\nimport nowhere\n")

    done = package(
        tmp_path, "--notify", "notify.toml", "--pipelines", "pipelines", "--code", ".", "--app", "orders:app"
    )

    assert done.returncode == 2
    assert "notify.toml: notify: channels[...].topic_arn" in done.stderr
    assert "functionn" in done.stderr
    assert "--app 'orders:app'" in done.stderr
    assert "No module named 'nowhere'" in done.stderr
    assert not (tmp_path / "headgate.zip").exists()


ORDERS: Final = """
import headgate as hg

print("loading")
app = hg.App("orders")


@app.on_event("order.paid")
def ship(event): ...


@app.activity(invocation=hg.AsyncInvocation(retries=1, max_age="90m"))
def weigh(order): ...


@app.activity
def charge(order): ...
"""


def test_package__of_an_app__describes_rules_of_subscriptions_and_functions_of_activities(tmp_path: Path) -> None:
    (tmp_path / "orders.py").write_text(ORDERS)

    needs = aws_package.check(code=tmp_path, app="orders:app")
    described = aws_package.write_sidecar(tmp_path / "orders.py", aws_package.Manifest("arm64", "3.11"), *needs)

    content = json.loads(described.read_text())
    assert content["bus_rules"] == {"ship": {"detail-type": ["order.paid"]}}
    assert content["activity_functions"] == {
        "weigh": {"activity": "weigh", "maximum_retry_attempts": 1, "maximum_event_age_in_seconds": 5400}
    }


def test_package__unpacked_without_anything_else_installed__has_all_that_the_handlers_need(tmp_path: Path) -> None:
    pipelines, notify = tmp_path / "definitions", tmp_path / "notify.toml"
    pipelines.mkdir()
    (pipelines / "a.yaml").write_text("id: a")
    notify.write_text("")
    task = tmp_path / "task"
    code = tmp_path / "code"
    (code / "orders").mkdir(parents=True)
    (code / "orders" / "__init__.py").write_text("import headgate as hg; app = hg.App('orders')")
    for name, path in aws_package.files(pipelines, notify, code).items():
        link(task / name, path)
    handlers = sorted(each["handler"].rpartition(".") for each in FUNCTIONS.values())
    script = "\n".join(
        [
            f"import sys; sys.path.insert(0, {str(task)!r})",
            *[f"from {module} import {name}" for module, _, name in handlers],
            "from headgate.pipelines.lifecycle.starter import lifecycle_definition; assert lifecycle_definition()",
            "from headgate.bootstrap.store import load_app; app = load_app('orders:app'); assert app.name == 'orders'",
            "from headgate.durable.sdk.build_digest import build_of; assert build_of(app)",
            "class Context:",
            "    aws_request_id = 'r1'",
            "    def get_remaining_time_in_millis(self): return 60000",
            "try: orchestrator({'taskToken': 'do-not-show'}, Context())",
            "except Exception as error: print(type(error).__name__, error)",
        ]
    )

    # Isolated: neither the environment's Python path nor installed packages are seen.
    environ = {"AWS_REGION": "eu-west-1", "HEADGATE_STORE_BLOB_BUCKET": "b", "HEADGATE_HOME": str(tmp_path / "home")}
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script], env=environ, capture_output=True, text=True)

    assert done.stdout.startswith("SettingsError variables STATE_MACHINE_ARN, SLA_MONITOR_ARN"), done.stderr
    (line,) = [json.loads(each) for each in done.stderr.splitlines()]
    assert (line["level"], line["code"], line["correlation_id"]) == ("error", "bad_setting", "r1")
    assert "do-not-show" not in done.stderr
    assert (task / "pipelines" / "a.yaml").is_file()
    assert (task / "notify.toml").is_file()
