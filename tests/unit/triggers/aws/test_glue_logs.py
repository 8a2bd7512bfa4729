"""Whether a Glue run that is called a success failed after all: the three filters, and what each was too wide for."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.triggers.aws.glue_logs import GlueLogs, failure_reason, log4j_error
from headgate.triggers.contract import FailureCategory, JobState

INSIGHT = (
    '[Glue Exception Analysis] {"Event":"GlueExceptionAnalysisJobFailed","Timestamp":1700000000000,'
    '"Failure Reason":"AnalysisException: Path does not exist: s3://b/x","Last Executed Line number":17}'
)


@pytest.mark.parametrize(
    "line",
    [
        "26/03/03 07:00:01 ERROR ApplicationMaster: User application exited with status 1",
        "2026-03-03 07:00:01,123 ERROR [main] glue.ProcessLauncher (Logging.scala:77): Error from Python",
        "26/03/03 07:00:01 FATAL Executor: out of everything",
        "INFO first line\n26/03/03 07:00:01 ERROR ApplicationMaster: second line",
    ],
)
def test_log4j__error_of_the_driver__is_found(line: str) -> None:
    # bug 34: Glue says SUCCEEDED though Spark failed.
    assert log4j_error([line]) is not None


@pytest.mark.parametrize(
    "line",
    [
        # bug 34, second chapter: anything in the log counted as a failure.
        "26/03/03 07:00:01 INFO SparkContext: Running Spark version 3.3.0",
        "26/03/03 07:00:01 WARN TaskSetManager: Lost task 0.0 in stage 1.0",
        # bug 34, third chapter: "Error" is in the flags of every JVM, so that every run failed.
        "java -XX:OnOutOfMemoryError='kill -9 %p' -XX:+ExitOnOutOfMemoryError org.apache.spark.deploy",
        "26/03/03 07:00:01 INFO Client: command: java -XX:OnError=x  ERROR  handling on",
        # bug 34, fourth chapter: the word at a level's place, but not as the level.
        "26/03/03 07:00:01 INFO Checker: rows with ERROR in column status: 0",
        "the table has columns ID ERROR DATE",
        "| id | ERROR |",
        # What Spark has recovered from by itself.
        "26/03/03 07:00:01 ERROR ShutdownHookManager: Exception while deleting Spark temp dir",
        "26/03/03 07:00:01 ERROR YarnClusterScheduler: Lost executor 3 on 10.0.0.1: Container killed",
        "26/03/03 07:00:01 ERROR org.apache.spark.scheduler.AsyncEventQueue: Dropping event from queue",
        "",
    ],
)
def test_log4j__line_that_is_no_failure__is_passed_over(line: str) -> None:
    assert log4j_error([line]) is None


def test_insights__analysis_of_a_failure__gives_its_reason() -> None:
    # bug 34
    assert failure_reason(["something else", INSIGHT]) == "AnalysisException: Path does not exist: s3://b/x"
    assert failure_reason(['{"Event":"GlueExceptionAnalysisTaskFailed"}']) is None
    assert failure_reason(["GlueExceptionAnalysisJobFailed without more"]) == (
        "GlueExceptionAnalysisJobFailed without more"
    )


class Logs:
    """The one call of CloudWatch Logs that is used, over streams in memory, a page at a time."""

    def __init__(self, streams: dict[str, list[str]], *, leaks: bool = False, fails: Exception | None = None) -> None:
        self.streams = streams
        self.leaks = leaks
        self.fails = fails
        self.calls = 0

    def filter_log_events(self, *, logGroupName: str, logStreamNames: list[str], **options: Any) -> dict[str, Any]:
        from botocore.exceptions import ClientError

        self.calls += 1
        if self.fails is not None:
            raise self.fails
        missing = [name for name in logStreamNames if name not in self.streams]
        if missing:
            raise ClientError({"Error": {"Code": "ResourceNotFoundException", "Message": "no"}}, "FilterLogEvents")
        names = list(self.streams) if self.leaks else logStreamNames
        events = [{"logStreamName": name, "message": line} for name in names for line in self.streams[name]]
        at = int(options.get("nextToken", 0))
        more = {"nextToken": str(at + 1)} if at + 1 < len(events) else {}
        return {"events": events[at : at + 1], **more}


def test_verdict__error_on_a_later_page__is_found() -> None:
    lines = ["26/03/03 07:00:01 INFO a: b"] * 5 + ["26/03/03 07:00:02 ERROR Main: KeyError: 'id'"]

    polled = GlueLogs(Logs({"jr_1": lines})).verdict("jr_1", "g")

    assert (polled.state, polled.category) == (JobState.FAILED, FailureCategory.PERMANENT)
    assert "KeyError" in polled.reason


def test_verdict__errors_of_other_runs_and_of_executors__are_not_ours() -> None:
    # bug 34: only the streams of this run's driver count.
    error = ["26/03/03 07:00:02 ERROR Main: no"]
    streams = {"jr_1": [], "jr_2": error, "jr_1_g-0": error, "jr_2-job-insights-rca-driver": [INSIGHT]}

    assert GlueLogs(Logs(streams, leaks=True)).verdict("jr_1", "g").state is JobState.SUCCEEDED


def test_verdict__logs_that_do_not_exist__believes_glue() -> None:
    polled = GlueLogs(Logs({})).verdict("jr_1", "g")

    assert (polled.state, polled.reason) == (JobState.SUCCEEDED, "")


def test_verdict__logs_that_cannot_be_read__believes_glue_and_says_so() -> None:
    from botocore.exceptions import ClientError

    denied = ClientError({"Error": {"Code": "AccessDeniedException", "Message": "no"}}, "FilterLogEvents")

    polled = GlueLogs(Logs({}, fails=denied)).verdict("jr_1", "g")

    assert polled.state is JobState.SUCCEEDED
    assert "could not be read" in polled.reason


def test_verdict__endless_log__is_read_to_a_bound() -> None:
    logs = Logs({"jr_1": ["26/03/03 07:00:01 INFO a: ERROR b"] * 1000})

    assert GlueLogs(logs).verdict("jr_1", "g").state is JobState.SUCCEEDED
    assert logs.calls <= 1 + 2 * 20
