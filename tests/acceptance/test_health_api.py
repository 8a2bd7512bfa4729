"""The health API of the installed program: as the run book calls it, guarded, encrypted, killed, and with others."""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.acceptance.program import Server, run, until

HOST: Final = "statestore.internal"
PAYMENTS: Final = "urn:dp:payments:payment_processed:v1"

# Word for word; only the id of the incident is not known beforehand.
CREATE: Final = """
curl -X POST https://statestore.internal/api/v1/datasets \\
  -H "Authorization: Bearer $TOKEN" \\
  -H "Content-Type: application/json" \\
  -d '{
    "dataset_urn": "urn:dp:payments:payment_processed:v1",
    "display_name": "Payments - Payment Processed",
    "tier": "TIER_1",
    "owner_team": "payments-platform",
    "source": {
      "type": "KAFKA",
      "topic": "raw.payments.events"
    },
    "schema_binding": {
      "registry": "GLUE",
      "schema_name": "payments.payment_processed"
    },
    "slos": {
      "freshness": {"max_delay_seconds": 120},
      "volume": {"min_events_per_window": 1000},
      "contract_compliance": {"min_compliance_rate": 0.99}
    }
  }'
"""
RULE: Final = """
curl -X POST https://statestore.internal/api/v1/datasets/urn:dp:payments:payment_processed:v1/resolution-rules \\
  -H "Authorization: Bearer $TOKEN" \\
  -d '{
    "topic_pattern": "raw.payments.events",
    "resolution_type": "EXACT"
  }'
"""
VERIFY: Final = "curl https://statestore.internal/api/v1/datasets/urn:dp:payments:payment_processed:v1"
SHOW: Final = "curl https://statestore.internal/api/v1/incidents/INC-7721"
RESOLVE: Final = """
curl -X PATCH https://statestore.internal/api/v1/incidents/INC-7721 \\
  -H "Authorization: Bearer $TOKEN" \\
  -d '{
    "status": "RESOLVED",
    "resolution": {
      "root_cause": "Deployment v3.17 removed required field",
      "mitigation": "Rolled back to v3.16",
      "resolved_by": "john.doe@company.com",
      "false_positive": false
    }
  }'
"""

_OPENLINEAGE: Final = """
import sys, uuid
from datetime import datetime, timezone
from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import data_quality_assertions_dataset as quality
from openlineage.client.transport.http import ApiKeyTokenProvider, HttpCompression, HttpConfig, HttpTransport

url, key, ca = sys.argv[1:4]
config = HttpConfig(
    url=url, auth=ApiKeyTokenProvider({"apiKey": key}), compression=HttpCompression.GZIP, verify=ca,
)
client = OpenLineageClient(transport=HttpTransport(config))
failed = quality.DataQualityAssertionsDatasetFacet(
    assertions=[quality.Assertion(assertion="not_null", success=False, column="id")]
)
output = OutputDataset(namespace="warehouse", name="clean.payments", facets={"dataQualityAssertions": failed})
for state in (RunState.START, RunState.COMPLETE):
    client.emit(
        RunEvent(
            eventType=state,
            eventTime=datetime.now(timezone.utc).isoformat(),
            run=Run(runId=str(uuid.UUID("0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"))),
            job=Job(namespace="etl", name="clean_payments"),
            producer="https://example.org/etl",
            inputs=[],
            outputs=[output],
        )
    )
print("sent")
"""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate that vouches for itself, for the name of the run book and this machine."""
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    now = datetime.datetime.now(datetime.UTC)
    addresses = [x509.IPAddress(ipaddress.ip_address(each)) for each in ("127.0.0.1", *_addresses())]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST), *addresses]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "cert.pem", folder / "key.pem"


def _addresses() -> list[str]:
    """Addresses of this machine that others could call."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Nothing is sent; it is only looked up which address would be used.
            probe.connect(("198.51.100.1", 9))
        except OSError:
            return []
        return [str(probe.getsockname()[0])]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]) -> Iterator[Server]:
    cert, key = certificate
    tmp_path = tmp_path_factory.mktemp("secured")
    with Server(tmp_path / "up", "--tls-cert", str(cert), "--tls-key", str(key), HEADGATE_ALLOWED_HOSTS=HOST) as server:
        yield server


def _shell(command: str, folder: Path, **environ: str) -> dict[str, Any]:
    """Run a line of the run book as a person would, and return what was answered."""
    ended = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer


def _port(server: Server) -> int:
    return int(server.url.rpartition(":")[2])


def _curlrc(folder: Path, server: Server, cert: Path) -> None:
    """Let curl find the name of the run book here, and trust its certificate."""
    (folder / ".curlrc").write_text(
        f'connect-to = "{HOST}:443:127.0.0.1:{_port(server)}"\ncacert = "{cert}"\nsilent\nshow-error\n'
    )


def _first_key(server: Server, folder: Path) -> str:
    made = run("api-key", "first", "--home", server.home, "--json", folder=folder, **server.store)
    assert made.returncode == 0, made.stderr
    output = json.loads(made.stdout)
    return next(value for value in _texts(output) if value.startswith("hg"))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def _value(state: str) -> dict[str, Any]:
    now = datetime.datetime.now(datetime.UTC)
    return {
        "state": state,
        "score": 0.1,
        "window_start": (now - datetime.timedelta(minutes=5)).isoformat(),
        "window_end": now.isoformat(),
        "failure_signature": "MISSING_FIELD:customer_id",
    }


def test_run_book__word_for_word__works(secured: Server, tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    _curlrc(tmp_path, secured, certificate[0])
    token = _first_key(secured, tmp_path)

    created = _shell(CREATE, tmp_path, TOKEN=token)
    ruled = _shell(RULE, tmp_path, TOKEN=token)
    shown = _shell(VERIFY, tmp_path)

    assert (created["dataset_urn"], created["config_version"]) == (PAYMENTS, 1)
    assert (ruled["dataset_urn"], ruled["topic_pattern"]) == (PAYMENTS, "raw.payments.events")
    assert (shown["tier"], shown["owner_team"]) == ("TIER_1", "payments-platform")
    assert _shell(CREATE, tmp_path, TOKEN=token)["status"] == 409
    assert _shell(SHOW, tmp_path)["code"] == "not_found"
    with httpx.Client(base_url=secured.url, verify=_trust(certificate[0])) as client:
        put = client.put(f"/api/v1/datasets/{PAYMENTS}/signals/FRESHNESS", json=_value("CRITICAL"))
        assert put.status_code == 200, put.text
        incident = put.json()["current"]["incident_id"]
    assert _shell(SHOW.replace("INC-7721", incident), tmp_path)["status"] == "OPEN"
    resolved = _shell(RESOLVE.replace("INC-7721", incident), tmp_path, TOKEN=token)
    assert resolved["status"] == "RESOLVED"
    assert resolved["resolution"]["root_cause"] == "Deployment v3.17 removed required field"
    assert _shell("curl https://statestore.internal/health", tmp_path)["status"] in ("OK", "ok", "PASSED", "passed")


def _trust(cert: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(cert))


def test_tls__spoken_to_in_clear_or_by_an_old_one__does_not_answer(
    secured: Server, tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    def curl(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["curl", "-q", "-sS", "--max-time", "10", "--cacert", str(certificate[0]), *arguments],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    good = curl(f"{secured.url}/health")
    plain = curl(f"{secured.url.replace('https://', 'http://')}/health")
    stranger = subprocess.run(
        ["curl", "-q", "-sS", f"{secured.url}/health"], capture_output=True, text=True, timeout=30, check=False
    )
    old = curl("--tlsv1.0", "--tls-max", "1.1", "--ciphers", "DEFAULT@SECLEVEL=0", f"{secured.url}/health")
    newer = curl("--tlsv1.2", "--tls-max", "1.2", f"{secured.url}/health")

    assert good.returncode == 0, good.stderr
    assert json.loads(good.stdout)["status"]
    assert newer.returncode == 0
    assert plain.returncode != 0
    assert plain.stdout == ""
    assert stranger.returncode == 60, "the client refuses a certificate without a trusted issuer"
    assert old.returncode == 35
    assert "no protocols available" not in old.stderr, "refused by curl itself, and not by the server"
    assert secured.url.startswith("https://")


def test_auth__required__no_one_gets_in_without_a_key_and_the_first_is_made_on_the_machine(tmp_path: Path) -> None:
    with Server(tmp_path / "up", HEADGATE_AUTH_REQUIRED="true") as server, httpx.Client(base_url=server.url) as client:
        refused = client.get("/api/v1/datasets")
        key = _first_key(server, tmp_path)
        admin = {"authorization": f"Bearer {key}"}
        issued = client.post(
            "/api/v1/api-keys",
            json={"principal": "engine", "roles": ["signal_engine"], "scopes": ["urn:dp:orders:*"]},
            headers=admin,
        )
        engine = {"authorization": f"Bearer {issued.json()['text']}"}
        made = client.post("/api/v1/datasets", json={"dataset_urn": "urn:dp:orders:created:v1"}, headers=admin)
        other = client.post("/api/v1/datasets", json={"dataset_urn": "urn:dp:payments:settled:v1"}, headers=admin)
        mine = client.put(
            "/api/v1/datasets/urn:dp:orders:created:v1/signals/VOLUME", json=_value("WARNING"), headers=engine
        )
        foreign = client.put(
            "/api/v1/datasets/urn:dp:payments:settled:v1/signals/VOLUME", json=_value("WARNING"), headers=engine
        )
        revoked = client.delete(f"/api/v1/api-keys/{issued.json()['key']['key_id']}", headers=admin)
        ended = client.get("/api/v1/datasets", headers=engine)
        public = [client.get(path).status_code for path in ("/", "/health", "/health/live", "/health/ready")]
        private = [client.get(path).status_code for path in ("/metrics", "/health/deep", "/api/v1/executions")]
        log = server.stderr

    assert (refused.status_code, refused.json()["code"]) == (401, "unauthenticated")
    assert refused.headers["www-authenticate"].startswith("Bearer")
    assert [each.status_code for each in (issued, made, other)] == [201, 201, 201]
    assert (mine.status_code, foreign.status_code, revoked.status_code, ended.status_code) == (200, 403, 200, 401)
    assert public == [200] * 4
    assert private == [401] * 3
    assert key not in log, "a key is in the log"


def test_exposed__without_tls_or_a_proxy__does_not_start(tmp_path: Path) -> None:
    ended = run("up", "--http", "0.0.0.0:0", "--grpc", "127.0.0.1:0", folder=tmp_path, HEADGATE_ALLOWED_HOSTS=HOST)

    assert ended.returncode == 2
    assert "tls.cert" in ended.stderr


def test_proxy__that_was_called_in_clear__is_not_believed_a_token(tmp_path: Path) -> None:
    with (
        Server(tmp_path / "up", HEADGATE_BEHIND_PROXY="true", HEADGATE_ALLOWED_HOSTS=HOST) as server,
        httpx.Client(base_url=server.url) as client,
    ):
        key = _first_key(server, tmp_path)
        token = {"authorization": f"Bearer {key}", "host": HOST}
        in_clear = client.get("/api/v1/datasets", headers={**token, "x-forwarded-proto": "http"})
        encrypted = client.get("/api/v1/datasets", headers={**token, "x-forwarded-proto": "https"})

    assert (in_clear.status_code, in_clear.json()["code"]) == (401, "unauthenticated")
    assert encrypted.status_code == 200


def test_exposed__with_tls__others_need_a_key(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    addresses = _addresses()
    assert addresses, "this machine has no address that others could call; give its name one"
    address, (cert, key_file) = addresses[0], certificate
    flags = ["--tls-cert", str(cert), "--tls-key", str(key_file)]
    with (
        _exposed(tmp_path / "up", address, flags) as server,
        httpx.Client(base_url=server.url, verify=_trust(cert)) as client,
    ):
        nobody = client.get("/api/v1/datasets")
        key = _first_key(server, tmp_path)
        someone = client.get("/api/v1/datasets", headers={"authorization": f"Bearer {key}"})

    assert (nobody.status_code, nobody.json()["code"]) == (401, "unauthenticated")
    assert someone.status_code == 200


def _exposed(folder: Path, address: str, flags: list[str]) -> Server:
    # The last of two addresses counts.
    return Server(folder, "--http", f"{address}:0", *flags, HEADGATE_ALLOWED_HOSTS=f"{HOST},{address}")


def test_openlineage__the_client_of_the_project__changes_a_dataset(
    secured: Server, tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    admin = _first_key(secured, tmp_path)
    with httpx.Client(
        base_url=secured.url, verify=_trust(certificate[0]), headers={"authorization": f"Bearer {admin}"}
    ) as client:
        issued = client.post("/api/v1/api-keys", json={"principal": "etl", "roles": ["lineage_ingestor"]})
        ended = subprocess.run(
            [sys.executable, "-c", _OPENLINEAGE, secured.url, issued.json()["text"], str(certificate[0])],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout == "sent\n"
        urn = "urn:dp:warehouse:clean.payments"
        until(lambda: client.get(f"/api/v1/datasets/{urn}/signals").text.count("CRITICAL") > 0, "a signal of the event")
        writers = client.get(f"/api/v1/datasets/{urn}/writers").json()["items"]
        shown = client.get(f"/api/v1/datasets/{urn}").json()

    assert shown["status"] == "DISCOVERED"
    assert len(writers) == 1


def _event(number: int) -> dict[str, Any]:
    return {
        "eventType": "COMPLETE",
        "eventTime": datetime.datetime.now(datetime.UTC).isoformat(),
        "producer": "https://example.org/etl",
        "schemaURL": "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent",
        "run": {"runId": f"0190a1b2-c3d4-7e5f-8a9b-{number:012d}"},
        "job": {"namespace": "etl", "name": f"job_{number % 5}"},
        "inputs": [],
        "outputs": [{"namespace": "crash", "name": f"table_{number}"}],
    }


def test_openlineage__server_killed_while_it_accepts__what_was_answered_is_carried_out(tmp_path: Path) -> None:
    accepted: set[int] = set()
    seconds: list[float] = []
    with Server(tmp_path / "up") as server:

        def send(first: int) -> None:
            with httpx.Client(base_url=server.url, timeout=5) as client:
                for number in range(first, first + 1000):
                    try:
                        answer = client.post("/api/v1/lineage", json=_event(number))
                    except httpx.HTTPError:
                        return
                    seconds.append(answer.elapsed.total_seconds())
                    if answer.status_code == 201:
                        accepted.add(number)

        threads = [threading.Thread(target=send, args=(index * 1000,)) for index in range(4)]
        for thread in threads:
            thread.start()
        until(lambda: len(accepted) >= 60, "events that were accepted")
        server.signal(signal.SIGKILL)
        server.exit_code()
        for thread in threads:
            thread.join()
    counted = len(accepted)
    with Server(tmp_path / "up") as again, httpx.Client(base_url=again.url) as client:

        def missing() -> list[int]:
            urns = [f"urn:dp:crash:table_{number}" for number in sorted(accepted)]
            return [
                number
                for number, urn in zip(sorted(accepted), urns, strict=True)
                if client.get(f"/api/v1/datasets/{quote(urn, safe='')}").status_code != 200
            ]

        until(lambda: not missing(), "events that were accepted and not carried out", 90)
        dead = client.get("/api/v1/lineage/dead-letters").json()["items"]

    assert counted >= 60
    assert dead == []
    assert sorted(seconds)[len(seconds) * 95 // 100] < 2.0, "the client of OpenLineage gives up after five seconds"
