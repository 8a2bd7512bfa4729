"""Credentials: tokens and passwords by reference, so that none is in settings, environment variables or errors.

`file:/run/secrets/slack` is a file with nothing else in it; it is read on each use, so that it can be rotated at run
time. `aws-secret:NAME` is a secret of AWS Secrets Manager, and `aws-secret:NAME#key` a member of a JSON secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from headgate import typed_decode
from headgate.clock import Clock
from headgate.errors import SettingsError, TransientError
from headgate.settings import Secret

BYTES_MAX: Final = 4_096
# How long a secret from AWS is cached.
CACHE_SECONDS: Final = 300.0
_FILE: Final = "file:"
_AWS: Final = "aws-secret:"
_ALLOWED: Final = "write file:/path/of/it, or aws-secret:NAME"

# Returns an AWS secret by name.
Fetch = Callable[[str], str]


class Credential:
    """A secret by reference. `form` is the pattern it must match. Safe to use from many threads.

    Its errors never contain the secret.
    """

    def __init__(self, what: str, reference: str, form: re.Pattern[str], clock: Clock, fetch: Fetch) -> None:
        if not reference.startswith((_FILE, _AWS)):
            raise SettingsError(f"{what}: it is not a reference, and a secret has no place in settings; {_ALLOWED}")
        self._what = what
        self._reference = reference
        self._form = form
        self._clock = clock
        self._fetch = fetch
        self._cached: tuple[float, Secret] | None = None

    def check(self) -> None:
        """Raise `SettingsError` if the secret is missing or malformed: at start, not at the first alert."""
        try:
            self.read()
        except TransientError as exc:
            raise SettingsError(str(exc)) from exc

    def read(self) -> Secret:
        """Return the current secret. Raises `TransientError`, so that deliveries are retried until it is fixed."""
        cached = self._cached
        if cached is not None and self._clock.monotonic() < cached[0] + CACHE_SECONDS:
            return cached[1]
        is_file = self._reference.startswith(_FILE)
        text = (self._from_file() if is_file else self._from_cloud()).strip()
        if not self._form.fullmatch(text):
            problem = "it is empty" if not text else "its content is malformed"
            raise TransientError(f"{self._what} ({self._reference}): {problem}; put the right one there")
        secret = Secret(text)
        if not is_file:
            self._cached = (self._clock.monotonic(), secret)
        return secret

    def _from_file(self) -> str:
        path = Path(self._reference.removeprefix(_FILE)).expanduser()
        try:
            with path.open("rb") as opened:
                content = opened.read(BYTES_MAX + 1)
        except OSError as exc:
            raise TransientError(f"{self._what} ({self._reference}): {exc.strerror}; put the file there") from exc
        if len(content) > BYTES_MAX:
            raise TransientError(
                f"{self._what} ({self._reference}): larger than {BYTES_MAX:,} bytes; it is another file"
            )
        # Latin-1 decodes any bytes: a decoding error would quote the secret.
        return content.decode("latin-1")

    def _from_cloud(self) -> str:
        name, _, member = self._reference.removeprefix(_AWS).partition("#")
        text = self._fetch(name)
        if not member:
            return text
        try:
            found = typed_decode.from_json(text, dict[str, object]).get(member, "")
        except msgspec.DecodeError:
            # Without the cause, which would quote the secret.
            raise TransientError(f"{self._what} ({self._reference}): the secret is not a JSON object") from None
        return found if isinstance(found, str) else ""
