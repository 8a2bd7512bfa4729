"""Starts the AWS emulators that tests talk to over real HTTP, on a free loopback port."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Self

import boto3

from tests.ports import free_port

REGION: Final = "us-east-1"
_UP_WITHIN_SECONDS: Final = 60.0
_STARTS_MAX: Final = 3


class Emulator:
    """A server of ours, up from `start` to `stop`."""

    def __init__(self, process: subprocess.Popen[bytes], endpoint: str) -> None:
        self.endpoint = endpoint
        self._process = process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def signal(self, number: signal.Signals) -> None:
        """Send the server a signal: SIGSTOP freezes it with what it holds, SIGCONT lets it go on."""
        self._process.send_signal(number)

    def stop(self) -> None:
        """End the server. Stopping twice is allowed."""
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Ministack(Emulator):
    """MiniStack, from the environment the tests run in. It keeps its state and its log in one folder."""

    @classmethod
    def start(cls, folder: Path, *, has_iam: bool = False) -> Ministack:
        """Start it. With `has_iam` it refuses what no policy allows; the access key `test` may do anything."""
        program = Path(sys.executable).parent / "ministack"

        def command(port: int) -> tuple[list[str], dict[str, str]]:
            return [str(program)], {
                "BIND_HOST": "127.0.0.1",
                "MINISTACK_HOST": "127.0.0.1",
                "GATEWAY_PORT": str(port),
                "STATE_DIR": str(folder / "state"),
                "S3_DATA_DIR": str(folder / "s3"),
                "TMPDIR": str(folder),
                "LOG_LEVEL": "WARNING",
                # It would listen on every address, whatever BIND_HOST says.
                "IOT_MTLS_ENABLED": "0",
                "AUTH": "true" if has_iam else "false",
            }

        return cls(*_started(command, folder / "ministack.log", "/_ministack/health"))


class DynamoDBLocal(Emulator):
    """AWS's own DynamoDB Local, from a folder that holds its jar. It keeps everything in memory."""

    @classmethod
    def start(cls, folder_with_jar: Path) -> DynamoDBLocal:
        def command(port: int) -> tuple[list[str], dict[str, str]]:
            library = f"-Djava.library.path={folder_with_jar / 'DynamoDBLocal_lib'}"
            jar = str(folder_with_jar / "DynamoDBLocal.jar")
            options = ["-inMemory", "-disableTelemetry", "-port", str(port)]
            return ["java", "-Xmx512m", library, "-jar", jar, *options], {}

        return cls(*_started(command, Path(os.devnull), "/"))


class Localstack(Emulator):
    """LocalStack's Step Functions, from the environment that `make localstack` creates."""

    # All that it has is in one account.
    ACCOUNT: Final = "000000000000"

    @classmethod
    def start(cls, python: Path, folder: Path, environment: Mapping[str, str]) -> Localstack:
        """Start `tests.soak.localstack_server`, which `environment` configures, with its state and log in a folder."""

        def command(port: int) -> tuple[list[str], dict[str, str]]:
            return [str(python), "-m", "tests.soak.localstack_server"], {
                "PYTHONPATH": str(Path(__file__).parents[1]),
                "SERVICES": "stepfunctions,events,sts,iam",
                "LS_LOG": "warning",
                # Its usual server listens on every address.
                "GATEWAY_SERVER": "hypercorn",
                "GATEWAY_LISTEN": f"127.0.0.1:{port}",
                "LOCALSTACK_HOST": f"127.0.0.1:{port}",
                "DNS_ADDRESS": "0",
                "DISABLE_EVENTS": "1",
                "SKIP_SSL_CERT_DOWNLOAD": "1",
                "FILESYSTEM_ROOT": str(folder / "root"),
                "HOME": str(folder),
                **environment,
            }

        return cls(*_started(command, folder / "localstack.log", "/_localstack/health"))


def fresh_account() -> str:
    """Return an account that is not in use: as an access key it is a world of its own in both emulators."""
    return str(10**11 + secrets.randbelow(9 * 10**11))


def aws_session(account: str) -> boto3.session.Session:
    """Return a session whose credentials are those of `account`."""
    return boto3.session.Session(aws_access_key_id=account, aws_secret_access_key="-", region_name=REGION)


def _started(
    command: Callable[[int], tuple[list[str], dict[str, str]]], log: Path, health_path: str
) -> tuple[subprocess.Popen[bytes], str]:
    """Start what `command` returns for a port, and return the process and its endpoint once it answers."""
    # A port that was free a moment ago may be taken by the time the server binds it.
    for _ in range(_STARTS_MAX):
        port = free_port()
        arguments, environment = command(port)
        with log.open("ab") as output:
            process = subprocess.Popen(
                arguments, env={**os.environ, **environment}, stdout=output, stderr=subprocess.STDOUT
            )
        endpoint = f"http://127.0.0.1:{port}"
        if _is_up(process, endpoint + health_path):
            return process, endpoint
        process.kill()
        process.wait()
    raise RuntimeError(f"{arguments[0]} did not start; see {log}")


def _is_up(process: subprocess.Popen[bytes], url: str) -> bool:
    ends_at = time.monotonic() + _UP_WITHIN_SECONDS
    while process.poll() is None and time.monotonic() < ends_at:
        try:
            urllib.request.urlopen(url, timeout=1).close()
        except urllib.error.HTTPError as exc:
            # DynamoDB Local answers a plain GET with 400: it is up.
            exc.close()
        except OSError:
            time.sleep(0.05)
            continue
        return True
    return False
