"""The http trigger over real connections: tries, categories, guarded addresses, callbacks."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headgate.durable.bus.egress_policy import Destinations
from headgate.triggers.contract import FailureCategory, JobState, StartStatus, TriggerFailedError
from tests.unit.triggers.rigs import RUN_ID, Asked, Reply, kinds, order, serving

METADATA = "169.254.169.254"


def answering(*statuses: int) -> Callable[[Asked], Reply]:
    left = list(statuses)
    return lambda _: (left.pop(0) if len(left) > 1 else left[0], b"because of the moon")


def test_start__receiver_that_accepts__is_completed_and_was_given_what_for(tmp_path: Path) -> None:
    # bug 32: a kind that is over at once has an id too.
    with serving(answering(200)) as api:
        started = kinds(tmp_path).start(order("http", {"url": f"{api.url}/load/${{date}}"}))

    assert (started.status, started.external_id) == (StartStatus.COMPLETED, RUN_ID)
    asked = api.asked[0]
    assert (asked.method, asked.path) == ("POST", "/load/2026-03-03T07")
    assert asked.headers["idempotency-key"] == RUN_ID
    assert asked.json() == {"pipeline": "orders", "schedule": "hourly", "date": "2026-03-03T07", "run_id": RUN_ID}


def test_start__body_and_headers__are_sent_filled_in(tmp_path: Path) -> None:
    config = {"method": "PUT", "headers": {"X-Hour": "${hour}"}, "body": {"par_day": "${day_compact}", "n": 1}}
    with serving(answering(204)) as api:
        kinds(tmp_path).start(order("http", {"url": api.url, **config}))

    assert api.asked[0].headers["x-hour"] == "07"
    assert api.asked[0].json() == {"par_day": "20260303", "n": 1}


@pytest.mark.parametrize("statuses", [(500, 200), (503, 502, 200), (429, 200)])
def test_start__passing_refusals__are_tried_again_under_one_key(tmp_path: Path, statuses: tuple[int, ...]) -> None:
    pauses: list[float] = []
    with serving(answering(*statuses)) as api:
        started = kinds(tmp_path, pauses=pauses).start(order("http", {"url": api.url}))

    assert started.status is StartStatus.COMPLETED
    # D20
    assert [asked.headers["idempotency-key"] for asked in api.asked] == [RUN_ID] * len(statuses)
    assert pauses == [0.2, 0.4][: len(statuses) - 1]


@pytest.mark.parametrize(
    ("status", "category", "tries"),
    [
        # D27: a 4xx is refused for good, at once.
        (400, FailureCategory.PERMANENT, 1),
        (401, FailureCategory.PERMANENT, 1),
        (404, FailureCategory.PERMANENT, 1),
        (422, FailureCategory.PERMANENT, 1),
        # bug 41: 429 is about the moment.
        (429, FailureCategory.TRANSIENT, 3),
        (408, FailureCategory.TRANSIENT, 3),
        (500, FailureCategory.TRANSIENT, 3),
        (503, FailureCategory.TRANSIENT, 3),
    ],
)
def test_start__refused__has_a_category(tmp_path: Path, status: int, category: FailureCategory, tries: int) -> None:
    with serving(answering(status)) as api, pytest.raises(TriggerFailedError, match=f"answered {status}") as caught:
        kinds(tmp_path).start(order("http", {"url": api.url}))

    assert caught.value.category is category
    assert len(api.asked) == tries


def test_start__connection_broken_off__is_tried_again(tmp_path: Path) -> None:
    replies: list[Reply | None] = [None, (200, b"")]
    with serving(lambda _: replies.pop(0)) as api:
        kinds(tmp_path).start(order("http", {"url": api.url}))

    assert len(api.asked) == 2


def test_start__no_answer_in_time__is_a_time_out_and_not_sent_twice(tmp_path: Path) -> None:
    # D20: a slow receiver may have begun.
    def slow(_: Asked) -> Reply:
        time.sleep(1)
        return 200, b""

    with serving(slow) as api, pytest.raises(TriggerFailedError, match=r"no answer within 0\.2 s") as caught:
        kinds(tmp_path).start(order("http", {"url": api.url, "timeout": 0.2}))

    assert caught.value.category is FailureCategory.TIMEOUT
    assert len(api.asked) == 1


def test_start__no_one_listens__is_transient(tmp_path: Path) -> None:
    with serving(answering(200)) as api:
        url = api.url
    with pytest.raises(TriggerFailedError, match="cannot be reached") as caught:
        kinds(tmp_path).start(order("http", {"url": url}))

    assert caught.value.category is FailureCategory.TRANSIENT


@pytest.mark.parametrize(
    "address", [METADATA, "127.0.0.1", "10.1.2.3", "192.168.0.1", "::1", "fd00::1", "::ffff:169.254.169.254", "0.0.0.0"]
)
@pytest.mark.parametrize(
    ("type", "config"),
    [
        ("http", {"url": "https://harmless.example/"}),
        ("airflow", {"url": "https://harmless.example", "dag_id": "d"}),
        ("databricks", {"url": "https://harmless.example", "job_id": 1}),
    ],
)
def test_start__name_that_leads_inside__is_refused_for_good(
    tmp_path: Path, type: str, config: dict[str, Any], address: str
) -> None:
    # bug 79: by the address that is connected to, whatever the name says.
    registry = kinds(tmp_path, destinations=Destinations(), resolve=lambda *_: ["93.184.216.34", address])

    with pytest.raises(TriggerFailedError, match="not a public address") as caught:
        registry.start(order(type, config))

    assert caught.value.category is FailureCategory.PERMANENT


def test_start__name_that_changes_after_the_check__is_connected_where_it_was_checked(tmp_path: Path) -> None:
    # bug 79: a name is looked up once for a connection.
    looked_up: list[str] = []

    def rebinding(host: str, port: int) -> list[str]:
        looked_up.append(host)
        return ["127.0.0.1"] if len(looked_up) == 1 else [METADATA]

    with serving(answering(200)) as api:
        url = api.url.replace("127.0.0.1", "rebind.example")
        kinds(tmp_path, resolve=rebinding).start(order("http", {"url": url}))

    assert looked_up == ["rebind.example"]
    assert len(api.asked) == 1


def test_start__redirect_to_the_cloud_itself__is_not_followed(tmp_path: Path) -> None:
    elsewhere = f"http://{METADATA}/latest/meta-data".encode()
    with (
        serving(lambda _: (302, elsewhere)) as api,
        pytest.raises(TriggerFailedError, match="redirects are not followed") as caught,
    ):
        kinds(tmp_path).start(order("http", {"url": api.url}))

    assert caught.value.category is FailureCategory.PERMANENT
    assert len(api.asked) == 1


@pytest.mark.parametrize("url", ["http://example.com/", "https://user:pass@example.com/"])
def test_start__address_in_plain_or_with_a_password__is_refused_unless_allowed(tmp_path: Path, url: str) -> None:
    with pytest.raises(TriggerFailedError) as caught:
        kinds(tmp_path, destinations=Destinations()).start(order("http", {"url": url}))

    assert caught.value.category is FailureCategory.PERMANENT
    assert "pass@" not in str(caught.value)


def test_start__ten_megabytes_of_refusal__are_cut(tmp_path: Path) -> None:
    # bug 82
    long = b"no \x1b[2J" + b"n" * 10_000_000
    with serving(lambda _: (400, long)) as api, pytest.raises(TriggerFailedError) as caught:
        kinds(tmp_path).start(order("http", {"url": api.url}))

    assert len(str(caught.value)) < 700
    assert str(caught.value).isprintable()


def test_start__header_value_with_a_line_break__is_not_sent(tmp_path: Path) -> None:
    with serving(answering(200)) as api, pytest.raises(TriggerFailedError, match="header cannot be sent") as caught:
        config = {"url": api.url, "headers": {"x": "${schedule}\r\nevil: 1"}}
        kinds(tmp_path).start(order("http", config))

    assert caught.value.category is FailureCategory.PERMANENT
    assert api.asked == []


def test_callback__asked_for__runs_until_it_is_called(tmp_path: Path) -> None:
    with serving(answering(202)) as api:
        config = {"url": api.url, "body": {"tell": "${callback_url}"}, "cancel_url": f"{api.url}/cancel/${{run_id}}"}
        asked_for = order("http", config, callback_url="https://headgate.example/c/1")
        registry = kinds(tmp_path)
        started = registry.start(asked_for)
        polled = registry.poll(asked_for, started.metadata)
        registry.cancel(asked_for, started.metadata)

    assert started.status is StartStatus.RUNNING
    assert polled.state is JobState.RUNNING
    assert api.asked[0].headers["headgate-callback"] == "https://headgate.example/c/1"
    assert api.asked[0].json() == {"tell": "https://headgate.example/c/1"}
    assert (api.asked[1].method, api.asked[1].path) == ("POST", f"/cancel/{RUN_ID}")
