"""Programs of the stories keep their state on DynamoDB, if HEADGATE_TEST_ACCEPTANCE_STORE is `dynamodb`.

Then MiniStack is started, and each test has an account with tables and a bucket of its own; the stories are the same.
`make soak` names the stories that it runs; `OPENS_SQLITE_FILE` leaves out those tests of them that cannot be there.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

import pytest

from headgate.bootstrap.store import create_dynamodb_tables
from headgate.clock import SystemClock
from headgate.settings import Settings
from tests.acceptance.program import IS_ON_DYNAMODB, STORE
from tests.ministack import REGION, Ministack, aws_session, fresh_account

_FOLDER: Final = pytest.StashKey[tempfile.TemporaryDirectory[str]]()
_EMULATOR: Final = pytest.StashKey[Ministack]()


# Before the fixtures of a module, whose server is to be there too.
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give a test an account, whose tables are empty."""
    if not IS_ON_DYNAMODB:
        return
    stash = item.config.stash
    if _EMULATOR not in stash:
        stash[_FOLDER] = tempfile.TemporaryDirectory(prefix="headgate-acceptance-")
        stash[_EMULATOR] = Ministack.start(Path(stash[_FOLDER].name))
    account, endpoint = fresh_account(), stash[_EMULATOR].endpoint
    aws_session(account).client("s3", endpoint_url=endpoint).create_bucket(Bucket=f"blobs-{account}")
    keys = {"AWS_ACCESS_KEY_ID": account, "AWS_SECRET_ACCESS_KEY": "-"}
    os.environ.update(keys)
    STORE.update(
        {
            **keys,
            "HEADGATE_STORE_BACKEND": "dynamodb",
            "HEADGATE_STORE_AWS_REGION": REGION,
            "HEADGATE_STORE_AWS_ENDPOINT_URL": endpoint,
            "HEADGATE_STORE_BLOB_BUCKET": f"blobs-{account}",
        }
    )
    home = str(Path(stash[_FOLDER].name) / account)
    create_dynamodb_tables(Settings.load(STORE, None, {"home": home}), SystemClock())


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the emulator."""
    if _EMULATOR in config.stash:
        config.stash[_EMULATOR].stop()
        config.stash[_FOLDER].cleanup()
