"""Build digest: what makes another build, and what does not."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from headgate.durable.sdk.build_digest import _source_digest, build_of, source_files

SHOP = """
import headgate as hg
import prices

app = hg.App("shop")


@app.workflow
async def order() -> int:
    return prices.PRICE
"""

Load = Callable[[], hg.App]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    monkeypatch.syspath_prepend(str(tmp_path))
    own = {"shop", "prices", "other"}

    def fresh() -> hg.App:
        for name in [each for each in sys.modules if each.partition(".")[0] in own]:
            del sys.modules[name]
        importlib.invalidate_caches()
        _source_digest.cache_clear()
        app: hg.App = importlib.import_module("shop").app
        return app

    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "prices.py").write_text("PRICE = 1\n")
    yield fresh
    for name in [each for each in sys.modules if each.partition(".")[0] in own]:
        del sys.modules[name]


def test_build__same_source__is_the_same(load: Load) -> None:
    assert build_of(load()) == build_of(load())


@pytest.mark.parametrize("file", ["shop.py", "prices.py"])
def test_build__file_of_the_app_or_of_an_import_changed__is_another(load: Load, tmp_path: Path, file: str) -> None:
    before = build_of(load())
    with (tmp_path / file).open("a") as source:
        source.write("# changed\n")
    assert build_of(load()) != before


def test_build__file_that_is_not_imported_changed__is_the_same(load: Load, tmp_path: Path) -> None:
    before = build_of(load())
    (tmp_path / "other.py").write_text("x = 1\n")
    assert build_of(load()) == before


def test_source_files__package__has_relative_and_nested_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "parcels"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "main.py").write_text("from .inner import deep\nfrom . import labels\nimport json\n")
    (package / "labels.py").write_text("def later():\n    from parcels import late\n")
    (package / "late.py").write_text("")
    (package / "unused.py").write_text("")
    (package / "inner" / "__init__.py").write_text("from .. import top\n")
    (package / "inner" / "deep.py").write_text("")
    (package / "top.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("parcels.main")
    found = [name for name, _ in source_files(["parcels.main"])]
    expected = ["", ".inner", ".inner.deep", ".labels", ".late", ".main", ".top"]
    assert found == [f"parcels{each}" for each in expected]


def test_source_files__app_in_a_folder_with_installed_packages__are_its_own(load: Load, tmp_path: Path) -> None:
    """As in the package of a Lambda function, where everything is in one folder."""
    (tmp_path / "prices.py").write_text("import headgate.errors\nimport taxes.rates\nimport single\nPRICE = 1\n")
    for name in ("headgate", "taxes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / "headgate" / "errors.py").write_text("")
    (tmp_path / "taxes" / "rates.py").write_text("")
    (tmp_path / "single.py").write_text("")
    (tmp_path / "taxes-1.0.dist-info").mkdir()
    record = "taxes/__init__.py,sha256=x,0\ntaxes/rates.py,,\nsingle.py,,\ntaxes-1.0.dist-info/RECORD,,\n"
    (tmp_path / "taxes-1.0.dist-info" / "RECORD").write_text(record)

    assert [name for name, _ in source_files([load().workflows["order"].function.__module__])] == ["prices", "shop"]


def test_build__function_without_a_file__is_named_by_its_code() -> None:
    def made(result: int) -> hg.App:
        app = hg.App("shell")
        place: dict[str, Any] = {"__name__": "nowhere"}
        exec(f"async def order(): return {result}", place)
        app.workflow(check=False)(place["order"])
        return app

    assert build_of(made(1)) == build_of(made(1))
    assert build_of(made(1)) != build_of(made(2))


def test_build__activities_of_one_factory__have_one_qualified_name() -> None:
    def answer(value: int) -> Callable[[], int]:
        def answering() -> int:
            return value

        return answering

    app = hg.App("shop")
    for value in range(3):
        app.activity(name=f"answer-{value}")(answer(value))

    assert build_of(app) == build_of(app)
