"""Callback API: a job reports its end, or a heartbeat, with the token that was sent to it. It needs no API key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from msgspec import Meta, Struct

from headgate.auth.principals import CredentialKind, Principal
from headgate.pipelines.enums import FailureCategory, RunStatus
from headgate.pipelines.lifecycle.callback_reports import JobReport, ReportedStatus
from headgate.pipelines.service import PipelineService
from headgate.serve.http.operations import Answer, Call, NoQuery, Operation
from headgate.serve.http.problem import Problem

TOKEN_HEADER: Final = "headgate-callback-token"


class CallbackReport(Struct, forbid_unknown_fields=True, kw_only=True):
    """The state of a job: `running` is a heartbeat. For a failure, `category` tells whether a retry may help."""

    status: ReportedStatus
    reason: Annotated[str, Meta(max_length=4000, examples=["disk full"])] = ""
    category: FailureCategory | None = None

    @property
    def is_heartbeat(self) -> bool:
        """Whether it only says that the job is alive."""
        return self.status is ReportedStatus.RUNNING


class CallbackView(Struct, frozen=True, kw_only=True):
    """The run after the report. The lifecycle completes it in a moment."""

    run_id: str
    status: RunStatus


def callback_operations(pipelines: PipelineService) -> list[Operation]:
    """Return the operation that takes callbacks."""
    return [
        Operation(
            "POST", "/callbacks/{run_id}", "Report on a job by its callback token", _Callbacks(pipelines).report,
            {200: CallbackView, 401: Problem, 409: Problem},
            body=CallbackReport, admit=_Callbacks(pipelines).admit,
            description="No API key: the token authenticates, and is valid for its run alone. The first end counts. "
            "The same end again answers 200 and changes nothing; another one answers 409.",
            headers={TOKEN_HEADER: "The token that was sent with the request that started the job."},
        )
    ]  # fmt: skip


class _Callbacks:
    def __init__(self, pipelines: PipelineService) -> None:
        self._tokens = pipelines.callback_tokens
        self._reports = pipelines.callback_reports

    def admit(self, path: Mapping[str, str], headers: Mapping[str, str]) -> Principal:
        """Return the principal of the token. Raises `UnauthenticatedError`."""
        token = self._tokens.verify(path["run_id"], headers.get(TOKEN_HEADER, ""))
        return Principal(f"callback of {token.run_id}", frozenset(), kind=CredentialKind.TOKEN)

    def report(self, call: Call[CallbackReport, NoQuery]) -> Answer:
        token = self._tokens.verify(call.path["run_id"], call.headers.get(TOKEN_HEADER, ""))
        body = call.body
        report = JobReport(status=body.status, reason=body.reason, category=body.category)
        run = self._reports.apply(token, report)
        return Answer(CallbackView(run_id=run.run_id, status=run.status))
