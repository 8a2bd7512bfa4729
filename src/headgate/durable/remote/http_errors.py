"""HTTP errors: what a failure of the HTTP library says about the request."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from contextlib import suppress

import httpx

from headgate.durable.remote.exchange import NoReplyError
from headgate.errors import SettingsError

# The connection was never made, so that the server has not seen the request.
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


def no_reply(error: httpx.HTTPError, url: str) -> NoReplyError:
    """Return the error of a request without a reply. Raises `SettingsError` for an untrusted certificate."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, ssl.SSLCertVerificationError):
            raise SettingsError(f"{url}: certificate not trusted; pass the CA bundle of the server as ca") from error
        link = link.__cause__ or link.__context__
    if isinstance(error, _NOT_SENT):
        return NoReplyError(f"no server answers there ({type(error).__name__})", was_sent=False)
    return NoReplyError(f"connection lost ({type(error).__name__})", was_sent=True)


def retry_after_seconds(headers: Mapping[str, str]) -> float:
    """Return the seconds of a Retry-After header; 0 if there is none."""
    with suppress(ValueError):
        return max(0.0, float(headers.get("retry-after", "0")))
    return 0.0
