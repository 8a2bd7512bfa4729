"""Idle calls: the DynamoDB calls a second of a server that has nothing to do, counted by a proxy before MiniStack."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep

from bench.measure import Figure
from tests.acceptance.program import Server, run
from tests.counting_proxy import CountingProxy
from tests.ministack import REGION, Ministack, aws_session, fresh_account

QUERIES_A_SECOND_MAX = 12.0
# A process polls ever less often for about a minute, and then every half minute.
_SETTLE_SECONDS = 90.0
_COUNTED_SECONDS = 60.0
# The server runs a watchdog once there is a pipeline. This one is due once a year.
_PIPELINE = """
id: yearly
owner: ana@example.com
schedules:
  - cron: "0 0 1 7 *"
trigger: {type: http, config: {url: "http://127.0.0.1:9/never"}}
"""


def figures() -> list[Figure]:
    """Return the figure of `headgate up` with its watchdog, both idle."""
    with TemporaryDirectory(prefix="headgate-bench-") as made:
        folder = Path(made)
        emulator = Ministack.start(folder)
        try:
            with CountingProxy(emulator.endpoint) as proxy:
                return [_counted(folder, emulator.endpoint, proxy)]
        finally:
            emulator.stop()


def _counted(folder: Path, endpoint: str, proxy: CountingProxy) -> Figure:
    account = fresh_account()
    aws_session(account).client("s3", endpoint_url=endpoint).create_bucket(Bucket=f"blobs-{account}")
    environ = {
        "AWS_ACCESS_KEY_ID": account,
        "AWS_SECRET_ACCESS_KEY": "-",
        "HEADGATE_STORE_BACKEND": "dynamodb",
        "HEADGATE_STORE_AWS_REGION": REGION,
        "HEADGATE_STORE_AWS_ENDPOINT_URL": proxy.endpoint,
        "HEADGATE_STORE_BLOB_BUCKET": f"blobs-{account}",
    }
    created = run("table", "create", folder=folder, **environ)
    assert created.returncode == 0, created.stderr
    (folder / "pipelines").mkdir()
    (folder / "pipelines" / "yearly.yaml").write_text(_PIPELINE)
    with Server(folder, **environ):
        sleep(_SETTLE_SECONDS)
        proxy.taken()
        sleep(_COUNTED_SECONDS)
        counts = proxy.taken()
    queries = sum(count for call, count in counts.items() if call.startswith("Query"))
    rate = queries / _COUNTED_SECONDS
    most = ", ".join(f"{call} {count / _COUNTED_SECONDS:.1f}" for call, count in counts.most_common(4))
    return Figure(
        "queries a second of an idle server on DynamoDB, with its watchdog",
        f"{rate:.1f}/s",
        f"<= {QUERIES_A_SECOND_MAX:g}/s",
        rate <= QUERIES_A_SECOND_MAX,
        f"{counts.total() / _COUNTED_SECONDS:.1f} calls/s",
        most,
    )
