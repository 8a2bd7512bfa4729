"""The same program on DynamoDB and S3: nothing but the settings differs."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate.bootstrap.store import create_dynamodb_tables, open_store
from headgate.clock import SystemClock
from headgate.settings import Settings
from headgate.store.catalogue.tables import ALL_TABLES, HEALTH_CHECK, SIGNAL, SIGNAL_STATE
from tests.acceptance.program import Server, run, until, watchdogs_of
from tests.docs.shown_project import HOW_TO
from tests.docs.test_commands_shown import END, shown_in
from tests.ministack import REGION, Ministack, aws_session, fresh_account

URN = "urn:dp:orders:created:v1"


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = Ministack.start(tmp_path_factory.mktemp("ministack"))
    yield server.endpoint
    server.stop()


@pytest.fixture
def environ(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of a process that keeps its state in an AWS account of its own, still empty."""
    account = fresh_account()
    aws_session(account).client("s3", endpoint_url=endpoint).create_bucket(Bucket=f"blobs-{account}")
    environ = {
        "AWS_ACCESS_KEY_ID": account,
        "AWS_SECRET_ACCESS_KEY": "-",
        "HEADGATE_STORE_BACKEND": "dynamodb",
        "HEADGATE_STORE_AWS_REGION": REGION,
        "HEADGATE_STORE_AWS_ENDPOINT_URL": endpoint,
        "HEADGATE_STORE_BLOB_BUCKET": f"blobs-{account}",
        "HEADGATE_STORE_TABLE_PREFIX": "here-",
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return environ


def _create_tables(settings: Settings) -> None:
    create_dynamodb_tables(settings, SystemClock())


def test_aws__tables_missing_then_created__doctor_says_so_and_up_serves(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    ports = {"HEADGATE_HTTP": "127.0.0.1:0", "HEADGATE_GRPC": "127.0.0.1:0"}
    before = run("doctor", "--json", folder=tmp_path, **environ, **ports)
    assert run("table", "check", folder=tmp_path, **environ).returncode == 1
    created = run("table", "create", "--json", folder=tmp_path, **environ)
    again = run("table", "create", folder=tmp_path, **environ)
    checked = run("table", "check", folder=tmp_path, **environ)
    after = run("doctor", "--json", folder=tmp_path, **environ, **ports)

    assert len(json.loads(created.stdout)["created"]) == len(ALL_TABLES)
    assert again.stdout == "all tables exist\n"
    assert checked.returncode == 0, checked.stdout

    missing = [finding for finding in json.loads(before.stdout) if finding["verdict"] == "FAIL"]
    assert before.returncode == 1
    assert all("does not exist" in finding["fact"] for finding in missing)
    assert any("table here-headgate-pipelines" in finding["fact"] for finding in missing)
    assert after.returncode == 0, after.stdout

    # The page for containers shows these commands, beside those of a container engine.
    assert {"table create", "up --store dynamodb"} <= set(shown_in(HOW_TO / "run-in-containers.md"))
    # The flag says what the variable says.
    flagged = {name: value for name, value in environ.items() if name != "HEADGATE_STORE_BACKEND"}
    with Server(tmp_path, "--store", "dynamodb", **flagged) as server:
        deep = httpx.get(f"{server.url}/health/deep", timeout=30)
        # Gauges of the store are read while metrics are scraped.
        scraped = httpx.get(f"{server.url}/metrics", timeout=30)
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 0
    assert deep.status_code == 200, deep.text
    assert "headgate_workers_live 1.0" in scraped.text
    assert not (tmp_path / ".headgate" / "headgate.db").exists()


@pytest.mark.parametrize(
    ("command", "environ", "said"),
    [
        (["up"], {}, "set it, for instance HEADGATE_STORE_AWS_REGION=eu-west-1"),
        (["worker", "--app", "orders:app"], {}, "set it, for instance HEADGATE_STORE_AWS_REGION=eu-west-1"),
        (["up"], {"HEADGATE_STORE_AWS_REGION": REGION}, "for instance HEADGATE_STORE_BLOB_BUCKET="),
    ],
)
def test_store__dynamodb_without_what_it_needs__is_refused_with_the_variable_to_set(
    tmp_path: Path, command: list[str], environ: dict[str, str], said: str
) -> None:
    ended = run(*command, "--store", "dynamodb", folder=tmp_path, **environ)

    assert (ended.returncode, said in ended.stderr) == (2, True), ended.stderr
    assert not (tmp_path / ".headgate").exists()


def test_aws__large_attribute__spills_into_the_bucket(tmp_path: Path, environ: dict[str, str], endpoint: str) -> None:
    settings = Settings.load(environ, None, {"home": str(tmp_path / ".headgate")})
    _create_tables(settings)
    key = HEALTH_CHECK.entities[0].key()

    with closing(open_store(settings, SystemClock()).store) as store:
        store.put(HEALTH_CHECK, {**HEALTH_CHECK.key_attributes(key), "payload": "x" * 500_000})
        item = store.get(HEALTH_CHECK, key, consistent=True)

    s3 = aws_session(environ["AWS_ACCESS_KEY_ID"]).client("s3", endpoint_url=endpoint)
    assert item is not None
    assert len(item["payload"]) == 500_000
    assert s3.list_objects_v2(Bucket=settings.store.blob_bucket or "")["KeyCount"] == 1
    assert not (tmp_path / ".headgate" / "blobs").exists()


def _up(folder: Path, environ: dict[str, str]) -> tuple[int, str]:
    ended = run("up", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", folder=folder, **environ)
    return ended.returncode, ended.stderr


def _keys_verdict(folder: Path, environ: dict[str, str]) -> str:
    findings = json.loads(run("doctor", "--json", folder=folder, **environ).stdout)
    return str(next(each["verdict"] for each in findings if each["check"] == "keys"))


def test_aws__keys_lost_or_of_another_machine__no_start_no_new_keys_and_doctor_names_it(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    elsewhere.mkdir()
    _create_tables(Settings.load(environ, None, {"home": str(here / ".headgate")}))
    with Server(here, **environ) as server:
        assert httpx.post(f"{server.url}/api/v1/datasets", json={"dataset_urn": "urn:dp:a:b:v1"}).is_success
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 0, server.stderr
    keys = here / ".headgate" / "keys.json"
    saved = keys.read_bytes()
    keys.unlink()

    for folder in (here, elsewhere):
        status, said = _up(folder, environ)
        assert (status, "keys_lost" in said) == (70, True), said
        assert "headgate key accept-loss" in said
        assert not (folder / ".headgate" / "keys.json").exists(), "keys were replaced"
    assert _keys_verdict(here, environ) == "FAIL"
    keys.write_bytes(saved)
    keys.chmod(0o600)
    assert _keys_verdict(here, environ) == "OK"
    with Server(here, **environ) as server:
        assert httpx.post(f"{server.url}/api/v1/datasets", json={"dataset_urn": "urn:dp:a:c:v1"}).is_success


def test_aws__settings_in_a_file__the_watchdog_process_has_them(
    tmp_path: Path, environ: dict[str, str], endpoint: str
) -> None:
    config, pipelines, home = tmp_path / "other.toml", tmp_path / "pipelines", tmp_path / "home"
    store = {name.removeprefix("HEADGATE_STORE_").lower(): value for name, value in environ.items() if "STORE" in name}
    config.write_text("[store]\n" + "".join(f'{name} = "{value}"\n' for name, value in store.items()))
    pipelines.mkdir()
    (pipelines / "cmd.yaml").write_text('id: cmd\ntrigger:\n  type: command\n  config: {command: ["true"]}\n')
    _create_tables(Settings.load(environ, None, {"home": str(home)}))
    # Only the file names the store; the account stays in the environment.
    account = {name: value for name, value in environ.items() if name.startswith("AWS")}
    options = ["--home", str(home), "--config", str(config), "--pipelines", str(pipelines)]

    with Server(tmp_path / "run", *options, **account):
        until(lambda: any(_is_connected(pid, endpoint) for pid in watchdogs_of(home)), "a watchdog on DynamoDB")

        assert not (home / "headgate.db").exists()


def _is_connected(pid: int, endpoint: str) -> bool:
    """Whether a process has a TCP connection to an endpoint on this machine."""
    port = int(endpoint.rpartition(":")[2])
    with suppress(OSError):
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
        sockets = {str(each.readlink()) for each in descriptors if each.is_symlink()}
        rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
        return any(row[2].endswith(f":{port:04X}") and f"socket:[{row[9]}]" in sockets for row in rows)
    return False


def _restored(endpoint: str, account: str, table: str, copy: str) -> None:
    """Do what a restore of AWS does: the table under another name, without TTL and stream, with its items."""
    client: Any = aws_session(account).client("dynamodb", endpoint_url=endpoint, region_name="eu-west-1")
    found = client.describe_table(TableName=table)["Table"]
    indexes = [
        {name: index[name] for name in ("IndexName", "KeySchema", "Projection")}
        for index in found.get("GlobalSecondaryIndexes", ())
    ]
    client.create_table(
        TableName=copy,
        KeySchema=found["KeySchema"],
        AttributeDefinitions=found["AttributeDefinitions"],
        BillingMode="PAY_PER_REQUEST",
        **({"GlobalSecondaryIndexes": indexes} if indexes else {}),
    )
    for item in client.scan(TableName=table)["Items"]:
        client.put_item(TableName=copy, Item=item)


def test_page_run_on_aws__its_settings_and_commands__do_what_it_says(
    tmp_path: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    account, page = fresh_account(), HOW_TO / "run-on-aws.md"
    session = aws_session(account)
    text = page.read_text()
    settings = text.split("```toml\n")[1].partition("```")[0]
    bucket = re.findall(r'blob_bucket = "(.*)"', settings)[0]
    where = {"LocationConstraint": "eu-west-1"}
    s3: Any = session.client("s3", endpoint_url=endpoint, region_name="eu-west-1")
    s3.create_bucket(Bucket=bucket, CreateBucketConfiguration=where)
    (tmp_path / "headgate.toml").write_text(settings)
    (tmp_path / "load.toml").write_text(text.split("```text\n# load.toml\n")[1].partition("```")[0])
    environ = {
        "AWS_ACCESS_KEY_ID": account,
        "AWS_SECRET_ACCESS_KEY": "-",
        "HEADGATE_STORE_AWS_ENDPOINT_URL": endpoint,
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    shown = [END.split(line, maxsplit=1)[0].split() for line in shown_in(page)]
    # Two regions are the subject of tests/integration/cli/health/test_region.py.
    left = [words for words in shown if words[0] != "region" and "load.toml" not in words[:2] and len(words) > 2]

    def typed(*words: str, says: str, exit_code: int = 0) -> None:
        left[:] = [each for each in left if each != list(words)]
        ended = run(*words, folder=tmp_path, **environ)
        assert (ended.returncode, says in ended.stdout) == (exit_code, True), ended.stdout + ended.stderr

    assert run("table", "check", folder=tmp_path, **environ).returncode == 1
    typed("table", "create", says="acme-runs")
    typed("table", "check", says="")
    loaded = Settings.load(environ, tmp_path / "headgate.toml", {"home": str(tmp_path / ".headgate")})
    row = {**SIGNAL_STATE.key_attributes(SIGNAL.key(dataset_urn=URN, signal_type="FRESHNESS")), "version": 1}
    with closing(open_store(loaded, SystemClock()).store) as store:
        store.put(SIGNAL_STATE, {**row, "state": "OK"})
        _restored(endpoint, account, "prod-observability-signal-state", "signal-state-restored")
        store.put(SIGNAL_STATE, {**row, "state": "CRITICAL", "version": 2})
    typed("table", "costs", "load.toml", "--a-second", says="total")
    restored = ("--restored", "signal-state-restored")
    typed("table", "compare", "observability-signal-state", *restored, says="FRESHNESS", exit_code=1)
    key = ("--key", f"{URN}=FRESHNESS", "--dry-run")
    typed("table", "repair", "observability-signal-state", *restored, *key, says="would be repaired")
    typed("table", "swap", "observability-signal-state", "signal-state-restored", says="[store.table_names]")

    assert left == []
