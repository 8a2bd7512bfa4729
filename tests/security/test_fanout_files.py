"""Attack: read files of the server through the sources and the manifest of a fan-out."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from tests.acceptance.program import until
from tests.security.server import Target

WRITERS = ("operator", "service", "admin")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A server in a project folder, with its home below it, and with links that lead out of the project."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "echo.py").write_text("def back(items):\n    return items if isinstance(items, list) else str(items)\n")
    (folder / "fine.txt").write_text("one\ntwo\n")
    (folder / ".env").write_text("PASSWORD=secret\n")
    (folder / "headgate.toml").write_text("")
    (folder / "link-to-keys").symlink_to(folder / "home" / "keys.json")
    (folder / "link-to-home").symlink_to(folder / "home")
    (folder / "link-to-etc").symlink_to("/etc")
    os.mkfifo(folder / "pipe")
    found = Target(folder, cwd=folder, roles=["operator", "service", "viewer"])
    os.link(folder / "home" / "keys.json", folder / "hard-link")
    yield found
    found.stop()


def paths(target: Target) -> list[str]:
    folder = target.folder
    inside = ["home/keys.json", "home/headgate.db", "link-to-keys", "link-to-home/keys.json", "link-to-etc/passwd",
              "hard-link", "pipe", ".env", "headgate.toml", "../../../../../etc/passwd", "x/../home/keys.json",
              "missing"]  # fmt: skip
    outside = ["/etc/passwd", "/etc/no-such-file", "/proc/self/environ", "/proc/self/root/etc/passwd", "/dev/zero"]
    return [*(f"{folder}/{name}" for name in inside), *outside]


@pytest.mark.parametrize("role", WRITERS)
def test_source__a_file_that_is_not_the_projects__is_refused_without_a_word_of_it(target: Target, role: str) -> None:
    for path in paths(target):
        for source in ("lines", "bytes", "manifest"):
            body = {"group": "g", "handler": "echo:back", source: path}
            answer = target.call(role, "POST", "/fanouts", body)
            assert answer.status == 400, (source, path, answer)
            assert "root:" not in answer.text
            assert '"k' not in str(answer.body.get("items", ""))


def test_source__outside_of_the_roots__says_the_same_whether_it_exists_or_not(target: Target) -> None:
    said = []
    for path in ("/etc/passwd", "/etc/no-such-file"):
        answer = target.call("operator", "POST", "/fanouts", {"group": "g", "handler": "echo:back", "lines": path})
        said.append(answer.body["detail"].replace(path, "PATH"))

    assert said[0] == said[1]


def test_manifest__that_names_a_file_of_the_home__is_refused(target: Target) -> None:
    for number, path in enumerate(("home/keys.json", "../../etc/passwd", str(target.home / "keys.json"))):
        manifest = target.folder / f"manifest-{number}.json"
        manifest.write_text(json.dumps({"group": "g", "handler": "echo:back", "lines": path}))
        answer = target.call("operator", "POST", "/fanouts", {"manifest": str(manifest)})
        assert answer.status == 400, (path, answer)


def test_source__a_viewer__may_not_create_a_fan_out_at_all(target: Target) -> None:
    body = {"group": "g", "handler": "echo:back", "lines": f"{target.folder}/fine.txt"}
    assert target.call("viewer", "POST", "/fanouts", body).status == 403


def test_source__a_file_of_the_project__is_read(target: Target) -> None:
    body = {"group": "g", "handler": "echo:back", "lines": f"{target.folder}/fine.txt", "run_id": "fine"}
    assert target.call("operator", "POST", "/fanouts", body).status == 201
    until(lambda: target.call("operator", "GET", "/fanouts/fine").body["is_finished"], "the end of the fan-out")
    chunks = target.call("operator", "GET", "/fanouts/fine/chunks").body["chunks"]
    assert [chunk["output"] for chunk in chunks] == [["one", "two"]]
