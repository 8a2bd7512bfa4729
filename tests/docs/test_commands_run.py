"""Pages with commands in blocks: a test types them, or the page is listed with the reason why none does."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.test_commands_shown import PAGES, ROOT

# Of these pages `test_commands_shown.py` checks the spelling and options of every `headgate` command.
NOT_TYPED = {
    "CONTRIBUTING.md": "make targets that CI runs, and some that run for hours",
    "docs/how-to/back-up-and-restore.md": "folders of the machine; tests/acceptance/test_backup_restore.py runs them",
    "docs/how-to/check-data.md": "needs a warehouse; tests/acceptance/test_checks.py runs them on SQLite",
    "docs/how-to/connect-dbt-and-openlineage.md": "needs a dbt project; tests/acceptance/test_dbt.py runs it on one",
    "docs/how-to/dashboards.md": "needs Prometheus and Grafana; tests/soak runs the queries on a real Prometheus",
    "docs/how-to/deploy-new-code.md": "needs two builds; tests/acceptance/test_rolling_deploys.py runs them",
    "docs/how-to/deploy-to-aws.md": "needs an AWS account; tests/contract/test_aws_deployment.py uses an emulator",
    "docs/how-to/observe-executions.md": "own executions; tests/acceptance/test_worker_watched.py runs them",
    "docs/how-to/operate-on-aws.md": "needs an AWS account",
    "docs/how-to/probe-data.md": "needs a database; tests/acceptance/test_probes.py runs it",
    "docs/how-to/repair-executions.md": "failed executions; tests/acceptance/test_repair.py runs them",
    "docs/how-to/run-commands.md": "a pipeline of the reader; tests/acceptance/test_command_jobs.py runs one",
    "docs/how-to/run-in-containers.md": "needs a container runtime",
    "docs/how-to/run-on-aws.md": "needs an AWS account; tests/contract/test_dynamodb_tables.py uses an emulator",
    "docs/how-to/run-workflows-on-aws.md": "needs an AWS account; tests/contract/test_aws_workflows.py emulates it",
    "docs/how-to/sign-in.md": "tests/acceptance/test_sign_in_browser.py signs in with keys that it issues",
    "docs/how-to/size-the-server.md": "tests/acceptance/test_serving_processes.py runs it",
    "docs/how-to/use-the-command-line.md": "shell completion; tests/acceptance/test_completion.py drives it",
    "docs/operations/install.md": "needs root and systemd; tests/docs/test_operations.py verifies the unit",
}
_TYPED_BY = ("docs", "acceptance", "soak", "scenarios", "integration")
_COMMANDS = re.compile(
    r"^```(?:console|bash|sh)?\n(?:(?!^```).*\n)*?(?:\$ )?(?:headgate|make|curl|docker|pip|python3?) ", re.MULTILINE
)


def _is_typed(page: Path, tests: str) -> bool:
    """Whether a test reads the page by its name."""
    return f'"{page.name}"' in tests or f"{page.stem}.md" in tests or f'"{page.stem}"' in tests


def test_pages__with_commands__are_typed_by_a_test_or_listed_with_the_reason() -> None:
    tests = "\n".join(
        path.read_text()
        for folder in _TYPED_BY
        for path in (ROOT / "tests" / folder).rglob("*.py")
        if path.name != Path(__file__).name
    )
    shown = {str(page.relative_to(ROOT)): page for page in PAGES if _COMMANDS.search(page.read_text())}
    missing = [name for name, page in shown.items() if name not in NOT_TYPED and not _is_typed(page, tests)]

    assert len(shown) > 25
    assert missing == []
    assert sorted(NOT_TYPED.keys() - shown.keys()) == []


def test_reasons__that_name_a_test__name_one_that_exists() -> None:
    named = [path for reason in NOT_TYPED.values() for path in re.findall(r"tests/[\w/]+\.py", reason)]

    assert len(named) > 10
    assert [path for path in named if not (ROOT / path).exists()] == []
