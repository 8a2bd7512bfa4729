"""Result writer: the files that a distributed Map writes to blobs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from headgate.asl.errors import EXCEED_TOLERATED_FAILURE_THRESHOLD, RESULT_WRITER_FAILED
from headgate.asl.map import results as map_results
from headgate.asl.map.item_readers import blob_name
from headgate.fanout.model.states import FanoutStatus
from tests.integration.asl.map_rig import MapRig, each

BOTH = pytest.mark.parametrize("kind", ["STANDARD", "EXPRESS"])
PUT = "arn:aws:states:::s3:putObject"


@pytest.fixture
def rig() -> Iterator[MapRig]:
    with MapRig() as made:
        yield made


def writer(bucket: str = "out", prefix: str = "jobs", **config: str) -> dict[str, Any]:
    made: dict[str, Any] = {"Resource": PUT, "Parameters": {"Bucket": bucket, "Prefix": prefix}}
    return {**made, "WriterConfig": config} if config else made


@BOTH
def test_writer__all_succeed__writes_a_manifest_and_what_is_known_of_each(rig: MapRig, kind: str) -> None:
    result = rig.run(each(kind, ResultWriter=writer()), [1, 2])
    folder = f"jobs/{rig.map_run.run_id}"
    assert result == {
        "MapRunArn": rig.map_run.run_id,
        "ResultWriterDetails": {"Bucket": "out", "Key": f"{folder}/manifest.json"},
    }
    manifest = rig.read("out", f"{folder}/manifest.json")
    assert (manifest["DestinationBucket"], manifest["MapRunArn"]) == ("out", rig.map_run.run_id)
    files = manifest["ResultFiles"]
    assert (files["FAILED"], files["PENDING"]) == ([], [])
    assert [file["Key"] for file in files["SUCCEEDED"]] == [f"{folder}/SUCCEEDED_0.json"]
    written = rig.read("out", f"{folder}/SUCCEEDED_0.json")
    assert files["SUCCEEDED"][0]["Size"] == len(rig.blobs.get(blob_name("out", f"{folder}/SUCCEEDED_0.json")))
    assert [(each["Input"], each["Output"], each["Status"]) for each in written] == [
        ("1", "2", "SUCCEEDED"),
        ("2", "4", "SUCCEEDED"),
    ]
    assert written[0]["StateMachineArn"] == "m/Each"
    if kind == "STANDARD":
        assert {each["ExecutionArn"] for each in written} == {row.execution_id for row in rig.children()}


@BOTH
def test_writer__the_map_run_fails__writes_what_failed_and_what_was_not_begun(rig: MapRig, kind: str) -> None:
    rig.broken = {2}
    assert rig.run(each(kind, MaxConcurrency=1, ResultWriter=writer()), [1, 2, 3]) == EXCEED_TOLERATED_FAILURE_THRESHOLD
    folder = f"jobs/{rig.map_run.run_id}"
    failed = rig.read("out", f"{folder}/FAILED_0.json")
    assert [(each["Input"], each["Error"], each["Status"]) for each in failed] == [("2", "ValueError", "FAILED")]
    assert "Output" not in failed[0]
    pending = rig.read("out", f"{folder}/PENDING_0.json")
    assert [each["Input"] for each in pending] == ["3"]

    rig.broken = set()
    rig.executions.redrive("m:one")
    rig.ended("m:one")
    written = rig.read("out", f"{folder}/SUCCEEDED_0.json")
    assert [each["Output"] for each in written] == ["2", "4", "6"]
    assert [each["RedriveCount"] for each in written] == [0, 1, 1]
    assert rig.read("out", f"{folder}/manifest.json")["ResultFiles"]["FAILED"] == []


def test_writer__more_than_a_file_holds__goes_on_in_the_next(rig: MapRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(map_results, "FILE_BYTES_MAX", 10)
    rig.run(each("EXPRESS", ResultWriter=writer(Transformation="COMPACT")), [1000, 2000, 3000])
    keys = [f"jobs/{rig.map_run.run_id}/SUCCEEDED_{place}.json" for place in (0, 1)]
    assert [rig.read("out", key) for key in keys] == [[2000, 4000], [6000]]


@pytest.mark.parametrize(
    ("config", "content"),
    [
        ({"Transformation": "COMPACT", "OutputType": "JSON"}, b"[[1,2],3]"),
        ({"Transformation": "FLATTEN", "OutputType": "JSON"}, b"[1,2,3]"),
        ({"Transformation": "FLATTEN", "OutputType": "JSONL"}, b"1\n2\n3"),
    ],
)
def test_writer__transformed__writes_outputs_alone(rig: MapRig, config: dict[str, str], content: bytes) -> None:
    rig.run(each("EXPRESS", ("Pass", {"Type": "Pass"}), ResultWriter=writer(prefix="", **config)), [[1, 2], 3])
    end = "jsonl" if config["OutputType"] == "JSONL" else "json"
    assert rig.blobs.get(blob_name("out", f"{rig.map_run.run_id}/SUCCEEDED_0.{end}")) == content


@pytest.mark.parametrize(
    ("config", "result"),
    [
        ({"Transformation": "COMPACT"}, [[1, 2], 3]),
        ({"Transformation": "FLATTEN"}, [1, 2, 3]),
    ],
)
def test_writer__without_a_bucket__forms_the_result(rig: MapRig, config: dict[str, str], result: list[Any]) -> None:
    found = rig.run(each("EXPRESS", ("Pass", {"Type": "Pass"}), ResultWriter={"WriterConfig": config}), [[1, 2], 3])
    assert found == result


def test_writer__with_all_that_is_known__gives_it_as_the_result(rig: MapRig) -> None:
    found = rig.run(each("EXPRESS", ResultWriter={"WriterConfig": {"Transformation": "NONE"}}), [1])
    assert [(each["Status"], json.loads(each["Output"])) for each in found] == [("SUCCEEDED", 2)]


def test_writer__of_a_name_that_no_blob_can_have__fails_and_does_nothing_again_when_redriven(rig: MapRig) -> None:
    definition = each("EXPRESS", ResultWriter={"Resource": PUT, "Parameters": {"Bucket": "out", "Prefix": "a b"}})
    assert rig.run(definition, [1, 2]) == RESULT_WRITER_FAILED
    assert rig.map_run.status is FanoutStatus.SUCCEEDED

    rig.executions.redrive("m:one")
    assert rig.ended("m:one") == RESULT_WRITER_FAILED
    assert rig.calls == {"double 1": 1, "double 2": 1}
