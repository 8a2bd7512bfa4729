"""Which of folder and API is in force: the side that made the latest change."""

from __future__ import annotations

import pytest

from headgate.pipelines.catalog.project import first_from_folder, keeps_api_change
from headgate.pipelines.catalog.provenance import API
from headgate.pipelines.catalog.rows import StoredPipeline
from headgate.pipelines.definition.model import Pipeline


def stored(source: str, text: str, *, deleted: bool = False, version: int = 1) -> StoredPipeline:
    return StoredPipeline(
        pipeline=Pipeline(id="silver"), version=version, digest="", by="ana", at="", source=source,
        source_digest=text, deleted=deleted,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("file", "current", "loaded", "keeps"),
    [
        ("a", stored("s.yaml", "a"), stored("s.yaml", "a"), False),
        ("b", stored("s.yaml", "a"), stored("s.yaml", "a"), False),
        ("a", stored(API, "x"), stored("s.yaml", "a"), True),
        ("b", stored(API, "x"), stored("s.yaml", "a"), False),
        ("x", stored(API, "x"), stored("s.yaml", "a"), False),
        ("a", stored(API, "x"), None, False),
        ("a", stored("s.yaml", "a", deleted=True), stored("s.yaml", "a"), True),
        ("b", stored("s.yaml", "a", deleted=True), stored("s.yaml", "a"), False),
    ],
    ids=[
        "nothing changed", "file changed", "API changed", "both changed", "both agree", "file is new", "API deleted",
        "API deleted, file changed",
    ],
)  # fmt: skip
def test_keeps_api_change__who_changed_it_last__is_in_force(
    file: str, current: StoredPipeline, loaded: StoredPipeline | None, keeps: bool
) -> None:
    assert keeps_api_change(file, current, loaded) is keeps


def test_first_from_folder__deletions_and_calls_of_the_api__are_passed_over() -> None:
    deleted, called, loaded = stored("s.yaml", "a", deleted=True), stored(API, "x"), stored("s.yaml", "a")

    assert first_from_folder([deleted, called, loaded, stored("s.yaml", "older")]) is loaded
    assert first_from_folder([called]) is None
