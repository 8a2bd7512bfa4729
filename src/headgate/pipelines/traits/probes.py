"""Probes: built-in evaluators that read a file, an object in S3, or a count in a database.

They are read-only. A missing object is FAIL; one that cannot be read is an error.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from headgate.errors import DefinitionError
from headgate.file_roots import FileRoots
from headgate.pipelines.enums import FailureCategory
from headgate.pipelines.traits.builtin import Builtin
from headgate.pipelines.traits.config import duration_or_none, number_or_none, text, text_or_none
from headgate.pipelines.traits.protocol import Answer, Question, failure, not_met, passed
from headgate.triggers.aws.clients import AwsClients, aws_call, error_code

_NOT_THERE: Final = frozenset({"404", "NoSuchKey", "NoSuchBucket", "NotFound"})


def probes(
    *,
    files: FileRoots | None = None,
    aws: Callable[[], AwsClients] | None = None,
    own_objects: tuple[str, str] | None = None,
) -> Mapping[str, Builtin]:
    """Return the probes by name. Files and databases must be below `files`; None: anywhere.

    `own_objects` is the bucket and key prefix of Headgate's own payloads, which probes must not look at.
    """
    builtins: dict[str, Builtin] = {
        "file-exists": lambda question: file_exists(question, files),
        "sql-count": lambda question: _sql_count(question, files),
    }
    if aws is not None:
        builtins["s3-object"] = lambda question: s3_object(question, aws(), own_objects)
    return builtins


def _sql_count(question: Question, files: FileRoots | None) -> Answer:
    # SQLite is loaded for such a question only: functions on AWS have none.
    from headgate.pipelines.traits.sql_count import sql_count

    return sql_count(question, files)


def file_exists(question: Question, files: FileRoots | None = None) -> Answer:
    """Whether there is a file at `path` of at least `minBytes` and at most `maxAge` old."""
    path = allowed_path(text(question.config, "path"), files)
    try:
        # The path is resolved: a link that has replaced it since is not followed.
        found = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return not_met(f"there is no file {path}")
    except PermissionError as exc:
        return failure(FailureCategory.PERMANENT, f"file {path} cannot be looked at: {exc.strerror}")
    except OSError as exc:
        return failure(FailureCategory.TRANSIENT, f"file {path} could not be looked at: {exc.strerror}")
    if not stat.S_ISREG(found.st_mode):
        return not_met(f"{path} is not a file")
    return _held(question, f"file {path}", found.st_size, found.st_mtime)


def s3_object(question: Question, aws: AwsClients, own_objects: tuple[str, str] | None = None) -> Answer:
    """Whether there is an object `key` in `bucket` of at least `minBytes` and at most `maxAge` old."""
    from botocore.exceptions import ClientError

    bucket, key = text(question.config, "bucket"), text(question.config, "key")
    what = f"s3://{bucket}/{key}"
    if own_objects is not None and bucket == own_objects[0] and key.startswith(own_objects[1]):
        raise DefinitionError(f"config: {what} is among Headgate's own objects; probe another bucket or prefix")
    client = aws.client("s3", region=text_or_none(question.config, "region"), read_seconds=question.timeout_seconds)
    with aws_call(what):
        try:
            found: dict[str, Any] = client.head_object(Bucket=bucket, Key=key)
        except ClientError as exc:
            if error_code(exc) in _NOT_THERE:
                return not_met(f"there is no object {what}")
            raise
    modified: datetime = found["LastModified"]
    return _held(question, f"object {what}", int(found["ContentLength"]), modified.timestamp())


def allowed_path(given: str, files: FileRoots | None) -> Path:
    """Return a resolved path, so that no link leads out of the allowed folders."""
    # A relative path is one of the project, wherever the process was started.
    try:
        path = (Path(given) if files is None else files.absolute(given)).resolve()
    except (ValueError, OSError, RuntimeError) as exc:
        raise DefinitionError(f"config: {given[:80]!r} is not a path: {exc}") from exc
    if files is not None and not files.contains(str(path)):
        raise DefinitionError(
            f"config: {given[:200]} is outside of the folders that probes may look at; add its folder to files.roots"
        )
    return path


def _held(question: Question, what: str, size_bytes: int, modified_at: float) -> Answer:
    """Compare the size and age of an object with the limits of the config."""
    bytes_min = number_or_none(question.config, "minBytes")
    age_max = duration_or_none(question.config, "maxAge")
    age = question.now.timestamp() - modified_at
    value = {"bytes": size_bytes, "ageSeconds": round(age, 3)}
    if bytes_min is not None and size_bytes < bytes_min:
        return not_met(f"{what} has {size_bytes} bytes, less than {bytes_min:g}", value)
    if age_max is not None and age > age_max:
        return not_met(f"{what} is {age:.0f} s old, more than {age_max:g} s", value)
    return passed(f"{what} is there, with {size_bytes} bytes", value)
