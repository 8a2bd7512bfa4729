"""Messages about chunks: what is sent, and what is understood of what comes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headgate.errors import InvalidIdError, InvalidPayloadError
from headgate.fanout.model.messages import message_about, message_of
from headgate.fanout.model.rows import chunk_of, fanout_of

RUN = {"PK": "run", "SK": "RUN", "survey": "grs-15", "created_at": "2026-02-17T10:00:00Z"}
CHUNK = {"PK": "run", "SK": "CHUNK#chunk-0000500", "chunk_key": "chunks/run/chunk-0000500.npz", "status": "PENDING"}


def test_message__of_a_chunk__has_what_workers_of_others_read() -> None:
    fanout = fanout_of({**RUN, "params": '{"beta":3.5}'})

    message = message_about(fanout, chunk_of(CHUNK))

    assert json.loads(message) == {
        "chunk_key": "chunks/run/chunk-0000500.npz",
        "survey": "grs-15",
        "run_id": "run",
        "params": {"beta": 3.5},
        "chunk_id": "chunk-0000500",
    }
    assert message_of(message).chunk_id == "chunk-0000500"


def test_message__without_parameters__does_not_speak_of_them() -> None:
    assert "params" not in json.loads(message_about(fanout_of(RUN), chunk_of(CHUNK)))


def test_message__without_a_chunk_id__is_reported_by_the_name_of_the_input() -> None:
    assert message_of({"chunk_key": "chunks/run/chunk-0000500.npz", "run_id": "run"}).chunk_id == "chunk-0000500"


@pytest.mark.parametrize(
    "message", ["", "[]", "null", "{}", '{"run_id": 7}', '{"run_id": "run"}', b"\xff", {"chunk_id": "chunk-0000000"}]
)
def test_message__not_about_a_chunk__is_refused(message: Any) -> None:
    with pytest.raises(InvalidPayloadError, match="message"):
        message_of(message)


@pytest.mark.parametrize("chunk_id", ["0000500", "chunk-500", "RUN", "chunk-00005x0"])
def test_message__id_of_no_chunk__is_refused(chunk_id: str) -> None:
    with pytest.raises(InvalidIdError, match="looks like"):
        message_of(("run", chunk_id))


def test_message__names_its_input_otherwise__is_refused() -> None:
    with pytest.raises(InvalidIdError, match="'cube'"):
        message_of({"chunk_key": "cubes/cube.fits", "run_id": "run"})
