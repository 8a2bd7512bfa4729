"""Cold starts of the Lambda handlers: time and memory of importing each and of opening its services on DynamoDB.

Each is measured in a process of its own. Unpacking the package, which AWS does before, is not part of it; a function
with 512 MB has about a third of a processor, so that its start takes about three times as long as here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from bench.measure import Figure
from headgate.aws.function_settings import read_settings
from headgate.bootstrap.store import create_dynamodb_tables
from headgate.clock import SystemClock
from tests.aws_rig import FUNCTIONS
from tests.ministack import REGION, Ministack, aws_session, fresh_account

WEB: Final = "litestar"
# Nothing of a server that a function has no use for; the web stack is that of the HTTP functions.
UNUSED: Final = ("grpc", "sqlite3", "uvicorn", "httptools", "wsproto", "uvloop", "typer")
IMPORT_MS_MAX: Final = 3_000
_PROGRAM: Final = """
import importlib, json, re, sys, time
started = time.perf_counter()
module = importlib.import_module(sys.argv[1])
imported = time.perf_counter()
if sys.argv[2]:
    getattr(module, sys.argv[2])()
opened = time.perf_counter()
# Of this program alone: the usage that the system counts begins with the process that has started it.
memory_mb = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read()).group(1)) / 1024
print(json.dumps({"import_ms": 1000 * (imported - started), "open_ms": 1000 * (opened - imported),
                  "memory_mb": memory_mb, "modules": [each.partition(".")[0] for each in sys.modules]}))
"""


class Start(Struct, frozen=True):
    """A start of a handler. `modules` are the packages it has loaded."""

    import_ms: float
    open_ms: float
    memory_mb: float
    modules: frozenset[str]


def start(function: str, environ: dict[str, str] | None = None) -> Start:
    """Import a handler in a new process, and with an environment open its services."""
    module = str(FUNCTIONS[function]["handler"]).rpartition(".")[0]
    container = "" if environ is None else _container(function, module)
    command = [sys.executable, "-c", _PROGRAM, module, container]
    done = subprocess.run(command, env={**os.environ, **(environ or {})}, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return Start(found["import_ms"], found["open_ms"], found["memory_mb"], frozenset(found["modules"]))


def _container(function: str, module: str) -> str:
    """Return the name by which a module of handlers opens its services."""
    if module == "headgate.aws.http.handlers":
        return f"{function.replace('-', '_')}_container"
    if module == "headgate.aws.events.handlers":
        return "event_container"
    if module == "headgate.aws.health_sweep":
        return "health_container"
    return {"headgate.aws.handlers": "lifecycle_container", "headgate.aws.fanouts": "fanout_container"}.get(
        module, "app_container"
    )


def run() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        server = Ministack.start(Path(folder))
        try:
            environ = _environ(server.endpoint, Path(folder))
            return [_figure(name, start(name, environ)) for name in FUNCTIONS]
        finally:
            server.stop()


def _figure(name: str, found: Start) -> Figure:
    memory_mb = int(FUNCTIONS[name]["memory_mb"])
    is_small = found.memory_mb < memory_mb / 2
    return Figure(
        f"cold start of {name}",
        f"{found.import_ms + found.open_ms:.0f} ms, {found.memory_mb:.0f} MB",
        f"import < {IMPORT_MS_MAX} ms, < half of {memory_mb} MB",
        found.import_ms < IMPORT_MS_MAX and is_small,
        notes=f"import {found.import_ms:.0f} ms, opening {found.open_ms:.0f} ms"
        f"{', with the web stack' if WEB in found.modules else ''}",
    )


def _environ(endpoint: str, home: Path) -> dict[str, str]:
    account = fresh_account()
    made: Any = aws_session(account)
    bucket = f"starts-{account}"
    made.client("s3", endpoint_url=endpoint).create_bucket(Bucket=bucket)
    environ = {
        "AWS_ACCESS_KEY_ID": account,
        "AWS_SECRET_ACCESS_KEY": "-",
        "AWS_REGION": REGION,
        "HEADGATE_HOME": str(home / "home"),
        "HEADGATE_STORE_AWS_ENDPOINT_URL": endpoint,
        "HEADGATE_STORE_BLOB_BUCKET": bucket,
        "HEADGATE_APP": "tests.order_app:app",
        "TURNS_QUEUE_URL": f"{endpoint}/{account}/turns.fifo",
        "LATER_QUEUE_URL": f"{endpoint}/{account}/later",
        "LATER_QUEUE_ARN": f"arn:aws:sqs:{REGION}:{account}:later",
        "ACTIVITY_QUEUE_URLS": json.dumps({"default": f"{endpoint}/{account}/default"}),
        "EVENT_SOURCE": "headgate",
        "STATE_MACHINE_ARN": f"arn:aws:states:{REGION}:{account}:stateMachine:lifecycle",
        "SLA_MONITOR_ARN": f"arn:aws:lambda:{REGION}:{account}:function:sla-monitor",
        "SCHEDULER_ROLE_ARN": f"arn:aws:iam::{account}:role/scheduler",
        "SCHEDULER_GROUP_NAME": "default",
    }
    os.environ.update({name: value for name, value in environ.items() if name.startswith("AWS_")})
    create_dynamodb_tables(read_settings(environ), SystemClock())
    return environ
