"""House rules a linter does not know: what a module is called, how it begins, how long it may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "src").rglob("*.py"))
BANNED = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager"}
LINES_MAX = 450


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_module__says_what_it_is_for_and_fits_in_a_head(module: Path) -> None:
    text = module.read_text()
    docstring = ast.get_docstring(ast.parse(text))

    assert docstring, "the first line states the module's purpose"
    assert module.stem not in BANNED
    assert len(text.splitlines()) <= LINES_MAX, "split it by noun"
    assert len(module.relative_to(ROOT / "src" / "headgate").parts) <= 2, "packages are one level deep"


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

    assert loaded_by("import headgate.store.sqlite") & others == set()
