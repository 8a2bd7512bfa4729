"""The metrics of a worker: open to programs of this machine, to others only with the token."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from headgate.errors import SettingsError
from headgate.serve.worker_metrics import MetricsEndpoint
from headgate.settings import Address, Settings
from headgate.telemetry import Metrics
from tests.acceptance.program import PROGRAM, Server, run, until

TOKEN = "0123456789abcdef0123456789abcdef"
APP = """
import headgate as hg

app = hg.App("shop")


@app.activity(retry=hg.Retry(attempts=1))
def charge(amount: int) -> int:
    return 10 // amount


@app.workflow
async def pay(amount: int) -> int:
    return await charge(amount)
"""


@contextmanager
def worker(folder: Path, **environ: str) -> Iterator[str]:
    """Run a worker with metrics on a free port, and give its address."""
    command = [str(PROGRAM), "worker", "--app", "shop:app", "--metrics", "127.0.0.1:0"]
    process = subprocess.Popen(
        command, cwd=folder, env={"PATH": os.environ["PATH"], **environ}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        found = re.search(r"metrics=(\S+)", process.stdout.readline())
        assert found is not None
        yield f"http://{found.group(1)}/metrics"
    finally:
        process.terminate()
        assert process.wait(20) == 0
        process.stdout.close()


def test_metrics__of_a_server_and_its_worker__count_executions_and_refuse_other_requests(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    with Server(tmp_path) as server, worker(tmp_path) as address:
        for amount, execution_id in ((5, "p"), (0, "q")):
            started = run("execution", "start", "pay", "--input", str(amount), "--id", execution_id, folder=tmp_path)
            assert started.returncode == 0, started.stderr
        until(lambda: server.get("/executions/q")["status"] == "FAILED", "the end of the execution")
        until(lambda: server.get("/executions/p")["status"] == "SUCCEEDED", "the end of the execution")

        succeeded = 'headgate_executions_closed_total{status="SUCCEEDED",workflow="pay"} 1.0'
        until(lambda: succeeded in httpx.get(address).text, "the count of ended executions")
        text = httpx.get(address).text
        assert 'headgate_activity_attempts_total{activity="charge",outcome="failed"} 1.0' in text
        assert 'headgate_worker_slots{kind="thread"} 64.0' in text
        assert "headgate_store_commits_total" in text
        # A page of another site reaches loopback under its own name (DNS rebinding).
        assert httpx.get(address, headers={"Host": "evil.example"}).status_code == 421
        assert httpx.get(address.replace("/metrics", "/")).status_code == 404
        assert httpx.post(address).status_code == 405
        until(lambda: "headgate_workers_live" in httpx.get(f"{server.url}/metrics").text, "gauges of the server", 40)
        shown = run("execution", "show", "q", folder=tmp_path).stdout
        assert "charge, attempt 1, the last" in shown
        assert f'>   File "{tmp_path}/shop.py"' in shown
        assert ">     return 10 // amount" in shown


def test_metrics__with_a_token__need_it(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    with worker(tmp_path, HEADGATE_WORKER_METRICS_TOKEN_FILE=str(tmp_path / "token")) as address:
        assert httpx.get(address).status_code == 401
        assert httpx.get(address, headers={"Authorization": f"Bearer {TOKEN}x"}).status_code == 401
        assert "headgate_info" in httpx.get(address, headers={"Authorization": f"Bearer {TOKEN}"}).text


@pytest.mark.parametrize(
    ("flags", "remedy"),
    [
        ({}, "tls.cert"),
        ({"behind_proxy": True}, "allowed_hosts"),
        ({"behind_proxy": True, "allowed_hosts": ["a.example"]}, "worker.metrics_token_file"),
    ],
)
def test_metrics__on_another_address_than_loopback__need_encryption_hosts_and_a_token(
    flags: dict[str, object], remedy: str
) -> None:
    with pytest.raises(SettingsError, match=re.escape(remedy)):
        Settings.load({}, None, {"worker.metrics": "0.0.0.0:9400", **flags})


def test_metrics__address_in_use__names_the_setting_and_its_flag() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = Address("127.0.0.1", other.getsockname()[1])
        with pytest.raises(SettingsError, match=r"worker\.metrics = .*cannot listen: .* with --metrics HOST:PORT"):
            MetricsEndpoint(Settings(), address, Metrics(version="1"))
