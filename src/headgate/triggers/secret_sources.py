"""Secret sources: read the secrets that a trigger's config refers to, at each start.

A config refers to `${env:NAME}` or `${file:NAME}`. Only variables with a fixed prefix and files below one folder can be
used, because the author of a definition can send a secret to any destination.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from headgate.errors import DefinitionError
from headgate.triggers.contract import FailureCategory, TriggerFailedError

ENV: Final = "env"
FILE: Final = "file"
PREFIX: Final = "HG_SECRET_"
BYTES_MAX: Final = 16_384
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")


class SecretSources:
    """The secrets that definitions may refer to. Errors never contain them."""

    def __init__(self, environ: Mapping[str, str], *, folder: Path | None = None, prefix: str = PREFIX) -> None:
        if not prefix:
            raise ValueError("a prefix is required: without one, every variable could be read")
        self._environ = environ
        self._folder = folder
        self._prefix = prefix

    def check(self, source: str, name: str) -> None:
        """Raise `DefinitionError` for a secret that definitions may not refer to."""
        if source == ENV and not name.startswith(self._prefix):
            raise DefinitionError(f"${{env:{name}}}: only variables whose names begin with {self._prefix} can be used")
        if source == FILE and not _FILE_NAME.fullmatch(name):
            raise DefinitionError(
                f"${{file:{name}}}: name a file below the folder of secrets, without '..' and not beginning with '/'"
            )
        if source == FILE and self._folder is None:
            raise DefinitionError(f"${{file:{name}}}: there is no folder of secrets here; use ${{env:{self._prefix}…}}")

    def read(self, source: str, name: str) -> str:
        """Return a secret. Raises `TriggerFailedError` if it is missing, `DefinitionError` as `check` does."""
        self.check(source, name)
        value = self._environ.get(name, "") if source == ENV else self._file(name)
        if not value:
            raise TriggerFailedError(f"secret ${{{source}:{name}}}: it is not set, or empty", FailureCategory.PERMANENT)
        return value

    def _file(self, name: str) -> str:
        assert self._folder is not None, "checked"
        try:
            folder = self._folder.resolve()
            path = (folder / name).resolve()
            if not path.is_relative_to(folder):
                raise DefinitionError(f"${{file:{name}}}: it leads out of the folder of secrets")
            with path.open("rb") as file:
                content = file.read(BYTES_MAX + 1)
            text = content.decode()
        except OSError as exc:
            raise TriggerFailedError(
                f"secret ${{file:{name}}}: it cannot be read: {exc.strerror}", FailureCategory.PERMANENT
            ) from exc
        except UnicodeDecodeError:
            # Not chained: the error would quote the content.
            raise TriggerFailedError(f"secret ${{file:{name}}}: it is not UTF-8", FailureCategory.PERMANENT) from None
        if len(content) > BYTES_MAX:
            raise TriggerFailedError(
                f"secret ${{file:{name}}}: it has more than {BYTES_MAX} bytes", FailureCategory.PERMANENT
            )
        return text.rstrip("\r\n")
