"""HTTP functions: requests through API Gateway, answered by functions that run from the files of the package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from headgate.auth.principals import LOCAL
from headgate.auth.roles import Role
from headgate.aws.function_settings import read_settings
from headgate.bootstrap.health import open_health, open_keys
from headgate.bootstrap.store import KEYS, AppService, create_dynamodb_tables, open_cache, open_store
from headgate.clock import SystemClock
from headgate.durable.sdk.app import App
from headgate.store.keyring import Keyring
from tests.aws_rig import HTTP_FUNCTIONS, TABLE_PREFIX, sign_in, until
from tests.ministack import REGION, Ministack, aws_session
from tests.packaged_function import make_packaged_function, not_granted, unpack

SHOP = """
import headgate as hg

app = hg.App("shop")


@app.workflow
async def fulfil(order: str) -> str:
    return await pack(order)


@app.activity
def pack(order: str) -> str:
    return order


@app.post("/orders/{order}")
def place(request: hg.Request) -> dict[str, str]:
    order = request.path_params["order"]
    return {"id": fulfil.start(order, id=f"order-{order}").id}


@app.get("/picture")
def picture(request: hg.Request) -> hg.Response:
    return hg.Response(200, bytes(range(256)), headers={"content-type": "image/png"})


@app.post("/echo")
def echo(request: hg.Request) -> hg.Response:
    return hg.Response(200, request.body, headers={"content-type": "application/octet-stream"})
"""
# The account of requests without credentials, in MiniStack.
DEFAULT_ACCOUNT = "000000000000"
AUTHORISATION = {"api": "NONE", "internal-api": "AWS_IAM"}
CLOCK = SystemClock()


class Gateway:
    """The two HTTP APIs of one account, and an API key of the store behind them."""

    def __init__(self, endpoint: str, folder: Path) -> None:
        self.account = DEFAULT_ACCOUNT
        self.endpoint = endpoint
        self.notes = {name: folder / f"{name}.jsonl" for name in HTTP_FUNCTIONS}
        self._session: Any = aws_session(self.account)
        self._folder = folder
        self._environ: dict[str, str] = {}
        self.urls: dict[str, str] = {}
        self.arns: dict[str, str] = {}
        self.key = ""

    def open(self) -> None:
        folder, clients = self._folder, self._session.client
        clients("s3", endpoint_url=self.endpoint).create_bucket(Bucket=f"http-{self.account}")
        Keyring.open(folder / KEYS, CLOCK)
        keys = clients("secretsmanager", endpoint_url=self.endpoint).create_secret(
            Name="keys", SecretString=(folder / KEYS).read_text()
        )
        self._environ = {
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": self.account,
            "AWS_SECRET_ACCESS_KEY": "-",
            "HEADGATE_STORE_AWS_ENDPOINT_URL": self.endpoint,
            "HEADGATE_STORE_BLOB_BUCKET": f"http-{self.account}",
            "HEADGATE_STORE_TABLE_PREFIX": TABLE_PREFIX,
            "HEADGATE_PUBLIC_URL": "https://shop.example",
            "HEADGATE_APP": "shop:app",
            "KEYS_SECRET_ARN": keys["ARN"],
            "CUSTOM_METRICS": "on",
        }
        settings = read_settings({**self._environ, "HEADGATE_HOME": str(folder)})
        create_dynamodb_tables(settings, CLOCK)
        opened = open_store(settings, CLOCK)
        cache = open_cache(settings, CLOCK)
        health = open_health(opened, cache, CLOCK, AppService(App("any"), opened, CLOCK))
        self.key = (
            open_keys(opened, CLOCK, health).issue("ana", [Role.OPERATOR, Role.SERVICE], issuer=LOCAL).key.reveal()
        )
        health.close()
        cache.close()
        opened.store.close()
        task = folder / "task"
        task.mkdir()
        unpack(task, {"shop.py": SHOP})
        for name, function in HTTP_FUNCTIONS.items():
            environ = self._environ | {"HEADGATE_HOME": str(folder / name)}
            arn = make_packaged_function(
                clients("lambda", endpoint_url=self.endpoint),
                f"arn:aws:iam::{self.account}:role/any",
                name,
                function["handler"],
                task,
                self.notes[name],
                environ,
            )
            self.arns[name] = arn
            if name not in AUTHORISATION:
                continue
            self.urls[name] = self._api(name, arn, AUTHORISATION[name])

    def _api(self, name: str, arn: str, authorization: str) -> str:
        client = self._session.client("apigatewayv2", endpoint_url=self.endpoint)
        api = client.create_api(Name=name, ProtocolType="HTTP")["ApiId"]
        integration = client.create_integration(
            ApiId=api, IntegrationType="AWS_PROXY", IntegrationUri=arn, PayloadFormatVersion="2.0"
        )["IntegrationId"]
        client.create_route(
            ApiId=api, RouteKey="$default", Target=f"integrations/{integration}", AuthorizationType=authorization
        )
        client.create_stage(ApiId=api, StageName="$default", AutoDeploy=True)
        return f"{self.endpoint}/_aws/execute-api/{api}/$default"

    def call(self, method: str, path: str, *, has_key: bool = True, **more: Any) -> httpx.Response:
        headers = {**({"authorization": f"Bearer {self.key}"} if has_key else {}), **more.pop("headers", {})}
        return httpx.request(method, self.urls["api"] + path, headers=headers, timeout=60, **more)

    def call_internal(self, method: str, path: str, body: object = None) -> httpx.Response:
        """Call the durable API with a signature of the account."""
        content = b"" if body is None else json.dumps(body).encode()
        url = self.urls["internal-api"] + path
        request = AWSRequest(method, url, data=content, headers={"content-type": "application/json"})
        SigV4Auth(Credentials(self.account, "-"), "execute-api", REGION).add_auth(request)
        return httpx.request(method, url, content=content, headers=dict(request.headers), timeout=60)

    def logs(self, name: str) -> list[str]:
        """Return what a function has printed."""
        client = self._session.client("logs", endpoint_url=self.endpoint)
        events = client.filter_log_events(logGroupName=f"/aws/lambda/{name}")["events"]
        return [line for each in events for line in str(each["message"]).splitlines()]

    def invoke(self, name: str) -> Any:
        """Invoke a function as its schedule does."""
        client = self._session.client("lambda", endpoint_url=self.endpoint)
        answer = client.invoke(FunctionName=self.arns[name], Payload=b"{}")
        content = json.loads(answer["Payload"].read())
        assert "FunctionError" not in answer, content
        return content


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    # An emulator of its own: test processes that share the work may open this more than once, always in one account.
    with Ministack.start(tmp_path_factory.mktemp("gateway")) as server, pytest.MonkeyPatch.context() as patch:
        gateway = Gateway(server.endpoint, tmp_path_factory.mktemp("http"))
        sign_in(patch, gateway.account)
        gateway.open()
        yield gateway
        # No function has asked for more than Terraform grants it.
        assert not_granted(HTTP_FUNCTIONS, gateway.notes, TABLE_PREFIX) == set()


def test_api__without_a_key__is_refused_with_a_problem(gateway: Gateway) -> None:
    answer = gateway.call("GET", "/api/v1/executions", has_key=False)

    assert answer.status_code == 401, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "unauthenticated"


def test_api__rest_graphql_pages_and_routes_of_the_app__are_served(gateway: Gateway) -> None:
    placed = gateway.call("POST", "/orders/7")
    shown = gateway.call("GET", "/api/v1/executions/order-7")
    asked = gateway.call("POST", "/graphql", json={"query": "{ __typename }"})
    page = gateway.call("GET", "/ui/executions", headers={"accept": "text/html"})

    assert (placed.status_code, placed.json()) == (200, {"id": "order-7"})
    assert shown.json()["workflow"] == "fulfil"
    assert asked.json() == {"data": {"__typename": "Query"}}
    assert page.status_code == 200
    assert "order-7" in page.text


def test_api__bytes_both_ways__arrive_unchanged(gateway: Gateway) -> None:
    content = bytes(reversed(range(256)))

    assert gateway.call("GET", "/picture").content == bytes(range(256))
    assert gateway.call("POST", "/echo", content=content).content == content


def test_api__a_browser_signs_in__has_a_cookie_that_is_read_again(gateway: Gateway) -> None:
    signed_in = gateway.call(
        "POST", "/ui/sign-in", has_key=False, data={"key": gateway.key}, headers={"accept": "text/html"}
    )
    cookie = signed_in.headers["set-cookie"].partition(";")[0]

    page = gateway.call("GET", "/ui/executions", has_key=False, headers={"accept": "text/html", "cookie": cookie})

    assert signed_in.status_code == 303
    assert cookie.startswith("__Host-headgate-session=")
    assert page.status_code == 200


def test_api__a_stream_of_events__ends_and_says_when_to_connect_again(gateway: Gateway) -> None:
    answer = gateway.call("GET", "/ui/changes")

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "event: ready" in answer.text
    assert answer.text.endswith("retry: 5000\n\n")


def test_health_sweep__an_openlineage_event_that_the_api_has_accepted__is_processed(gateway: Gateway) -> None:
    dataset = {"namespace": "postgres://db", "name": "shop.orders"}
    event = {
        "eventType": "COMPLETE",
        "eventTime": "2026-01-05T00:00:00Z",
        "producer": "https://shop.example/loader",
        "schemaURL": "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent",
        "run": {"runId": "01890a5d-ac96-774b-bcce-b302099a8057"},
        "job": {"namespace": "shop", "name": "load"},
        "inputs": [],
        "outputs": [dataset],
    }

    accepted = gateway.call("POST", "/api/v1/lineage", json=event)
    first, second = gateway.invoke("health-sweep"), gateway.invoke("health-sweep")

    assert accepted.status_code in (200, 201, 202), accepted.text
    assert first["done"] >= 1
    assert second["done"] == 0


def test_internal_api__signed__starts_and_shows_an_execution(gateway: Gateway) -> None:
    started = gateway.call_internal("POST", "/api/v1/executions", {"workflow": "fulfil", "input": "8", "id": "order-8"})
    shown = gateway.call_internal("GET", "/api/v1/executions/order-8")
    emitted = gateway.call_internal("POST", "/api/v1/events", {"type": "order.paid", "data": {"id": 8}})

    assert started.status_code == 201, started.text
    assert shown.json()["workflow"] == "fulfil"
    assert emitted.status_code == 202, emitted.text
    # What is served elsewhere is not served here.
    assert gateway.call_internal("GET", "/api/v1/pipelines").status_code == 404


def test_internal_api__not_signed__is_refused(gateway: Gateway) -> None:
    answer = httpx.get(gateway.urls["internal-api"] + "/api/v1/executions", timeout=60)

    assert answer.status_code in (401, 403), answer.text


def test_api__that_is_to_write_metrics__logs_its_requests_and_reads(gateway: Gateway) -> None:
    assert gateway.call("GET", "/api/v1/incidents").status_code == 200

    def logged() -> list[dict[str, Any]]:
        found = gateway.logs("api")
        return [json.loads(line) for line in found if line.startswith('{"_aws":')]

    lines = until("metrics in the log", logged)
    assert {"2xx"} <= {each.get("status_code") for each in lines if "api.request_count" in each}
    assert [each for each in lines if "dynamodb.read_latency" in each] != []
