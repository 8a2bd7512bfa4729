"""The scaffold of a new project: it validates, it runs, and it touches nothing that is there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headgate.bootstrap.store import load_app
from headgate.errors import AlreadyExistsError, InvalidIdError, StoreIOError
from headgate.pipelines.authoring.archetypes import load_archetypes
from headgate.pipelines.authoring.loader import Known, load_folder
from headgate.pipelines.authoring.scaffold import project_files, project_name, write_project
from headgate.settings import Settings

FILES = [
    ".gitignore",
    "app.py",
    "archetypes/shop-load.yaml",
    "headgate.toml",
    "pipelines/shop-daily.yaml",
    "schemas/archetype.json",
    "schemas/pipeline.json",
    "schemas/probe.json",
]


def test_write_project__a_new_folder__has_every_file_and_validates(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    written = write_project(folder)
    assert sorted(path.relative_to(folder).as_posix() for path in written) == FILES
    archetypes = load_archetypes(folder / "archetypes")
    assert "shop-load" in archetypes
    loaded = load_folder(folder / "pipelines", Known(archetypes=archetypes))
    assert loaded.problems == ()
    assert [each.pipeline.id for each in loaded.pipelines] == ["shop-daily"]


def test_write_project__its_settings__are_all_known(tmp_path: Path) -> None:
    write_project(tmp_path / "shop")
    settings = Settings.load({}, tmp_path / "shop" / "headgate.toml", {})
    assert settings.http.port == 8400


def test_write_project__its_app__has_the_workflow_that_the_pipeline_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "shop"
    write_project(folder)
    (folder / "app.py").rename(folder / "shop_app.py")
    monkeypatch.syspath_prepend(str(folder))
    app = load_app("shop_app:app")
    (loaded,) = load_folder(folder / "pipelines").pipelines
    assert loaded.pipeline.trigger is not None
    assert loaded.pipeline.trigger.config["workflow"] in app.workflows
    sys.modules.pop("shop_app")


@pytest.mark.parametrize("there", FILES)
def test_write_project__one_of_the_files_is_there__nothing_is_written(tmp_path: Path, there: str) -> None:
    folder = tmp_path / "shop"
    (folder / there).parent.mkdir(parents=True, exist_ok=True)
    (folder / there).write_text("mine")
    with pytest.raises(AlreadyExistsError, match=r"it is there already"):
        write_project(folder)
    assert [path.read_text() for path in folder.rglob("*") if path.is_file()] == ["mine"]


def test_write_project__where_no_one_can_write__says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreIOError, match="cannot be written"):
        write_project(tmp_path / "file" / "shop", "shop")


@pytest.mark.parametrize(
    ("folder", "name"), [("My Shop 2", "my-shop-2"), ("--a__b--", "a-b"), ("ÄB cd", "b-cd"), ("x" * 300, "x" * 100)]
)
def test_project_name__of_a_folder__is_one_that_ids_can_be_made_of(folder: str, name: str) -> None:
    assert project_name(Path("/srv") / folder) == name


@pytest.mark.parametrize("name", ["", "x", "A", "a b", "-a", "../up", "a" * 101])
def test_project_files__a_name_that_is_none__is_refused(name: str) -> None:
    with pytest.raises(InvalidIdError):
        project_files(name)
