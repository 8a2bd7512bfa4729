"""A Lambda that runs from the files of the real package, as MiniStack's runtime for programs of one's own starts it.

Run as a program, this file is the process of the function: it sees the unpacked package and no installed one, imports
the handler and answers invocations. Each request to AWS is noted in a file, and so are the modules of the handler.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
import urllib.request
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def unpack(task: Path, code: Mapping[str, str], *, pipelines: Path | None = None) -> None:
    """Have the files of a package in a folder, with further modules."""
    from headgate.cli.aws import package

    for name, path in package.files(pipelines).items():
        target = task / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(path)
        # With what Python has compiled of it here: that takes a second.
        cached = path.parent / "__pycache__"
        if path.suffix == ".py" and cached.is_dir() and not (target.parent / "__pycache__").is_symlink():
            (target.parent / "__pycache__").symlink_to(cached)
    for name, text in code.items():
        (task / name).write_text(text)


def make_packaged_function(
    client: Any,
    role: str,
    name: str,
    handler: str,
    task: Path,
    notes: Path,
    environ: Mapping[str, str],
    *,
    timeout_seconds: int = 29,
) -> str:
    """Make a function whose handler is imported from an unpacked package, and return its ARN."""
    bootstrap = zipfile.ZipInfo("bootstrap")
    bootstrap.external_attr = 0o755 << 16
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as code:
        command = f'exec "{sys.executable}" -I -S "{__file__}" "{task}" "{handler}" "{notes}"'
        code.writestr(bootstrap, f"#!/bin/sh\n{command}\n")
    made = client.create_function(
        FunctionName=name,
        Runtime="provided.al2023",
        Handler=handler,
        Role=role,
        Code={"ZipFile": packed.getvalue()},
        Timeout=timeout_seconds,
        Environment={"Variables": dict(environ)},
    )
    return str(made["FunctionArn"])


def not_granted(
    functions: Mapping[str, Mapping[str, Any]], notes: Mapping[str, Path], table_prefix: str
) -> set[tuple[str, str, str, str]]:
    """Return what functions have asked of AWS that Terraform does not grant them. Those not invoked asked nothing."""
    from tests.aws_rig import is_granted
    from tests.recorded_calls import record

    found: set[tuple[str, str, str, str]] = set()
    for name, function in functions.items():
        asked: set[tuple[str, str, str]] = set()
        lines = notes[name].read_text().splitlines() if notes[name].exists() else []
        for service, operation, tables in map(json.loads, lines):
            # Every function reads the keyring.
            if service == "modules" or (service, operation) == ("secretsmanager", "GetSecretValue"):
                continue
            for table in tables or [""]:
                asked.add((service, operation, table.removeprefix(table_prefix)))
        found |= {(name, *each) for each in asked if not is_granted(function, *each)}
        record(name, asked)
    return found


class _Context:
    def __init__(self, request_id: str, deadline_ms: int) -> None:
        self.aws_request_id = request_id
        self._deadline_ms = deadline_ms

    def get_remaining_time_in_millis(self) -> int:
        return int(self._deadline_ms - 1000 * time.time())


def _note_requests(notes: Path) -> None:
    """Note what is asked of AWS: service, operation and tables."""
    from botocore.client import BaseClient

    make = BaseClient._make_api_call  # type: ignore[attr-defined]

    def noted(client: Any, operation: str, given: Mapping[str, Any]) -> Any:
        line = json.dumps([client.meta.service_model.service_name, operation, _tables_in(operation, given)])
        with notes.open("a") as file:
            file.write(f"{line}\n")
        return make(client, operation, given)

    BaseClient._make_api_call = noted  # type: ignore[attr-defined]


def _tables_in(operation: str, given: Mapping[str, Any]) -> list[str]:
    if operation == "TransactWriteItems":
        return [f"{write['TableName']}:{action}" for each in given["TransactItems"] for action, write in each.items()]
    if "RequestItems" in given:
        return list(given["RequestItems"])
    return [given["TableName"]] if "TableName" in given else []


def _serve(task: str, handler_name: str, notes: Path) -> None:
    sys.path.insert(0, task)
    os.environ["LAMBDA_TASK_ROOT"] = task
    module_name, _, name = handler_name.rpartition(".")
    module = __import__(module_name, fromlist=[name])
    imported = sorted(sys.modules)
    _note_requests(notes)
    with notes.open("a") as file:
        file.write(json.dumps(["modules", module_name, imported]) + "\n")
    invocations = f"http://{os.environ['AWS_LAMBDA_RUNTIME_API']}/2018-06-01/runtime/invocation"
    while True:
        with urllib.request.urlopen(f"{invocations}/next") as invocation:
            request_id = invocation.headers["Lambda-Runtime-Aws-Request-Id"]
            deadline_ms = int(invocation.headers.get("Lambda-Runtime-Deadline-Ms") or 1000 * (time.time() + 29))
            event = json.load(invocation)
        try:
            path, answer = "response", getattr(module, name)(event, _Context(request_id, deadline_ms))
        except Exception as exc:
            path, answer = "error", {"errorType": type(exc).__name__, "errorMessage": str(exc)}
        body = json.dumps(answer).encode()
        urllib.request.urlopen(urllib.request.Request(f"{invocations}/{request_id}/{path}", data=body)).close()


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
