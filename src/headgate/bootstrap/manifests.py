"""Manifest bootstrap: the folder that a server watches, and the bucket that a function does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from headgate.bootstrap.store import required_extra
from headgate.errors import SettingsError, UserError
from headgate.file_roots import usable_project

if TYPE_CHECKING:
    from headgate.settings import Settings


def manifest_folder(settings: Settings) -> Path | None:
    """Return the folder of manifests, created if it is missing; None if none is configured. Raises `SettingsError`."""
    given = settings.fanout.manifests
    if given is None:
        return None
    project = usable_project(settings.project)
    if not given.is_absolute() and project is None:
        raise SettingsError(f"fanout.manifests {given}: there is no project folder; give an absolute path")
    folder = given if project is None else project / given
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise SettingsError(f"fanout.manifests {folder}: cannot be created: {exc.strerror}") from exc
    return folder


def put_manifest(settings: Settings, content: bytes, target: str, name: str) -> None:
    """Put a manifest into a bucket, below the prefix of `target`. Raises `UserError` if S3 refuses it."""
    parts = urlsplit(target)
    if not parts.netloc:
        raise UserError(f"--to {target}: write s3://BUCKET/PREFIX")
    prefix = parts.path.lstrip("/")
    key = f"{prefix}{name}" if not prefix or prefix.endswith("/") else f"{prefix}/{name}"
    with required_extra("aws", "boto3", "botocore"):
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError
    session = boto3.Session(region_name=settings.store.aws_region)
    try:
        client = session.client("s3", endpoint_url=settings.store.aws_endpoint_url)
        client.put_object(Bucket=parts.netloc, Key=key, Body=content, ContentType="application/json")
    except (BotoCoreError, ClientError) as exc:
        raise UserError(f"--to {target}: S3 refused the manifest ({exc})") from exc
