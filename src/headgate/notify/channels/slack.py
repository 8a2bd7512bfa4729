"""Slack channel: `chat.postMessage`, with a thread per cause and a button that acknowledges."""

from __future__ import annotations

import re
from typing import Any, Final

from headgate.durable.model.failures import NonRetryable
from headgate.errors import ThrottledError, TransientError
from headgate.notify.channels.http_post import HttpAnswer, HttpPoster
from headgate.notify.channels.slack_threads import SlackThreads, ThreadTopic
from headgate.notify.credentials import Credential
from headgate.notify.enums import AlertAction, Severity
from headgate.notify.inbound import ACKNOWLEDGE
from headgate.notify.messages import Message, line

API_URL: Final = "https://slack.com/api"
# Bot and user tokens, including rotating ones.
TOKEN: Final = re.compile(r"(xoxe\.)?xox[bpe]-[A-Za-z0-9-]{10,400}")
_MARKS: Final = {
    Severity.CRITICAL: ":red_circle:",
    Severity.WARNING: ":large_yellow_circle:",
    Severity.INFO: ":information_source:",
}
# Errors for which a retry may succeed.
_PASSING: Final = frozenset(
    {
        "ratelimited", "rate_limited", "internal_error", "fatal_error", "service_unavailable", "request_timeout",
        "team_added_to_org", "message_limit_exceeded",
    }
)  # fmt: skip
_GONE: Final = frozenset({"thread_not_found", "message_not_found", "cannot_reply_to_message"})
_SECTION_MAX: Final = 2_900


class SlackChannel:
    """Posts to one channel of a workspace."""

    actions = frozenset(AlertAction)

    def __init__(
        self,
        name: str,
        channel_id: str,
        token: Credential,
        poster: HttpPoster,
        threads: SlackThreads,
        api_url: str = API_URL,
        *,
        has_button: bool = False,
    ) -> None:
        """With `has_button`, alerts have a button that acknowledges them; Slack sends it to this server."""
        self.name = name
        self._channel_id = channel_id
        self._token = token
        self._poster = poster
        self._threads = threads
        self._has_button = has_button
        self._url = f"{api_url.rstrip('/')}/chat.postMessage"

    def send(self, message: Message) -> str:
        """Post the message, as a reply if its thread exists, and return the thread.

        Raises `NonRetryable` for a permanent error (a revoked token, an unknown channel), and `TransientError`
        otherwise.
        """
        if message.date:
            topic = ThreadTopic(self.name, message.pipeline_id, message.schedule_id, message.date)
        elif message.thread:
            topic = ThreadTopic(self.name, message.pipeline_id, "", message.thread)
        else:
            # An alert that stands for itself: later actions reply to its own message.
            return self._post(message, message.began_as or None)
        return self._threads.reply_or_start(topic, lambda thread: self._post(message, thread))

    def _post(self, message: Message, thread: str | None) -> str:
        answer = self._call(_body(message, self._channel_id, thread, has_button=self._has_button))
        if thread is not None and answer.body.get("error") in _GONE:
            # The thread's parent was deleted: post outside of it.
            answer = self._call(_body(message, self._channel_id, None, has_button=self._has_button))
        if answer.body.get("ok") is not True:
            self._refuse(answer)
        return str(answer.body.get("ts", ""))

    def _call(self, body: dict[str, Any]) -> HttpAnswer:
        return self._poster.post(self._url, body, headers={"authorization": f"Bearer {self._token.read().reveal()}"})

    def _refuse(self, answer: HttpAnswer) -> None:
        reason = line(answer.body.get("error", f"status {answer.status}"), 100)
        if reason in ("ratelimited", "rate_limited"):
            error = ThrottledError(f"channel {self.name}: Slack throttles messages")
            error.retry_after_seconds = answer.retry_after_seconds or 1.0
            raise error
        if reason in _PASSING or "error" not in answer.body:
            raise TransientError(f"channel {self.name}: Slack did not accept the message: {reason}")
        raise NonRetryable(
            f"channel {self.name}: Slack refused the message: {reason}; check the token, its scopes and the channel"
        )


def escaped(text: str) -> str:
    """Return a text with Slack mark-up escaped: no links and no mentions."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _body(message: Message, channel_id: str, thread: str | None, *, has_button: bool) -> dict[str, Any]:
    mark = ":white_check_mark:" if message.action is AlertAction.RESOLVE else _MARKS[message.severity]
    counted = f" (x{message.count})" if message.count > 1 else ""
    lines = [f"{mark} *{escaped(message.event)}* | {escaped(message.subject)}{counted}", escaped(message.title)]
    lines += [escaped(each) for each in message.lines]
    lines += [f"→ {escaped(message.hint)}"] if message.hint else []
    lines += [f"<{message.link}|open>"] if message.link else []
    section = {"type": "section", "text": {"type": "mrkdwn", "text": line_cut("\n".join(lines))}}
    body: dict[str, Any] = {
        "channel": channel_id,
        # Shown where blocks are not, such as in notifications.
        "text": escaped(f"{message.event}: {message.title}"),
        "blocks": [section],
        "unfurl_links": False,
        "unfurl_media": False,
    }
    is_open = message.action is AlertAction.TRIGGER and message.severity is not Severity.INFO
    if has_button and is_open and not message.is_test:
        body["blocks"].append({"type": "actions", "elements": [_button(message)]})
    if thread is not None:
        body["thread_ts"] = thread
        # A page must be visible in the channel, not only in its thread.
        body["reply_broadcast"] = message.severity is Severity.CRITICAL and message.action is AlertAction.TRIGGER
    return body


def _button(message: Message) -> dict[str, Any]:
    return {
        "type": "button",
        "action_id": ACKNOWLEDGE,
        "text": {"type": "plain_text", "text": "Acknowledge"},
        "value": message.alert_id,
    }


def line_cut(text: str) -> str:
    """Return the text truncated to the limit of a section."""
    return text if len(text) <= _SECTION_MAX else f"{text[: _SECTION_MAX - 1]}…"
