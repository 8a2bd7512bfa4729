"""File roots: which files may be read, whatever their paths and links say."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from headgate.errors import NotFoundError
from headgate.file_roots import FileRoots, file_roots, usable_project


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A project with a home in it, and a folder beside it."""
    for name in ("project/data", "project/home", "project/.git", "beside"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "project/data/fine").write_bytes(b"fine")
    (tmp_path / "project/home/keys.json").write_bytes(b"secret")
    (tmp_path / "project/.git/config").write_bytes(b"secret")
    (tmp_path / "project/headgate.toml").write_bytes(b"secret")
    (tmp_path / "beside/other").write_bytes(b"secret")
    return tmp_path


def roots_of(site: Path) -> FileRoots:
    return file_roots([site / "project"], [site / "project/home"])


def test_open__a_file_below_a_root__is_read_also_by_a_link_inside(site: Path) -> None:
    (site / "project/link").symlink_to("data/fine")

    for name in ("data/fine", "link"):
        with roots_of(site).open(site / "project" / name) as file:
            assert file.read() == b"fine"


def test_open__a_root_that_is_a_link__is_resolved(site: Path) -> None:
    (site / "current").symlink_to("project")

    with file_roots([site / "current"]).open(site / "current/data/fine") as file:
        assert file.read() == b"fine"


@pytest.mark.parametrize(
    "name",
    ["project/home/keys.json", "project/.git/config", "project/headgate.toml", "beside/other", "project/to-home",
     "project/to-beside/other", "project/data/../home/keys.json", "project/hard", "project/data", "project/pipe"],
)  # fmt: skip
def test_open__what_is_not_the_projects_own_file__is_refused(site: Path, name: str) -> None:
    (site / "project/to-home").symlink_to(site / "project/home/keys.json")
    (site / "project/to-beside").symlink_to(site / "beside")
    os.link(site / "project/home/keys.json", site / "project/hard")
    os.mkfifo(site / "project/pipe")

    with pytest.raises(NotFoundError):
        roots_of(site).open(site / name)


@pytest.mark.parametrize("path", ["/proc/self/environ", "/sys/kernel/notes", "/dev/zero"])
def test_open__kernel_files_and_devices__are_refused_below_any_root(path: str) -> None:
    with pytest.raises(NotFoundError):
        file_roots(["/"]).open(Path(path))


def test_open__relative_path__is_refused() -> None:
    with pytest.raises(NotFoundError, match="absolute"):
        file_roots(["/"]).open(Path("etc/passwd"))


def test_open__no_roots__nothing_is_read(site: Path) -> None:
    with pytest.raises(NotFoundError, match="no folder"):
        file_roots([]).open(site / "project/data/fine")


def test_open__link_that_is_exchanged_all_the_time__never_leads_out(site: Path) -> None:
    path, stop = site / "project/changing", threading.Event()
    targets = [site / "project/data/fine", site / "project/home/keys.json"]

    def exchange() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            fresh = site / "project" / f"next-{number}"
            fresh.symlink_to(targets[number % 2])
            fresh.replace(path)

    path.symlink_to(targets[0])
    thread = threading.Thread(target=exchange)
    thread.start()
    read = set()
    try:
        for _ in range(500):
            try:
                with roots_of(site).open(path) as file:
                    read.add(file.read())
            except NotFoundError:
                continue
    finally:
        stop.set()
        thread.join()
    assert read <= {b"fine"}


def test_project__the_root_or_a_folder_with_the_users_home__is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "users" / "me"))
    (tmp_path / "users/me/work").mkdir(parents=True)

    assert usable_project(Path("/")) is None
    assert usable_project(tmp_path / "users") is None
    assert usable_project(tmp_path / "users/me") is None
    assert usable_project(tmp_path / "users/me/work") == tmp_path / "users/me/work"
    monkeypatch.chdir("/")
    assert usable_project(None) is None
    monkeypatch.chdir(tmp_path / "users/me/work")
    assert usable_project(None) == tmp_path / "users/me/work"
