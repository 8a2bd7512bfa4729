"""A folder of manifests: each is split once, invalid ones say why, and half-written ones are waited for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.clock import VirtualClock
from headgate.errors import StoreBusyError
from headgate.fanout.core.observer import NoObserver
from headgate.fanout.manifest_folder import ManifestFolder
from headgate.fanout.model.sources import Source
from headgate.fanout.service import FanoutService
from headgate.file_roots import file_roots
from headgate.ids import IdMaker
from tests.stores import open_sqlite

ORDER: dict[str, Any] = {"group": "grs-15", "range": [0, 30], "chunk_size": 10}


class Rig:
    """A folder that is watched, and the fan-outs that come of it."""

    def __init__(self, folder: Path) -> None:
        clock = VirtualClock()
        self.store = open_sqlite(folder, clock=clock)
        self.service = FanoutService(self.store, clock, IdMaker(clock))
        self.project = folder / "project"
        self.folder = self.project / "manifests"
        self.folder.mkdir(parents=True)
        self.watched = self.watch()

    def watch(self) -> ManifestFolder:
        return ManifestFolder(self.folder, self.service.splitter, file_roots([self.project], project=self.project))

    def put(self, name: str, content: Any) -> None:
        (self.folder / name).write_text(content if isinstance(content, str) else json.dumps(content))

    def names(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())

    def fanouts(self) -> list[tuple[str, int]]:
        return sorted((each.run_id, each.chunks_total) for each in self.service.queries.by_group("grs-15").fanouts)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.store.close()


def test_manifest__put_into_the_folder__is_split_and_moved(rig: Rig) -> None:
    rig.put("a.json", {**ORDER, "run_id": "one"})
    rig.put("b.json", ORDER)
    rig.put("notes.txt", "not a manifest")
    rig.put(".hidden.json", ORDER)

    assert rig.watched.run_once() == 2

    (first, second) = rig.fanouts()
    assert (first[0].startswith("b-"), second) == (True, ("one", 3))
    assert rig.names() == [".hidden.json", "accepted/a.json", "accepted/b.json", "notes.txt"]
    assert rig.service.queries.fanout("one").submitted_by == "manifest a.json"
    assert rig.watched.run_once() == 0


def test_manifest__process_died_before_the_move__is_not_split_twice(rig: Rig) -> None:
    rig.put("a.json", ORDER)
    rig.watched.run_once()
    (rig.folder / "accepted" / "a.json").replace(rig.folder / "a.json")

    assert rig.watch().run_once() == 1
    assert len(rig.fanouts()) == 1


def test_manifest__put_again__is_another_fan_out(rig: Rig) -> None:
    rig.put("a.json", ORDER)
    rig.watched.run_once()
    rig.put("a.json", ORDER)
    rig.watched.run_once()

    assert len(rig.fanouts()) == 2


def test_manifest__half_written__is_waited_for(rig: Rig) -> None:
    text = json.dumps(ORDER)
    rig.put("a.json", text[:20])
    assert rig.watched.run_once() == 0
    rig.put("a.json", text[:25])
    assert rig.watched.run_once() == 0
    rig.put("a.json", text)

    assert rig.watched.run_once() == 1
    assert rig.names() == ["accepted/a.json"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "manifest "),
        ({**ORDER, "colour": "red"}, "colour"),
        ({"lines": "../../etc/passwd"}, "give an absolute path without"),
        ({**ORDER, "manifest": "x.json"}, "nested manifests are not supported"),
        ({**ORDER, "queue_url": "https://sqs.eu-west-1.amazonaws.com/1/x"}, "queue_url"),
    ],
)
def test_manifest__invalid__is_refused_with_the_reason_beside_it(rig: Rig, content: Any, reason: str) -> None:
    rig.put("bad.json", content)

    rig.watched.run_once()
    assert rig.watched.run_once() == 0

    assert rig.names() == ["refused/bad.json", "refused/bad.json.reason.txt"]
    assert reason in (rig.folder / "refused" / "bad.json.reason.txt").read_text()
    assert rig.fanouts() == []


def test_manifest__id_that_exists_with_other_input__is_refused(rig: Rig) -> None:
    for size in (10, 5):
        rig.put("a.json", {**ORDER, "run_id": "one", "chunk_size": size})
        rig.watched.run_once()
    rig.watched.run_once()

    assert "it exists with another chunk_size" in (rig.folder / "refused" / "a.json.reason.txt").read_text()


def test_manifest__store_is_busy__stays_and_is_split_later(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(order: Any, source: Source, *, run_id: str | None = None) -> Any:
        raise StoreBusyError("injected")

    rig.put("a.json", ORDER)
    with monkeypatch.context() as patch:
        patch.setattr(rig.service.splitter, "split", busy)
        with pytest.raises(StoreBusyError):
            rig.watched.run_once()

    assert rig.watched.run_once() == 1


def test_folder__link_or_missing__is_left_alone(rig: Rig, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps(ORDER))
    (rig.folder / "link.json").symlink_to(secret)
    assert rig.watched.run_once() == 0
    (rig.folder / "link.json").unlink()
    rig.folder.rmdir()

    assert rig.watched.run_once() == 0


def test_manifest__replaced_while_it_is_split__the_new_one_is_split_too(rig: Rig) -> None:
    rig.put("a.json", {**ORDER, "run_id": "one"})

    class Replacing(NoObserver):
        def on_work_available(self, run_id: str) -> None:
            if run_id == "one":
                rig.put("a.json", {**ORDER, "run_id": "two"})

    rig.service = FanoutService(rig.store, rig.service.clock, rig.service.ids, observer=Replacing())
    watched = rig.watch()

    watched.run_once()
    watched.run_once()

    assert [run_id for run_id, _ in rig.fanouts()] == ["one", "two"]
    assert rig.names() == ["accepted/a.json"]
