"""What holds for every test: the environment of the machine does not leak in, and files are kept in memory.

Stores wait for the disk at every commit, and tests commit so often that this is a fifth of their time. A file system
in memory shows the same files to processes that are killed: no test ends the machine itself.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import certifi
import hypothesis
import pytest

from headgate.serve import process
from tests.terraform_tools import TOOLS, described

MEMORY: Final = Path("/dev/shm")
# A whole run leaves less than a third of this.
ROOM_BYTES_MIN: Final = 6 * 1024**3
_FOLDER: Final = pytest.StashKey[Path]()

# How long an example takes says nothing about the code on a machine that is busy with other tests.
hypothesis.settings.register_profile("headgate", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("headgate")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove settings and credentials, so that a test sees only what it sets itself."""
    for name in [name for name in os.environ if name.startswith(("HEADGATE_", "AWS_"))]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True, scope="session")
def one_authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Trust one authority instead of all: to load their certificates takes an HTTP client longer than its request."""
    end = "-----END CERTIFICATE-----\n"
    one = tmp_path_factory.mktemp("authority") / "one.pem"
    one.write_text(Path(certifi.where()).read_text().partition(end)[0] + end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(one))
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Handle interrupts, and choose the folder of temporary files unless it is chosen or this is a worker."""
    # Collecting makes a million objects that stay.
    process.relax_gc()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts what runs in the background deaf to it, and so would be the programs that tests interrupt.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    is_chosen = config.option.basetemp or {"PYTEST_DEBUG_TEMPROOT", "TMPDIR", "PYTEST_XDIST_WORKER"} & os.environ.keys()
    if is_chosen or not _has_room():
        return
    _remove_old()
    folder = MEMORY / f"headgate-tests-{os.getpid()}"
    folder.mkdir()
    config.stash[_FOLDER] = folder
    config.option.basetemp = folder / "t"
    os.environ["TMPDIR"] = str(folder)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that take long: one that begins last runs alone, and the other processes wait for it."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say whether Terraform is here: without it, nothing is planned."""
    terminalreporter.write_line(described(TOOLS))


def pytest_collection_finish() -> None:
    """Do not walk over all tests again and again in search of garbage."""
    process.freeze_heap()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Leave the files of a run that failed for a search for the reason."""
    folder = session.config.stash.get(_FOLDER, None)
    if folder is not None and exitstatus == pytest.ExitCode.OK:
        shutil.rmtree(folder, ignore_errors=True)


def _has_room() -> bool:
    if not os.access(MEMORY, os.R_OK | os.W_OK | os.X_OK):
        return False
    # Some tests run programs that they write.
    may_run = not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
    return may_run and shutil.disk_usage(MEMORY).free >= ROOM_BYTES_MIN


def _remove_old() -> None:
    """Remove what runs have left that failed or were killed."""
    for folder in MEMORY.glob("headgate-tests-*"):
        found = re.fullmatch(r"headgate-tests-(\d+)", folder.name)
        if found is not None and not Path("/proc", found[1]).exists():
            shutil.rmtree(folder, ignore_errors=True)
