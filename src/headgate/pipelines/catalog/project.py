"""Project: the project folder as it was last loaded, and which of folder and API the definition in force is from.

The latest change wins, whichever side made it. A file that is unchanged since it was last loaded changes nothing, so
that a change over the API stays in force across reloads and restarts. A changed file replaces it, and that is reported.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from msgspec import Struct

from headgate.pipelines.authoring.archetypes import Archetype
from headgate.pipelines.catalog.provenance import API
from headgate.pipelines.catalog.rows import StoredPipeline

# The last report, in the home folder, for `headgate doctor`.
REPORT_FILE: Final = "definitions.json"


class FolderOutcome(enum.StrEnum):
    """What loading a definition of the folder came to."""

    NEW = "new"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    # The file replaced a definition that was last changed over the API.
    REPLACED = "replaced"
    # The file is unchanged since it was last loaded, and the definition was changed over the API after that.
    KEPT = "kept"
    # As KEPT, and the API deleted it.
    KEPT_DELETED = "kept-deleted"
    FAILED = "failed"

    @property
    def is_kept(self) -> bool:
        """Whether the definition in force is not that of the folder."""
        return self in (FolderOutcome.KEPT, FolderOutcome.KEPT_DELETED)


class FolderDefinition(Struct, frozen=True, kw_only=True):
    """One definition of the folder: its file, the digest of its text, and what loading it came to."""

    pipeline_id: str
    file: str
    sha256: str
    outcome: FolderOutcome
    # The version in force; 0: none.
    version: int = 0
    detail: str = ""


class ProbeOutcome(enum.StrEnum):
    """What loading the folder changed of a probe."""

    NEW = "new"
    CHANGED = "changed"
    REMOVED = "removed"


class FolderProbe(Struct, frozen=True, kw_only=True):
    """A probe that the last load changed."""

    probe_id: str
    file: str
    outcome: ProbeOutcome


class FolderCheck(Struct, frozen=True, kw_only=True):
    """A check that the last load changed. The outcomes are those of probes."""

    dataset_urn: str
    check_id: str
    file: str
    outcome: ProbeOutcome


class FolderReport(Struct, frozen=True, kw_only=True):
    """The result of loading the project folder. A definition with a problem is left as it is in force."""

    folder: str
    at: str
    definitions: tuple[FolderDefinition, ...] = ()
    problems: tuple[str, ...] = ()
    # Of definitions in force: datasets of rules that are not registered.
    warnings: tuple[str, ...] = ()
    # Pipelines in force that were loaded from a file which no longer defines them.
    gone: tuple[str, ...] = ()
    # The probes that this load changed.
    probes: tuple[FolderProbe, ...] = ()
    # The checks that this load changed.
    checks: tuple[FolderCheck, ...] = ()

    def find(self, pipeline_id: str) -> FolderDefinition | None:
        """Return what the folder holds of a pipeline, or None."""
        return next((each for each in self.definitions if each.pipeline_id == pipeline_id), None)


class Project:
    """The archetypes and probes of the project and the last report. Thread-safe: each is replaced as a whole."""

    def __init__(self) -> None:
        # None: only the built-in ones.
        self.archetypes: Mapping[str, Archetype] | None = None
        # The ids of the probes; None: no folder was loaded.
        self.probes: Collection[str] | None = None
        self.report: FolderReport | None = None

    def record(self, archetypes: Mapping[str, Archetype] | None, probes: Collection[str], report: FolderReport) -> None:
        """Replace what is known of the folder."""
        self.archetypes = archetypes
        self.probes = probes
        self.report = report


def is_api_change(current: StoredPipeline) -> bool:
    """Whether the last change of a pipeline came over the API. The folder deletes nothing."""
    return current.deleted or current.source == API


def keeps_api_change(file_digest: str, current: StoredPipeline, loaded: StoredPipeline | None) -> bool:
    """Whether the definition in force stays as the API left it, against the file of the folder.

    `loaded` is the last version that was loaded from the folder; None: there is none.
    """
    if not is_api_change(current):
        return False
    if not current.deleted and current.source_digest == file_digest:
        # Both agree: the folder seals it.
        return False
    return loaded is not None and loaded.source_digest == file_digest


def first_from_folder(versions: Iterable[StoredPipeline]) -> StoredPipeline | None:
    """Return the latest version, of those given latest first, that was loaded from the folder."""
    return next((each for each in versions if not each.deleted and each.source not in ("", API)), None)
