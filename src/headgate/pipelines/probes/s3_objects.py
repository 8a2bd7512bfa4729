"""S3 for fsspec: lists objects with a boto3 client, so that patterns match as they do for files."""

from __future__ import annotations

from typing import Any

from headgate.pipelines.enums import FailureCategory
from headgate.pipelines.probes.errors import ProbeFailedError
from headgate.triggers.aws.clients import error_code

_NOT_THERE = frozenset({"404", "NoSuchKey", "NoSuchBucket", "NotFound"})


def s3_filesystem(fsspec: Any, client: Any, keys_max: int) -> Any:  # noqa: ANN401 - classes of an optional library
    """Return a read-only file system of fsspec over a boto3 client. It lists at most `keys_max` objects."""
    from botocore.exceptions import ClientError

    class S3Objects(fsspec.AbstractFileSystem):  # type: ignore[misc]
        """Lists and describes objects."""

        protocol = "s3"
        cachable = False

        def info(self, path: str, **_options: Any) -> dict[str, Any]:  # noqa: ANN401 - as in fsspec
            bucket, _, key = path.partition("/")
            try:
                found = client.head_object(Bucket=bucket, Key=key)
            except ClientError as exc:
                if error_code(exc) in _NOT_THERE:
                    raise FileNotFoundError(path) from exc
                raise
            return _file(path, found["ContentLength"], found["LastModified"])

        def exists(self, path: str, **_options: Any) -> bool:  # noqa: ANN401 - as in fsspec
            try:
                self.info(path)
            except FileNotFoundError:
                return False
            return True

        def find(self, path: str, **_options: Any) -> dict[str, dict[str, Any]]:  # noqa: ANN401 - as in fsspec
            bucket, _, prefix = path.partition("/")
            found: dict[str, dict[str, Any]] = {}
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
            for page in pages:
                for each in page.get("Contents", ()):
                    name = f"{bucket}/{each['Key']}"
                    found[name] = _file(name, each["Size"], each["LastModified"])
                if len(found) > keys_max:
                    raise ProbeFailedError(
                        f"more than {keys_max} objects begin with s3://{path}; narrow the path",
                        FailureCategory.PERMANENT,
                    )
            return found

    return S3Objects(skip_instance_cache=True)


def _file(name: str, size: int, modified: Any) -> dict[str, Any]:  # noqa: ANN401 - a time of botocore
    return {"name": name, "size": size, "type": "file", "LastModified": modified}
