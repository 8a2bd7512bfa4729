"""Blobs in a folder: whole, durable, and never outside it."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headgate.errors import NotFoundError, StoreIOError, UserError
from headgate.store.blobs.folder import Blobs, FolderBlobs, check_blob_name

GOOD_NAMES = ["a", "a/b", "spill/2040010100/0f", "A-Z_0=9.json.gz", "a/b/c/d/e", "x" * 200, "a..b", "part/" + "x" * 100]
BAD_NAMES = [
    "",
    "/a",
    "a/",
    "a//b",
    "..",
    "../a",
    "a/../b",
    ".a",
    "a/.b",
    "a b",
    "a\\b",
    "é",
    "a\n",
    "a\0b",
    "x" * 901,
    "~/a",
    "a:b",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


@pytest.fixture
def blobs(folder: Path) -> Blobs:
    return FolderBlobs(folder)


def _files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", GOOD_NAMES)
@pytest.mark.parametrize("content", [b"", b"text", bytes(range(256)) * 100], ids=len)
def test_get__after_put__gives_the_content(blobs: Blobs, name: str, content: bytes) -> None:
    blobs.put(name, content)

    assert blobs.get(name) == content


def test_put__the_same_again__is_harmless(blobs: Blobs, folder: Path) -> None:
    blobs.put("a/b", b"content")

    blobs.put("a/b", b"content")

    assert blobs.get("a/b") == b"content"
    assert _files(folder) == ["a/b"]


@pytest.mark.parametrize("name", ["a", "a/b", "spill/x"])
def test_get__no_such_blob__is_not_found(blobs: Blobs, name: str) -> None:
    with pytest.raises(NotFoundError) as caught:
        blobs.get(name)

    assert caught.type is NotFoundError
    assert name in caught.value.message


def test_get__name_of_a_folder__is_not_found(blobs: Blobs) -> None:
    blobs.put("a/b", b"content")

    with pytest.raises(NotFoundError):
        blobs.get("a")


def test_get__name_below_a_blob__is_not_found(blobs: Blobs) -> None:
    blobs.put("a", b"content")

    with pytest.raises(NotFoundError):
        blobs.get("a/b")


def test_delete__a_blob__removes_it_alone(blobs: Blobs) -> None:
    blobs.put("a/b", b"1")
    blobs.put("a/c", b"2")

    blobs.delete("a/b")

    assert list(blobs.list("")) == ["a/c"]


@pytest.mark.parametrize("name", ["a", "a/b", "other/c/d"])
def test_delete__no_such_blob__is_harmless(blobs: Blobs, name: str) -> None:
    blobs.put("z", b"content")

    blobs.delete(name)

    assert list(blobs.list("")) == ["z"]


@pytest.mark.parametrize(("there", "name"), [("a/b", "a"), ("a", "a/b")])
def test_delete__name_above_or_below_a_blob__is_harmless(blobs: Blobs, there: str, name: str) -> None:
    blobs.put(there, b"content")

    blobs.delete(name)

    assert blobs.get(there) == b"content"


def test_list__by_prefix__gives_names_in_order(blobs: Blobs) -> None:
    names = [
        "spill/2040010102/b",
        "spill/2040010101/z",
        "spill/2040010102/a",
        "archive/a",
        "spill-other/x",
        "spill/a.b",
    ]
    for name in names:
        blobs.put(name, b"content")

    assert list(blobs.list("spill/")) == sorted(name for name in names if name.startswith("spill/"))
    assert list(blobs.list("spill/2040010102/")) == ["spill/2040010102/a", "spill/2040010102/b"]
    assert list(blobs.list("spill/20400101")) == ["spill/2040010101/z", "spill/2040010102/a", "spill/2040010102/b"]
    assert list(blobs.list("")) == sorted(names)


@pytest.mark.parametrize("prefix", ["", "spill/", "none/at/all"])
def test_list__nothing_there__is_empty(blobs: Blobs, prefix: str) -> None:
    assert list(blobs.list(prefix)) == []


def test_list__remains_of_a_crashed_put__are_not_blobs(blobs: Blobs, folder: Path) -> None:
    blobs.put("a/b", b"content")
    (folder / "a" / ".b.1234abcd").write_bytes(b"half")

    assert list(blobs.list("")) == ["a/b"]


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_check_blob_name__safe_name__is_allowed(name: str) -> None:
    check_blob_name(name)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_any_call__name_that_could_leave_the_folder__is_refused(blobs: Blobs, folder: Path, name: str) -> None:
    for call in (lambda: blobs.put(name, b"content"), lambda: blobs.get(name), lambda: blobs.delete(name)):
        with pytest.raises(UserError) as caught:
            call()
        assert caught.type is UserError

    assert not folder.exists()


def test_put__by_many_threads__is_whole_at_every_moment(blobs: Blobs, folder: Path) -> None:
    content = b"x" * 200_000
    seen: list[bytes] = []

    def write() -> None:
        for _ in range(5):
            blobs.put("a/b", content)
            seen.append(blobs.get("a/b"))

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert seen == [content] * 20
    assert _files(folder) == ["a/b"]


@pytest.mark.parametrize("name", ["taken/b", "x" * 300])
def test_put__file_system_refuses__says_so_and_leaves_nothing(blobs: Blobs, folder: Path, name: str) -> None:
    blobs.put("taken", b"content")

    with pytest.raises(StoreIOError) as caught:
        blobs.put(name, b"content")

    assert caught.type is StoreIOError
    assert _files(folder) == ["taken"]


def test_put__disk_gives_out_half_way__leaves_no_part_of_it(folder: Path) -> None:
    # A file-size limit stands in for a full disk: the write fails after its first 4096 bytes.
    script = """
import resource, signal, sys
from pathlib import Path
from headgate.errors import HeadgateError
from headgate.store.blobs.folder import FolderBlobs
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    FolderBlobs(Path(sys.argv[1])).put("a/b", b"x" * 10_000)
except HeadgateError as exc:
    print(type(exc).__name__)
"""

    done = subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "StoreFullError"
    assert _files(folder) == []
