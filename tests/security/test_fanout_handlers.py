"""Attack: run code on the server by naming a function as the handler of a fan-out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.program import until
from tests.security.server import Target

MARKS = "-cimport pathlib;pathlib.Path({mark!r}).touch()"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A server whose current folder is the root of the file system, as that of a service often is."""
    found = Target(tmp_path_factory.mktemp("root"), cwd=Path("/"), roles=["operator"])
    yield found
    found.stop()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A server in a project folder with modules of its own, one of which links to the standard library."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "prices.py").write_text(
        "import os, subprocess\nfrom os import system\n\n\ndef update(items):\n    return len(items)\n\n\n"
        "def _private(items):\n    return 1\n\n\nclass Command(subprocess.Popen):\n    pass\n"
    )
    (folder / "jobs").mkdir()
    (folder / "jobs" / "daily.py").write_text("def run(items):\n    return 'ran'\n")
    (folder / "venv" / "lib" / "site-packages" / "installed").mkdir(parents=True)
    (folder / "venv" / "lib" / "site-packages" / "installed" / "__init__.py").write_text(
        "import pathlib\npathlib.Path('imported').touch()\n\n\ndef run(items):\n    return 1\n"
    )
    outside = tmp_path_factory.mktemp("outside")
    (outside / "linked.py").write_text(
        "import pathlib\npathlib.Path('imported').touch()\n\n\ndef run(items):\n    return 1\n"
    )
    (folder / "linked.py").symlink_to(outside / "linked.py")
    found = Target(folder, cwd=folder, roles=["operator"])
    yield found
    found.stop()


def refused(target: Target, handler: str, item: object = 1) -> str:
    """Submit a fan-out with one item, and return why its handler was not run. Fails if it was."""
    made = target.call(
        "operator", "POST", "/fanouts", {"group": "g", "handler": handler, "each": True, "items": [item]}
    )
    if made.status == 400:
        return str(made.text)
    assert made.status == 201, made.text
    path = f"/fanouts/{made.body['run_id']}"

    def shown() -> bool:
        found = target.call("operator", "GET", path).body
        assert (found["counts"]["done"], found["counts"]["retrying"], found["is_finished"]) == (0, 0, False), found
        return any("cannot run it" in note for note in found["notes"])

    until(shown, f"the note that {handler} is refused")
    notes = target.call("operator", "GET", path).body["notes"]
    target.call("operator", "POST", f"{path}/cancel", {})
    return str(notes)


@pytest.mark.parametrize(
    "handler",
    ["test.support.script_helper:assert_python_ok", "lib2to3.main:main", "idlelib.run:main", "headgate.cli.main:main",
     "msgspec.json:encode"],
)  # fmt: skip
def test_handler__of_the_standard_library_with_the_server_in_the_root_folder__runs_nothing(
    target: Target, tmp_path: Path, handler: str
) -> None:
    mark = tmp_path / "ran"

    assert handler.partition(".")[0] in refused(target, handler, MARKS.format(mark=str(mark)))
    assert not mark.exists()


@pytest.mark.parametrize(
    "handler",
    ["prices:system", "prices:os.system", "prices:_private", "prices:Command", "prices:update.__globals__",
     "venv.lib.installed:run", "linked:run", "subprocess:call"],
)  # fmt: skip
def test_handler__that_is_not_a_public_function_of_the_project__runs_nothing(project: Target, handler: str) -> None:
    assert refused(project, handler)
    assert not (project.folder / "imported").exists()


@pytest.mark.parametrize("handler", ["prices:update", "jobs.daily:run"])
def test_handler__a_public_function_of_the_project__runs(project: Target, handler: str) -> None:
    body = {"group": "g", "handler": handler, "items": [1]}
    made = project.call("operator", "POST", "/fanouts", body).body
    path = f"/fanouts/{made['run_id']}"
    until(lambda: project.call("operator", "GET", path).body["is_finished"], "the end of the fan-out")
    assert project.call("operator", "GET", path).body["status"] == "SUCCEEDED"
