"""`hg.Client` and `hg.AsyncClient` against the installed server, over TLS and with authentication on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import headgate as hg
from headgate.durable.client.blocked_on import WaitsForActivity
from headgate.errors import (
    AlreadyStartedError,
    ExecutionClosedError,
    ForbiddenError,
    InvalidPayloadError,
    NotFoundError,
    SettingsError,
    TransientError,
    UnauthenticatedError,
    UnknownWorkflowError,
)
from tests.acceptance import remote_app as desk
from tests.acceptance.program import Server, run, until
from tests.integration.serve.http.connection.test_tls import make_files

ROOT = Path(__file__).parents[2]


@dataclass
class Site:
    """A server with an app, and the keys of an operator and of a viewer."""

    url: str
    ca: Path
    operator: str
    viewer: str

    def client(self, **more: str) -> hg.Client:
        return hg.Client(self.url, api_key=more.get("api_key", self.operator), ca=self.ca)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("remote")
    cert, key = make_files(folder / "tls")
    flags = ["--tls-cert", str(cert), "--tls-key", str(key), "--app", "tests.acceptance.remote_app:app"]
    with Server(folder, *flags, PYTHONPATH=str(ROOT), HEADGATE_AUTH_REQUIRED="true") as server:
        first = json.loads(run("api-key", "first", "--home", server.home, "--json", folder=folder).stdout)
        admin = next(value for value in first.values() if isinstance(value, str) and value.startswith("hg"))
        keys = {}
        for role in ("operator", "viewer"):
            calling = ("--server", server.url, "--ca", str(cert))
            made = run(
                "api-key", "issue", role, "--role", role, "--json", *calling, folder=folder, HEADGATE_API_KEY=admin
            )
            assert made.returncode == 0, made.stderr
            keys[role] = json.loads(made.stdout)["text"]
        yield Site(server.url, cert, keys["operator"], keys["viewer"])


@pytest.fixture
def client(site: Site) -> Iterator[hg.Client]:
    with site.client() as made:
        yield made


def test_start__workflow_object__is_typed_from_the_arguments_to_the_result(client: hg.Client) -> None:
    handle = client.start(desk.sell.options(id="o-1", tags={"region": "north"}), desk.Order("o-1", 500))

    assert handle.was_started
    assert handle.query(desk.total) == 500
    assert handle.update(desk.raise_by, 100) == 600
    handle.signal(desk.paid, 250, id="first half")
    handle.signal(desk.paid, 250, id="first half")
    until(lambda: handle.query(desk.total) == 350, "the first payment")
    handle.signal(desk.paid, 350)

    # A second handle knows the type as well.
    receipt = client.handle("o-1", desk.sell).result(timeout_seconds=30)
    assert receipt == desk.Receipt("o-1", 600)
    shown = handle.describe()
    assert (shown.status, shown.tags, shown.workflow) == (hg.Status.SUCCEEDED, {"region": "north"}, "sell")
    again = client.start(desk.sell.options(id="o-1"), desk.Order("o-1", 500))
    assert not again.was_started


def test_errors__of_the_server_and_of_user_code__are_those_of_the_client_in_process(
    site: Site, client: hg.Client
) -> None:
    handle = client.start(desk.sell.options(id="declined"), desk.Order("declined", 5))
    with pytest.raises(hg.UpdateFailure, match="raise_by: from 1") as refused:
        handle.update("raise_by", 0)
    assert refused.value.is_refused
    with pytest.raises(TimeoutError, match="still RUNNING"):
        handle.result(timeout_seconds=0.1)
    with pytest.raises(AlreadyStartedError):
        client.start(desk.sell.options(id="declined"), desk.Order("declined", 6))
    handle.signal("paid", 5)
    with pytest.raises(hg.ExecutionFailure) as failed:
        handle.result(timeout_seconds=30)
    assert (failed.value.status, failed.value.type) == ("FAILED", "CardDeclined")
    with pytest.raises(ExecutionClosedError):
        handle.signal("paid", 5)
    unknown = client.start(desk.sell, desk.Order("unknown", 5))
    # The class of the handler's own error is loaded here.
    with pytest.raises(LookupError):
        unknown.query(desk.total)
    unknown.terminate("enough")
    with pytest.raises(NotFoundError):
        client.handle("none").describe()
    with pytest.raises(UnknownWorkflowError):
        client.start_by_name("no_such_workflow")
    with pytest.raises(InvalidPayloadError):
        client.start_by_name("sell", {"order": 5})
    with site.client(api_key=site.viewer) as viewer, pytest.raises(ForbiddenError):
        viewer.start(desk.nap, 1.0)
    with site.client(api_key="hg_wrong") as stranger, pytest.raises(UnauthenticatedError):
        stranger.handle("declined").describe()
    with hg.Client(site.url, api_key=site.operator) as untrusting, pytest.raises(SettingsError, match="not trusted"):
        untrusting.handle("declined").describe()


def test_async__many_at_once__end_as_in_the_sync_client(site: Site) -> None:
    async def sell(client: hg.AsyncClient, number: int) -> desk.Receipt:
        order = desk.Order(f"a-{number}", number)
        handle = await client.start(desk.sell.options(id=order.id, tags={"batch": "async"}), order)
        await handle.signal(desk.paid, number)
        return await handle.result(timeout_seconds=30)

    async def sell_all() -> list[desk.Receipt]:
        async with hg.AsyncClient(site.url, api_key=site.operator, ca=site.ca) as client:
            receipts = await asyncio.gather(*(sell(client, number) for number in range(1, 11)))
            found = [each.id async for each in client.executions(tags={"batch": "async"})]
            assert sorted(found) == sorted(f"a-{number}" for number in range(1, 11))
            page = await client.execution_page(tags={"batch": "async"}, limit=4, oldest_first=True)
            assert (len(page.executions), page.cursor is None) == (4, False)
            with pytest.raises(NotFoundError):
                await client.handle("none").status()
        return receipts

    receipts = asyncio.run(sell_all())

    assert receipts == [desk.Receipt(f"a-{number}", number) for number in range(1, 11)]


def test_signal_with_start__cancel_and_by_name__need_no_code_of_the_workflow(client: hg.Client) -> None:
    started = client.signal_with_start(desk.sell.options(id="s-1"), desk.paid, 3, desk.Order("s-1", 5))
    found = client.signal_with_start(desk.sell.options(id="s-1"), "paid", 2, desk.Order("s-1", 5))
    assert (started.was_started, found.was_started) == (True, False)
    assert found.result(timeout_seconds=30) == desk.Receipt("s-1", 5)

    napping = client.start_by_name("nap", 3600, returns=str, timeout="1d", retry=hg.Retry(attempts=2, never=(OSError,)))
    assert napping.describe().retry == hg.Retry(attempts=2, never=("OSError",))
    assert napping.id.startswith("nap/")
    napping.cancel("enough")
    with pytest.raises(hg.ExecutionFailure) as ended:
        napping.result(timeout_seconds=30)
    assert ended.value.status == "CANCELLED"


def test_activity__completed_by_its_token__ends(client: hg.Client, tmp_path: Path) -> None:
    handle = client.start(desk.bank, desk.Order(str(tmp_path / "token"), 1))
    until(lambda: any(each.state == "external" for each in _activities(handle)), "the activity that waits")
    token = (tmp_path / "token").read_text()

    assert client.heartbeat_activity(token, {"asked": 1})
    client.complete_activity(token, "granted")

    assert handle.result(timeout_seconds=30) == "granted"
    assert not client.heartbeat_activity(token)


def test_activity__cancelled_and_awaited__reports_its_end_over_http(client: hg.Client, tmp_path: Path) -> None:
    handle = client.start(desk.patient_bank, desk.Order(str(tmp_path / "token"), 1))
    until(lambda: any(each.state == "external" for each in _activities(handle)), "the activity that waits")
    token = (tmp_path / "token").read_text()

    handle.cancel("enough")
    until(lambda: not client.heartbeat_activity(token), "the request")
    assert handle.describe().status == "RUNNING"
    client.fail_activity(token, "Cancelled", "called back")

    with pytest.raises(hg.ExecutionFailure) as ended:
        handle.result(timeout_seconds=30)
    assert ended.value.status == "CANCELLED"


def _activities(handle: hg.RemoteHandle[str]) -> list[WaitsForActivity]:
    return [each for each in handle.describe().waits_for if isinstance(each, WaitsForActivity)]


def test_schedules_and_events__over_http__are_stored(client: hg.Client) -> None:
    made = client.create_schedule("nightly", desk.nap, "0 3 * * *", zone="Europe/Berlin", input=0.0, paused=True)
    assert (made.workflow, made.paused) == ("nap", True)
    assert client.resume_schedule("nightly").next is not None
    assert [each.id for each in client.schedules(workflow="nap")] == ["nightly"]
    fired = client.trigger_schedule("nightly")
    assert fired.execution_id is not None
    assert client.handle(fired.execution_id, desk.nap).result(timeout_seconds=30) == "rested"
    client.pause_schedule("nightly", "holidays")
    assert client.schedule("nightly").reason == "holidays"
    client.delete_schedule("nightly")
    with pytest.raises(NotFoundError):
        client.schedule("nightly")

    stored = client.emit("order.created", {"id": 7}, id="created-7", source="/shop")
    assert client.emit("order.created", {"id": 7}, id="created-7", source="/shop") == stored


class Tenant(hg.Interceptor):
    """Sends the tenant of this program."""

    @contextmanager
    def client(self, call: hg.ClientCall) -> Iterator[None]:
        call.headers["tenant"] = "acme"
        yield


def test_interceptors__of_a_client__set_headers_that_reach_the_activity(site: Site) -> None:
    with hg.Client(site.url, api_key=site.operator, ca=site.ca, interceptors=[Tenant()]) as client:
        assert client.start(desk.tenant).result(timeout_seconds=30) == ["acme", "acme"]


def test_server__that_is_away__is_waited_for_and_then_reported() -> None:
    with hg.Client("http://127.0.0.1:9", retry_seconds=0.3) as client, pytest.raises(TransientError, match="reachable"):
        client.handle("x").describe()
