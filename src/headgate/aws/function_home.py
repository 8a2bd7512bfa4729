"""Function home: prepares the home folder of a Lambda before the store is opened."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from headgate.bootstrap.store import keys_path
from headgate.errors import StoreIOError
from headgate.pipelines.lifecycle.aws_errors import aws_request
from headgate.settings import Settings
from headgate.triggers.aws.clients import AwsClients


def prepare_home(settings: Settings, clients: AwsClients, *, keys_secret_arn: str, files: Iterable[Path] = ()) -> None:
    """Create the home folder, with the keyring of a secret (if configured) and copies of `files`.

    Raises `TransientError` and `StoreIOError`.
    """
    keys = _secret(keys_secret_arn, clients) if keys_secret_arn else ""
    try:
        settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        for file in files:
            shutil.copyfile(file, settings.home / file.name)
        if keys:
            _write_private(keys_path(settings), keys)
    except OSError as exc:
        raise StoreIOError(f"home {settings.home}: cannot be written: {exc.strerror}; set HEADGATE_HOME") from exc


def _secret(arn: str, clients: AwsClients) -> str:
    with aws_request(f"secret {arn}"):
        response = clients.client("secretsmanager").get_secret_value(SecretId=arn)
    return str(response.get("SecretString", ""))


def _write_private(path: Path, text: str) -> None:
    """Write a file with mode 0600, unless an earlier process of the same sandbox has written it."""
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
