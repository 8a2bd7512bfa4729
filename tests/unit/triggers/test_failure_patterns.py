"""What the message of a failed job says about trying it again."""

from __future__ import annotations

import pytest

from headgate.pipelines import enums
from headgate.triggers.contract import FailureCategory, JobState, shown
from headgate.triggers.failure_patterns import category_of


@pytest.mark.parametrize(
    ("text", "category"),
    [
        # D27: faults of the code are distinguished.
        ("ModuleNotFoundError: No module named 'pandas'", FailureCategory.PERMANENT),
        ("KeyError: 'id'", FailureCategory.PERMANENT),
        ("AnalysisException: Path does not exist: s3://b/x", FailureCategory.PERMANENT),
        ("java.lang.NullPointerException", FailureCategory.PERMANENT),
        ("AccessDeniedException: User is not authorized to perform: s3:GetObject", FailureCategory.PERMANENT),
        ("Runtime.ImportModuleError: Unable to import module 'app'", FailureCategory.PERMANENT),
        ("Task timed out after 3.00 seconds", FailureCategory.TIMEOUT),
        ("Sandbox.Timedout", FailureCategory.TIMEOUT),
        ("ThrottlingException: Rate exceeded", FailureCategory.TRANSIENT),
        ("ExecutorLostFailure (executor 3 exited): KeyError was being handled", FailureCategory.TRANSIENT),
        ("java.lang.OutOfMemoryError: Java heap space", FailureCategory.TRANSIENT),
        ("the moon was full", FailureCategory.TRANSIENT),
        ("", FailureCategory.TRANSIENT),
    ],
)
def test_category__of_a_message__reports_bugs_from_losses(text: str, category: FailureCategory) -> None:
    assert category_of(text) is category


def test_shown__long_foreign_text_with_controls__is_cut_and_plain() -> None:
    # bug 82
    text = shown("a\x1b[31m\r\n\tb\u202e" + "x" * 10_000)

    assert text.startswith("a [31m b x")
    assert len(text) == 512
    assert text.isprintable()


def test_words__of_triggers_and_of_pipelines__are_the_same() -> None:
    assert {state.value for state in JobState} == {state.value for state in enums.JobState}
    assert {one.value for one in FailureCategory} == {one.value for one in enums.FailureCategory}
