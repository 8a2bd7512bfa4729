"""Secrets: which can be referred to, and that none of them gets out."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from headgate.errors import DefinitionError
from headgate.triggers.contract import FailureCategory, JobState, TriggerFailedError
from headgate.triggers.secret_sources import BYTES_MAX, SecretSources
from tests.unit.triggers.rigs import kinds, order, serving

ENVIRON = {"HG_SECRET_TOKEN": "tok-123", "AWS_SECRET_ACCESS_KEY": "aws-key", "PATH": "/usr/bin:/bin"}


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "PATH", "HEADGATE_HOME", "hg_secret_token", ""])
def test_env__name_without_the_prefix__cannot_be_had(name: str) -> None:
    # bug 77
    with pytest.raises(DefinitionError, match="begin with HG_SECRET_"):
        SecretSources(ENVIRON).read("env", name)


def test_file__below_the_folder__is_read_without_its_last_newline(tmp_path: Path) -> None:
    # bug 81: a token belongs into a secret store, which mounts files, and not into the environment.
    (tmp_path / "airflow").mkdir()
    (tmp_path / "airflow" / "token").write_text("tok-9\n")

    assert SecretSources({}, folder=tmp_path).read("file", "airflow/token") == "tok-9"


def test_file__link_that_leads_out__is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    folder.mkdir()
    (tmp_path / "outside").write_text("no")
    (folder / "link").symlink_to(tmp_path / "outside")

    with pytest.raises(DefinitionError, match="leads out"):
        SecretSources({}, folder=folder).read("file", "link")


def test_file__replaced_between_two_starts__is_read_anew(tmp_path: Path) -> None:
    sources = SecretSources({}, folder=tmp_path)
    (tmp_path / "t").write_text("one")
    first = sources.read("file", "t")
    (tmp_path / "t").write_text("two")

    assert (first, sources.read("file", "t")) == ("one", "two")


@pytest.mark.parametrize("content", [b"", b"\xff\xfe secret", b"x" * (BYTES_MAX + 1)])
def test_file__that_cannot_be_a_secret__is_refused_without_quoting_it(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t").write_bytes(content)

    with pytest.raises(TriggerFailedError) as caught:
        SecretSources({}, folder=tmp_path).read("file", "t")

    assert caught.value.category is FailureCategory.PERMANENT
    assert "secret $" in str(caught.value)
    assert "xx" not in str(caught.value)


def test_secret__not_set__fails_for_good_and_says_which(tmp_path: Path) -> None:
    config = {"url": "http://127.0.0.1:1/", "headers": {"authorization": "Bearer ${env:HG_SECRET_NONE}"}}

    with pytest.raises(TriggerFailedError, match=r"\$\{env:HG_SECRET_NONE\}: it is not set") as caught:
        kinds(tmp_path, environ=ENVIRON).start(order("http", config))

    assert caught.value.category is FailureCategory.PERMANENT


def test_secret__quoted_by_the_receiver__is_in_no_error_and_no_metadata(tmp_path: Path) -> None:
    # bugs 77, 82
    with serving(lambda asked: (418, f"you sent {asked.headers['x-key']}".encode())) as api:
        config = {"url": api.url, "headers": {"x-key": "${env:HG_SECRET_TOKEN}"}}
        with pytest.raises(TriggerFailedError) as caught:
            kinds(tmp_path, environ=ENVIRON).start(order("http", config))

    assert api.asked[0].headers["x-key"] == "tok-123"
    assert "you sent ***" in str(caught.value)
    assert "tok-123" not in repr((caught.value, caught.value.__cause__, vars(caught.value)))


def test_secret__printed_by_a_command__is_neither_returned_nor_on_disk(tmp_path: Path) -> None:
    config = {"command": ["sh", "-c", "echo got $KEY"], "environment": {"KEY": "${env:HG_SECRET_TOKEN}"}}

    registry, asked = kinds(tmp_path, environ=ENVIRON), order("command", config)
    registry.start(asked)
    while registry.poll(asked, {}).state is JobState.RUNNING:
        time.sleep(0.01)

    assert registry.read_output(asked, offset=0, limit=100).text == "got *******\n"
    files = [path for path in (tmp_path / "commands").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if b"tok-123" in path.read_bytes()]
