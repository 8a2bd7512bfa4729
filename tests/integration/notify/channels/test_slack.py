"""The Slack channel against a server that speaks `chat.postMessage` as Slack documents it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.clock import SystemClock, VirtualClock
from headgate.durable.model.failures import NonRetryable
from headgate.errors import ThrottledError, TransientError
from headgate.ids import IdMaker
from headgate.notify.channels.factory import open_channels
from headgate.notify.channels.slack_threads import START_SECONDS_MAX, SlackThreads, ThreadTopic
from headgate.notify.configuration import parse_config
from headgate.notify.enums import AlertAction, Severity
from headgate.notify.messages import Channel
from headgate.store.sqlite.store import SqliteStore
from tests.stores import open_sqlite
from tests.unit.notify.rig import LocalService, Reply, Request, a_message, surroundings

TOKEN = "xoxb-1234567890-abcdefABCDEF"
Serve = Callable[[Callable[[Request], Reply | None]], LocalService]


class Slack:
    """The part of Slack's Web API that posts messages."""

    def __init__(self) -> None:
        self.posted: list[dict[str, Any]] = []
        self.next: list[Reply] = []
        self.numbers = itertools.count(1)
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Reply:
        with self._lock:
            if self.next:
                return self.next.pop(0)
            if request.path != "/api/chat.postMessage":
                return 200, {}, {"ok": False, "error": "unknown_method"}
            if request.headers.get("authorization") != f"Bearer {TOKEN}":
                return 200, {}, {"ok": False, "error": "invalid_auth"}
            body = request.json
            if body["channel"] != "C024BE91L":
                return 200, {}, {"ok": False, "error": "channel_not_found"}
            self.posted.append(body)
            ts = f"1503435956.{next(self.numbers):06d}"
            return 200, {}, {"ok": True, "channel": body["channel"], "ts": ts, "message": {"text": body["text"]}}


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def store(tmp_path: Path, clock: VirtualClock) -> Iterator[SqliteStore]:
    opened = open_sqlite(tmp_path, clock=clock)
    yield opened
    opened.close()


def opened(store: SqliteStore, folder: Path, url: str, *, channel: str = "C024BE91L", token: str = TOKEN) -> Channel:
    (folder / "slack-token").write_text(f"{token}\n")
    spec = {
        "kind": "slack",
        "channel": channel,
        "token": f"file:{folder / 'slack-token'}",
        "api_url": f"{url}/api",
        "timeout_seconds": 2,
    }
    config = parse_config({"channels": {"slack": spec}})
    return open_channels(config, surroundings(store, SystemClock(), folder))["slack"]


def test_slack__first_message_of_a_period_then_more__is_a_thread(
    store: SqliteStore, tmp_path: Path, serve: Serve
) -> None:
    slack = Slack()
    channel = opened(store, tmp_path, serve(slack).url)

    thread = channel.send(a_message())
    again = channel.send(a_message(event="SLA_BREACH", severity=Severity.WARNING))
    other = channel.send(a_message(date="2026-03-04"))

    first, reply, elsewhere = slack.posted
    assert "thread_ts" not in first
    assert reply["thread_ts"] == thread == again == "1503435956.000001"
    assert reply["reply_broadcast"] is False
    assert "thread_ts" not in elsewhere
    assert other == "1503435956.000003"
    text = first["blocks"][0]["text"]["text"]
    assert text.startswith(":red_circle: *JOB_FAILED* | orders | daily | 2026-03-03\n")
    assert text.endswith("error: exit 1\n→ look at the log")


def test_slack__two_at_once__make_one_thread(tmp_path: Path, serve: Serve) -> None:
    # D26: two who find no thread at the same moment must not begin two.
    slack = Slack()
    service = serve(slack)
    shared = open_sqlite(tmp_path)
    channel = opened(shared, tmp_path, service.url)
    started = threading.Barrier(8)
    waited: list[TransientError] = []

    def tell(number: int) -> None:
        started.wait()
        while True:
            try:
                channel.send(a_message(message_id=f"m{number}"))
            except TransientError as exc:
                waited.append(exc)
            else:
                return

    threads = [threading.Thread(target=tell, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shared.close()

    assert len(slack.posted) == 8
    assert [post for post in slack.posted if "thread_ts" not in post] == slack.posted[:1]
    assert {post["thread_ts"] for post in slack.posted[1:]} == {"1503435956.000001"}
    assert all("another process is starting it" in str(each) for each in waited)


def test_threads__who_was_to_begin_it_died__another_begins_it_after_a_while(
    store: SqliteStore, clock: VirtualClock
) -> None:
    threads = SlackThreads(store, clock, IdMaker(clock))
    place = ThreadTopic("slack", "orders", "daily", "2026-03-03")

    class Died(BaseException):
        pass

    def inner(_thread: str | None) -> str:
        with pytest.raises(TransientError, match="another process is starting it"):
            threads.reply_or_start(place, lambda _thread: "never")
        clock.advance(START_SECONDS_MAX + 1)
        assert threads.reply_or_start(place, lambda thread: "second" if thread is None else "") == "second"
        raise Died

    # The first one dies after the second has taken over: what it leaves must not undo that.
    with pytest.raises(Died):
        threads.reply_or_start(place, inner)

    replies: list[str | None] = []

    def reply(thread: str | None) -> str:
        replies.append(thread)
        return "a reply"

    assert threads.reply_or_start(place, reply) == "second"
    assert replies == ["second"]


def test_threads__beginning_it_failed__the_next_may_begin_it_at_once(store: SqliteStore, clock: VirtualClock) -> None:
    threads = SlackThreads(store, clock, IdMaker(clock))
    place = ThreadTopic("slack", "orders", "daily", "2026-03-03")

    def fail(_thread: str | None) -> str:
        raise TransientError("down")

    with pytest.raises(TransientError, match="down"):
        threads.reply_or_start(place, fail)

    assert threads.reply_or_start(place, lambda thread: "ts" if thread is None else "") == "ts"
    assert threads.reply_or_start(ThreadTopic("other", "orders", "daily", "2026-03-03"), lambda _: "ts2") == "ts2"


def test_slack__the_thread_was_deleted__is_reported_in_the_channel(
    store: SqliteStore, tmp_path: Path, serve: Serve
) -> None:
    slack = Slack()
    channel = opened(store, tmp_path, serve(slack).url)
    channel.send(a_message())
    slack.next = [(200, {}, {"ok": False, "error": "thread_not_found"})]

    channel.send(a_message(event="SLA_BREACH"))

    assert "thread_ts" not in slack.posted[1]


def test_slack__text_with_mark_up__pings_no_one(store: SqliteStore, tmp_path: Path, serve: Serve) -> None:
    slack = Slack()
    channel = opened(store, tmp_path, serve(slack).url)

    channel.send(a_message(title="<!channel> & <@U1>", lines=("<https://evil|ok>",)))

    assert slack.posted[0]["text"] == "JOB_FAILED: &lt;!channel&gt; &amp; &lt;@U1&gt;"
    assert "<!" not in slack.posted[0]["blocks"][0]["text"]["text"]
    assert "<https" not in slack.posted[0]["blocks"][0]["text"]["text"]


def test_slack__resolved__has_a_check_mark_in_the_thread(store: SqliteStore, tmp_path: Path, serve: Serve) -> None:
    slack = Slack()
    channel = opened(store, tmp_path, serve(slack).url)
    thread = channel.send(a_message())

    channel.send(a_message(action=AlertAction.RESOLVE, title="resolved: the job failed"))

    assert slack.posted[1]["thread_ts"] == thread
    assert slack.posted[1]["blocks"][0]["text"]["text"].startswith(":white_check_mark:")
    assert slack.posted[1]["reply_broadcast"] is False


@pytest.mark.parametrize(
    ("reply", "error", "says"),
    [
        ((200, {}, {"ok": False, "error": "invalid_auth"}), NonRetryable, "invalid_auth; check the token"),
        ((200, {}, {"ok": False, "error": "not_in_channel"}), NonRetryable, "not_in_channel"),
        ((200, {}, {"ok": False, "error": "internal_error"}), TransientError, "internal_error"),
        ((200, {}, "no object"), TransientError, "status 200"),
        ((503, {}, {}), TransientError, "answered 503"),
        ((302, {"location": "http://169.254.169.254/"}, {}), NonRetryable, "redirects are not followed"),
    ],
)
def test_slack__refuses__says_whether_it_may_be_tried_again(
    store: SqliteStore, tmp_path: Path, serve: Serve, reply: Reply, error: type[Exception], says: str
) -> None:
    channel = opened(store, tmp_path, serve(lambda _request: reply).url)

    with pytest.raises(error, match=says) as raised:
        channel.send(a_message())

    assert TOKEN not in str(raised.value)


@pytest.mark.parametrize(
    "reply",
    [
        (429, {"retry-after": "30"}, {"ok": False, "error": "ratelimited"}),
        (200, {"retry-after": "30"}, {"ok": False, "error": "ratelimited"}),
    ],
)
def test_slack__wants_fewer_messages__says_for_how_long(
    store: SqliteStore, tmp_path: Path, serve: Serve, reply: Reply
) -> None:
    channel = opened(store, tmp_path, serve(lambda _request: reply).url)

    with pytest.raises(ThrottledError) as raised:
        channel.send(a_message())

    assert raised.value.retry_after_seconds == 30


def test_slack__never_answers__is_given_up_in_time(store: SqliteStore, tmp_path: Path, serve: Serve) -> None:
    channel = opened(store, tmp_path, serve(lambda _request: None).url)

    with pytest.raises(TransientError, match="no answer in time"):
        channel.send(a_message())


def test_slack__token_replaced_while_it_runs__the_new_one_is_used(
    store: SqliteStore, tmp_path: Path, serve: Serve
) -> None:
    slack = Slack()
    channel = opened(store, tmp_path, serve(slack).url, token="xoxb-0000000000-revoked")
    with pytest.raises(NonRetryable, match="invalid_auth"):
        channel.send(a_message())

    (tmp_path / "slack-token").write_text(TOKEN)
    channel.send(a_message())

    assert len(slack.posted) == 1
