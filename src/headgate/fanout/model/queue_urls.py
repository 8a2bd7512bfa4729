"""Queue URLs: which SQS queues fan-outs may send their chunks to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct

from headgate.errors import DefinitionError

URL_CHARS_MAX: Final = 500
# /account/name, as SQS returns it.
_PATH: Final = re.compile(r"/[0-9]{1,20}/[A-Za-z0-9_-]{1,80}(\.fifo)?")
_AWS: Final = re.compile(r"sqs\.([a-z0-9-]{1,40})\.amazonaws\.com(\.cn)?")


class QueueRules(Struct, frozen=True):
    """The queues that fan-outs of one installation may name, because the server sends with its own credentials.

    `patterns` are the allowed URLs with * for any characters; without any, no queue is allowed but `default_url`.
    Requests go to the endpoint of the client, whatever host the URL names.
    """

    region: str | None
    patterns: Sequence[str] = ()
    # The queue of fan-outs that name none.
    default_url: str | None = None

    def check(self, queue_url: str) -> None:
        """Raise `DefinitionError` for a queue that fan-outs may not use."""
        shown = queue_url[:200]
        if self.region is None:
            raise DefinitionError(f"queue_url {shown!r}: SQS needs a region; set store.aws_region, such as eu-west-1")
        parts = _split(queue_url)
        if parts is None:
            raise DefinitionError(
                f"queue_url {shown!r}: write the URL of an SQS queue, such as "
                f"https://sqs.{self.region}.amazonaws.com/123456789012/chunks"
            )
        if queue_url != self.default_url and not any(fnmatchcase(queue_url, pattern) for pattern in self.patterns):
            allowed = ", ".join(self.patterns) if self.patterns else "none"
            raise DefinitionError(
                f"queue_url {shown!r}: the server may not send to it; fanout.queues allows {allowed}: "
                "an operator can add this URL there, or a pattern with *"
            )
        found = _AWS.fullmatch(parts.hostname or "")
        if found is not None and found[1] != self.region:
            raise DefinitionError(f"queue_url {shown!r}: store.aws_region is {self.region}; use a queue of that region")


def _split(queue_url: str) -> SplitResult | None:
    """Return the parts of the URL of a queue, or None if it is not one."""
    if len(queue_url) > URL_CHARS_MAX or not queue_url.isascii() or not queue_url.isprintable() or " " in queue_url:
        return None
    try:
        parts = urlsplit(queue_url)
        is_plain = parts.port is None or parts.port > 0
    except ValueError:
        return None
    has_more = parts.query or parts.fragment or "@" in parts.netloc or "?" in queue_url or "#" in queue_url
    if parts.scheme not in ("http", "https") or not parts.hostname or has_more or not is_plain:
        return None
    return parts if _PATH.fullmatch(parts.path) else None
