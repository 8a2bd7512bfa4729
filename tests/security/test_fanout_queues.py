"""Attack: have the server send messages to a queue of others with its own AWS credentials."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from tests.acceptance.program import until
from tests.security.server import Target

WRITERS = ("operator", "service", "admin")
REGION = "eu-west-1"
OTHERS = f"https://sqs.{REGION}.amazonaws.com/123456789012/payroll"
DEFAULT = f"https://sqs.{REGION}.amazonaws.com/123456789012/chunks"


@pytest.fixture(scope="module")
def sqs() -> Iterator[socket.socket]:
    """A socket in the place of SQS: what connects to it is in its backlog."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.setblocking(False)
        yield made


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, sqs: socket.socket) -> Iterator[Target]:
    """A server that may use SQS, with a queue for fan-outs that name none and no other."""
    folder = tmp_path_factory.mktemp("project")
    found = Target(
        folder,
        cwd=folder,
        roles=["operator", "service"],
        AWS_ACCESS_KEY_ID="key",
        AWS_SECRET_ACCESS_KEY="secret",
        HEADGATE_STORE_AWS_REGION=REGION,
        HEADGATE_STORE_AWS_ENDPOINT_URL=f"http://127.0.0.1:{sqs.getsockname()[1]}",
        HEADGATE_FANOUT_QUEUE_URL=DEFAULT,
        HEADGATE_FANOUT_MANIFESTS="manifests",
    )
    yield found
    found.stop()


@pytest.mark.parametrize("role", WRITERS)
def test_queue__that_no_setting_names__is_refused_with_the_setting_and_never_called(
    target: Target, sqs: socket.socket, role: str
) -> None:
    endpoint = f"http://127.0.0.1:{sqs.getsockname()[1]}"
    for url in (OTHERS, f"{DEFAULT}-dead", f"{endpoint}/000000000000/payroll", "https://169.254.169.254/1/x"):
        answer = target.call(role, "POST", "/fanouts", {"group": "g", "range": [0, 3], "queue_url": url})

        assert answer.status == 400, (url, answer)
        assert "fanout.queues allows none" in answer.body["detail"], answer

    assert target.call("admin", "GET", "/fanouts").body["fanouts"] == []
    with pytest.raises(BlockingIOError):
        sqs.accept()


def test_manifest__with_a_queue_that_no_setting_names__is_refused_and_never_called(
    target: Target, sqs: socket.socket
) -> None:
    manifest = target.folder / "manifests" / "m.json"
    until(manifest.parent.is_dir, "the folder of manifests")
    manifest.write_text(json.dumps({"group": "g", "range": [0, 3], "queue_url": OTHERS}))
    refused = manifest.parent / "refused" / manifest.name

    until(refused.is_file, "the manifest among the refused ones")

    with pytest.raises(BlockingIOError):
        sqs.accept()
