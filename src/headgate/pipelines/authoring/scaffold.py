"""Scaffold: the files of a new project: settings, one pipeline, one archetype and the app that runs its job."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from headgate.errors import AlreadyExistsError, InvalidIdError, StoreIOError
from headgate.pipelines.authoring.json_schema import SchemaKind, schema_text
from headgate.pipelines.authoring.validation import ID

_WORD: Final = re.compile(r"[^a-z0-9]+")
_NAME_CHARS_MAX: Final = 100

_SETTINGS: Final = """\
# Settings of this project. Every one can also be given as a variable (HEADGATE_HTTP) or, for many, as an option.
# All state is kept here; delete the folder to begin anew.
home = ".headgate"
http = "127.0.0.1:8400"
grpc = "127.0.0.1:8401"
"""

_PIPELINE: Final = """\
# yaml-language-server: $schema=../schemas/pipeline.json
# The pipeline {name}-daily: every morning, as soon as its source is there, it runs the workflow `refresh` of app.py.
#   headgate pipeline validate            lists what is wrong with this file, by line
#   headgate period why {name}-daily      explains why it has or has not run today
id: {name}-daily
owner: you@example.com
description: Refreshes {name} once a day.
period: daily
timezone: UTC

schedules:
  - name: daily
    cron: "0 6 * * *"

readiness:
  # From six on it is looked at, and looked at again whenever the sensor changes, for four hours at most.
  window: 4h
  interval: 5m
  rules:
    # The value counts for one day, that of --period or else the day on which it is pushed:
    # headgate sensor push {name}-daily source-ready --period 2026-01-05 --data '{{"status": "ready"}}'
    - key: source-ready
      check: equals
      field: status
      value: ready

trigger:
  type: workflow
  config:
    workflow: refresh
    input: "${{date}}"

retry: {{attempts: 3, backoff: 30s}}

sla:
  deadline: "09:00"
  expected_duration: 10m
"""

_ARCHETYPE: Final = """\
# yaml-language-server: $schema=../schemas/archetype.json
# A kind of pipeline of your own. One that says `archetype: {name}-load` has these traits, and may change what they say.
name: {name}-load
description: Loads data for {name}.
required_traits:
  - type: source-freshness
    description: The source has data that is recent enough.
    evaluator: builtin:sensor-freshness
    config: {{sensorType: source-ready, maxAge: 24h}}
    ttl: 5m
    timeout: 30s
optional_traits:
  - type: schema-contract
    description: The source has the columns that were agreed on.
    ttl: 1h
    timeout: 30s
trait_rule: all-required-pass
"""

_APP: Final = '''\
"""The jobs of the project {name}. Run it with: headgate up --app app:app"""

from __future__ import annotations

import headgate as hg

app = hg.App("{name}")


@app.activity(timeout="10m")
def load(day: str) -> int:
    """Do the work of a day. It may be run again if it is cut short, so let it replace what it wrote before."""
    return len(day)


@app.workflow
async def refresh(day: str) -> int:
    return await load(day)
'''

_IGNORED: Final = ".headgate/\n__pycache__/\n"


def project_name(folder: Path) -> str:
    """Return the project name for a folder. Raises `InvalidIdError` if it gives none."""
    name = _WORD.sub("-", folder.resolve().name.lower()).strip("-")[:_NAME_CHARS_MAX].strip("-")
    return checked_name(name)


def checked_name(name: str) -> str:
    """Return the name. Raises `InvalidIdError` for an invalid one."""
    if not ID.fullmatch(name) or len(name) > _NAME_CHARS_MAX:
        raise InvalidIdError(
            f"project {name[:80]!r}: use 2 to {_NAME_CHARS_MAX} lower-case letters, digits, '.', '_' and '-', "
            "with a letter or digit at both ends"
        )
    return name


def project_files(name: str) -> dict[str, str]:
    """Return the files of a new project by relative path. Raises `InvalidIdError`."""
    checked_name(name)
    return {
        "headgate.toml": _SETTINGS,
        f"pipelines/{name}-daily.yaml": _PIPELINE.format(name=name),
        f"archetypes/{name}-load.yaml": _ARCHETYPE.format(name=name),
        # For editors. `headgate pipeline schema` prints them again after an upgrade.
        **{f"schemas/{kind.value}.json": schema_text(kind) for kind in SchemaKind},
        "app.py": _APP.format(name=name),
        ".gitignore": _IGNORED,
    }


def write_project(folder: Path, name: str | None = None) -> list[Path]:
    """Write a new project into a folder, which is created if needed, and return its files.

    Existing files are never touched: raises `AlreadyExistsError`, with nothing written, if one of them exists. Raises
    `InvalidIdError` as `project_name` does, and `StoreIOError` if the folder cannot be written.
    """
    files = project_files(project_name(folder) if name is None else name)
    paths = {folder / path: text for path, text in files.items()}
    there = [path for path in paths if path.exists() or path.is_symlink()]
    if there:
        raise AlreadyExistsError(f"{there[0]}: it is there already; use an empty folder, or move it away")
    try:
        for path, text in paths.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            # Exclusive: a file that was created meanwhile is not overwritten.
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
    except FileExistsError as exc:
        raise AlreadyExistsError(f"{exc.filename}: it is there already; use an empty folder, or move it away") from exc
    except OSError as exc:
        raise StoreIOError(f"{exc.filename or folder}: it cannot be written: {exc.strerror}") from exc
    return list(paths)
