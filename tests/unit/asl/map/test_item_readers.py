"""Item readers: items of a distributed Map in blobs."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from headgate.asl.errors import ITEM_READER_FAILED, StateError
from headgate.asl.map.item_readers import ItemReading, blob_name, read_all
from headgate.store.blobs.folder import FolderBlobs

GET = "arn:aws:states:::s3:getObject"
LIST = "arn:aws:states:::s3:listObjectsV2"
OBJECT = {"Bucket": "in", "Key": "data"}
CSV = {"InputType": "CSV", "CSVHeaderLocation": "FIRST_ROW"}
GIVEN = {"InputType": "CSV", "CSVHeaderLocation": "GIVEN", "CSVHeaders": ["x", "y"]}


def read(folder: Path, reading: ItemReading, **objects: bytes) -> list[Any]:
    blobs = FolderBlobs(folder)
    for key, content in objects.items():
        blobs.put(blob_name("in", key.replace("__", "/")), content)
    return list(read_all(blobs, reading))


@pytest.mark.parametrize(
    ("config", "content", "items"),
    [
        (CSV, b"a,b\n1,2\n3,4\n", [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]),
        (CSV, b"\xef\xbb\xbfa\r\n1\r\n\r\n2\r\n", [{"a": "1"}, {"a": "2"}]),
        (GIVEN, b"1,2\n", [{"x": "1", "y": "2"}]),
        # More values than names are left out, fewer are empty.
        (CSV, b"a,b\n1,2,3\n4\n", [{"a": "1", "b": "2"}, {"a": "4", "b": ""}]),
        ({"InputType": "CSV", "CSVDelimiter": "PIPE"}, b'a|b\n"x|y"|2\n', [{"a": "x|y", "b": "2"}]),
        ({"InputType": "CSV", "CSVDelimiter": "TAB"}, b"a\tb\n1\t2\n", [{"a": "1", "b": "2"}]),
        ({"InputType": "CSV"}, b'a\n"two\nlines"\n', [{"a": "two\nlines"}]),
        ({"InputType": "CSV"}, b"", []),
        ({"InputType": "JSON"}, b'[1, {"a": 2}]', [1, {"a": 2}]),
        ({"InputType": "JSON"}, b'{"a": 1}', [{"Key": "a", "Value": 1}]),
        ({"InputType": "JSON", "ItemsPointer": "/deep/1/a~1b"}, b'{"deep": [0, {"a/b": [7]}]}', [7]),
        ({"InputType": "JSONL"}, b'{"a": 1}\n\n[2]\n', [{"a": 1}, [2]]),
        ({"InputType": "JSON"}, gzip.compress(b"[5]", mtime=0), [5]),
    ],
)  # fmt: skip
def test_read__a_file__gives_its_items(
    tmp_path: Path, config: dict[str, Any], content: bytes, items: list[Any]
) -> None:
    assert read(tmp_path, ItemReading(GET, OBJECT, config), data=content) == items


@pytest.mark.parametrize(
    ("reading", "fact"),
    [
        (ItemReading(GET, {"Bucket": "in", "Key": "gone"}, {"InputType": "JSON"}), "buckets/in/gone"),
        (ItemReading(GET, {"Bucket": "in", "Key": "../../archive/secret"}, {"InputType": "JSON"}), "inside its bucket"),
        (ItemReading(GET, {"Bucket": "..", "Key": "secret"}, {"InputType": "JSON"}), "bucket '..'"),
        (ItemReading(LIST, {"Bucket": "in", "Prefix": "../../"}), "inside its bucket"),
        (ItemReading(GET, {"Bucket": "in"}, {"InputType": "JSON"}), "name a Key"),
        (ItemReading(GET, OBJECT, {"InputType": "PARQUET"}), "CSV, JSON, JSONL, MANIFEST"),
        (ItemReading(GET, OBJECT, {"InputType": "JSON"}), "data of bucket in"),
        (ItemReading(GET, OBJECT, {"InputType": "JSONL"}), "data of bucket in"),
        (ItemReading(GET, OBJECT, {"InputType": "MANIFEST"}), "manifest data"),
        (ItemReading(GET, {"Bucket": "in", "Key": "cut"}, {"InputType": "JSON"}), "cannot be expanded"),
        (
            ItemReading("arn:aws:states:::s3:putObject", OBJECT, {"InputType": "JSON"}),
            "s3:getObject or s3:listObjectsV2",
        ),
    ],
)
def test_read__what_cannot_be_read__fails_as_the_reader(tmp_path: Path, reading: ItemReading, fact: str) -> None:
    with pytest.raises(StateError) as caught:
        read(tmp_path, reading, data=b"\xff{not json", cut=gzip.compress(b"[1]", mtime=0)[:-4])
    assert caught.value.error == ITEM_READER_FAILED
    assert fact in caught.value.cause


def test_read__a_pointer_to_nothing__fails_as_the_reader(tmp_path: Path) -> None:
    reading = ItemReading(GET, OBJECT, {"InputType": "JSON", "ItemsPointer": "/a/b"})
    with pytest.raises(StateError, match="there is no 'b'"):
        read(tmp_path, reading, data=b'{"a": {}}')


def test_read__more_items_than_wanted__gives_the_first(tmp_path: Path) -> None:
    assert read(tmp_path, ItemReading(GET, OBJECT, {"InputType": "JSON"}, items_max=2), data=b"[1,2,3]") == [1, 2]


def test_list__a_prefix__gives_the_keys_below_it(tmp_path: Path) -> None:
    reading = ItemReading(LIST, {"Bucket": "in", "Prefix": "day/"})
    found = read(tmp_path, reading, day__b=b"", day__a=b"", night__c=b"")
    assert found == [{"Key": "day/a"}, {"Key": "day/b"}]


@pytest.mark.parametrize(("bucket", "prefix"), [("..", ""), ("in", "../../"), ("../..", "etc/")])
def test_list__a_path_out_of_the_buckets__names_no_other_file(tmp_path: Path, bucket: str, prefix: str) -> None:
    blobs = tmp_path / "blobs"
    (tmp_path / "keys.json").write_bytes(b"{}")
    FolderBlobs(blobs).put("spill/other", b"x")
    reading = ItemReading("arn:aws:states:::s3:listObjectsV2", {"Bucket": bucket, "Prefix": prefix})

    with pytest.raises(StateError, match=r"use letters|inside its bucket"):
        read(blobs, reading, data=b"x")


def test_list__flattened__gives_the_items_of_all_objects(tmp_path: Path) -> None:
    config = {"InputType": "JSONL", "Transformation": "LOAD_AND_FLATTEN"}
    reading = ItemReading(LIST, {"Bucket": "in", "Prefix": "day/"}, config)
    assert read(tmp_path, reading, day__b=b"3\n", day__a=b"1\n2\n", other=b"4\n") == [1, 2, 3]


def test_read__an_inventory__gives_its_rows_by_column(tmp_path: Path) -> None:
    manifest = b'{"sourceBucket": "s", "destinationBucket": "arn:aws:s3:::in", "fileFormat": "CSV", "fileSchema": "Bucket, Key, Size", "files": [{"key": "inv/1.csv.gz"}]}'  # noqa: E501
    reading = ItemReading(GET, OBJECT, {"InputType": "MANIFEST"})
    rows = gzip.compress(b'"s","a%20b.jpg","7"\n"s","c.jpg","8"\n')
    FolderBlobs(tmp_path).put(blob_name("in", "inv/1.csv.gz"), rows)
    found = read(tmp_path, reading, data=manifest)
    assert found == [
        {"Bucket": "s", "Key": "a b.jpg", "Size": "7"},
        {"Bucket": "s", "Key": "c.jpg", "Size": "8"},
    ]


def test_read__an_athena_manifest__gives_the_items_of_the_files_it_names(tmp_path: Path) -> None:
    config = {"InputType": "JSONL", "ManifestType": "ATHENA_DATA"}
    manifest = b"s3://in/part1\ns3://in/part2\n"
    assert read(tmp_path, ItemReading(GET, OBJECT, config), data=manifest, part1=b"1\n", part2=b"2\n3") == [1, 2, 3]


@pytest.mark.parametrize(
    ("reading", "source"),
    [
        (ItemReading(GET, OBJECT), "S3://in/data"),
        (ItemReading(LIST, {"Bucket": "in", "Prefix": "p"}), "S3://in"),
    ],
)
def test_source__of_a_reader__names_where_items_come_from(reading: ItemReading, source: str) -> None:
    assert reading.source == source
