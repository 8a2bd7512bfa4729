"""Rules for source modules that no linter checks."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "src").rglob("*.py"))
BANNED = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager"}
MSGSPEC = {"msgspec.json", "msgspec.msgpack", "msgspec.yaml", "msgspec.toml"}


def test_modules__each__states_its_purpose_and_is_named_after_what_it_holds() -> None:
    unexplained = [module for module in MODULES if not ast.get_docstring(ast.parse(module.read_text()))]
    unnamed = [module for module in MODULES if module.stem in BANNED]

    assert unexplained == [], "the first line of a module states its purpose"
    assert unnamed == [], f"a module is named after what it holds, not {sorted(BANNED)}"


def test_tracing__of_every_process__is_opened_from_the_settings_in_one_place() -> None:
    starting = [module.name for module in MODULES if "Tracing.start(" in module.read_text()]

    assert starting == ["tracing.py"], "use open_tracing: it applies all settings of telemetry"


def loaded_by(statement: str) -> set[str]:
    script = f"{statement}\nimport sys\nprint(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import__the_package__loads_nothing_heavy() -> None:
    heavy = {
        "boto3",
        "sqlite3",
        "litestar",
        "grpc",
        "opentelemetry",
        "prometheus_client",
        "redis",
        "cryptography",
        "rich",
    }

    assert loaded_by("import headgate") & heavy == set()


def test_import__the_sqlite_store__loads_no_other_backend() -> None:
    others = {"boto3", "botocore", "redis", "grpc", "litestar", "cryptography", "asyncio"}

    assert loaded_by("import headgate.store.sqlite.store") & others == set()


def late_reads(source: str) -> list[int]:
    """The lines where msgspec is given a type at run time: `decode(..., type=)`, and `Decoder(` in a function."""
    if not ("msgspec" in source and ("Decoder" in source or "decode" in source)):
        return []  # most modules: parsing all of them would take seconds
    nodes = list(ast.walk(ast.parse(source)))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)]
    imported = imported_names(nodes)
    found = []
    for call in [node for node in nodes if isinstance(node, ast.Call)]:
        for used in [each for each in (call.func, *call.args) if isinstance(each, ast.Name | ast.Attribute)]:
            first, dot, rest = ast.unparse(used).partition(".")
            module, _, name = (imported.get(first, first) + dot + rest).rpartition(".")
            typed = name == "decode" and any(each.arg in ("type", None) for each in call.keywords)
            late = name == "Decoder" and any(each.lineno <= call.lineno <= (each.end_lineno or 0) for each in functions)
            if module in MSGSPEC and (typed or late):
                found.append(call.lineno)
    return found


def imported_names(nodes: list[ast.AST]) -> dict[str, str]:
    """What the names stand for that are imported under another, or out of a module."""
    found = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update({alias.asname: alias.name for alias in node.names if alias.asname is not None})
        elif isinstance(node, ast.ImportFrom):
            found.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    return found


def test_types__read_at_run_time__only_through_typed_decode() -> None:
    typed_decode = ROOT / "src" / "headgate" / "typed_decode.py"
    found = [
        f"{module.relative_to(ROOT)}:{line}: give the type to headgate.typed_decode; msgspec is not safe from threads"
        for module in MODULES
        if module != typed_decode
        for line in late_reads(module.read_text())
    ]

    assert late_reads(typed_decode.read_text()), "the search finds nothing at all"
    assert found == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("import msgspec\nmsgspec.json.decode(b'', type=int)", [2]),
        ("from msgspec import json\njson.decode(b'', type=int)", [2]),
        ("import msgspec.yaml as y\ny.decode(b'', **options)", [2]),
        ("from functools import partial\nimport msgspec\nread = partial(msgspec.msgpack.decode, type=int)", [3]),
        ("import msgspec\ndef f():\n    return msgspec.json.Decoder(int)", [3]),
        ("from msgspec.json import Decoder as D\nread = lambda kind: D(kind)", [2]),
        ("import msgspec\nread = msgspec.json.Decoder(int)\nmsgspec.json.decode(b'')\nb''.decode(type=1)", []),
    ],
)
def test_late_reads__the_ways_to_write_one__are_found(source: str, lines: list[int]) -> None:
    assert late_reads(source) == lines
