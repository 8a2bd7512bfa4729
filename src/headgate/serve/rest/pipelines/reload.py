"""Reload API: load the project folder again, and show what the last load came to."""

from __future__ import annotations

from typing import Protocol

from headgate.errors import NotFoundError, SettingsError, UserError
from headgate.pipelines.catalog.project import FolderReport
from headgate.pipelines.service import PipelineService
from headgate.serve.http.operations import Answer, Call, NoQuery, Operation
from headgate.serve.http.problem import Problem
from headgate.serve.rest.pipelines.permissions import DEFINE, READ

_NO_FOLDER = "this server loads no folder; start it with 'headgate up --pipelines FOLDER'"


class ReloadableFolder(Protocol):
    """The project folder of the server."""

    def load(self, *, by: str) -> FolderReport:
        """Load every definition, and return what that came to. Raises `SettingsError` without the folder."""


def reload_operations(pipelines: PipelineService, folder: ReloadableFolder | None) -> list[Operation]:
    """Return the operations on the project folder. Without a `folder` they answer that there is none."""
    return _Reload(pipelines, folder).operations()


class _Reload:
    def __init__(self, pipelines: PipelineService, folder: ReloadableFolder | None) -> None:
        self._project = pipelines.project
        self._folder = folder

    def operations(self) -> list[Operation]:
        path = "/definition-folder"
        return [
            Operation(
                "GET", path, "Show the last load of the project folder", self.show,
                {200: FolderReport, 404: Problem}, rule=READ,
            ),
            Operation(
                "POST", f"{path}/reload", "Load the project folder again", self.reload,
                {200: FolderReport, 404: Problem}, rule=DEFINE,
            ),
        ]  # fmt: skip

    def show(self, call: Call[None, NoQuery]) -> Answer:
        del call
        report = self._project.report
        if report is None:
            raise NotFoundError(f"definition folder: {_NO_FOLDER}")
        return Answer(report)

    def reload(self, call: Call[None, NoQuery]) -> Answer:
        if self._folder is None:
            raise NotFoundError(f"definition folder: {_NO_FOLDER}")
        try:
            return Answer(self._folder.load(by=call.principal.name))
        except SettingsError as exc:
            raise UserError(exc.message) from exc
