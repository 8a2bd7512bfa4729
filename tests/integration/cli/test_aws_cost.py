"""headgate aws cost: units, months, prices of a file, and estimates that do not add up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headgate.cli.aws.aws import app
from headgate.cli.session import Session
from headgate.errors import InvalidPayloadError

ESTIMATES = Path(__file__).parents[3] / "docs" / "estimates"


def ran(*arguments: str, exit_code: int = 0) -> str:
    result = CliRunner().invoke(app, ["cost", *arguments], obj=Session({}), catch_exceptions=False)
    assert result.exit_code == exit_code, result.output
    return str(result.stdout)


def test_cost__without_a_file__prices_a_million_of_each_unit() -> None:
    shown = json.loads(ran("--json"))
    text = ran()

    (run,) = [each for each in shown["units"] if each["name"] == "run"]
    assert run["dollars"] == pytest.approx(sum(line["dollars"] for line in run["lines"]))
    assert f"{1e6 * run['dollars']:,.2f}" in text
    assert "prices of us-east-1 as of 2024-11" in text
    assert "a month of functions without any load: $1." in text


def test_cost__prices_that_were_not_checked_since__are_named(tmp_path: Path) -> None:
    named = "not checked since 2024-11: dynamodb_storage_gb, dynamodb_recovery_gb, s3_puts, s3_gets, s3_storage_gb"
    own = dict.fromkeys(("s3_puts", "s3_gets", "s3_storage_gb"), "dollars = 1.0")
    tables = "\n".join(f"[{item}]\n{price}" for item, price in own.items())
    (tmp_path / "prices.toml").write_text(f'as_of = "2026-11"\nregion = "us-east-1"\n{tables}\n')

    assert named in ran()
    assert named in ran("--show-prices")
    assert "2026-11: dynamodb_storage_gb, dynamodb_recovery_gb\n" in ran("--prices", str(tmp_path / "prices.toml"))


def test_cost__longer_functions__cost_more_by_their_gb_seconds() -> None:
    def of_step(*options: str) -> float:
        units = json.loads(ran("--json", *options))["units"]
        return float(next(each["dollars"] for each in units if each["name"] == "step"))

    # Four invocations of 900 ms more, each with half a GB.
    assert of_step("--function-ms", "1000") - of_step() == pytest.approx(4 * 0.9 * 0.5 * 0.0000166667)


def test_cost__month_with_prices_of_a_file__names_their_date_and_region(tmp_path: Path) -> None:
    (tmp_path / "load.toml").write_text("dynamodb_storage_gb = 100\n[a_second]\nsignal = 10\n")
    (tmp_path / "prices.toml").write_text(
        'as_of = "2026-01"\nregion = "eu-west-1"\n[dynamodb_storage_gb]\ndollars = 0.5\n'
    )

    answer = json.loads(ran(str(tmp_path / "load.toml"), "--prices", str(tmp_path / "prices.toml"), "--json"))

    assert (answer["as_of"], answer["region"]) == ("2026-01", "eu-west-1")
    assert {"unit": "storage", "item": "dynamodb_storage_gb", "quantity": 100.0, "price": 0.5, "dollars": 50.0} in (
        answer["lines"]
    )
    assert answer["total"] == pytest.approx(sum(line["dollars"] for line in answer["lines"]))


def test_cost__load_with_an_unknown_field__is_refused(tmp_path: Path) -> None:
    (tmp_path / "load.toml").write_text("runs = 10\n")

    with pytest.raises(InvalidPayloadError, match="runs"):
        ran(str(tmp_path / "load.toml"))


def doubts(name: str, exit_code: int = 1) -> dict[str, tuple[float, float]]:
    found = json.loads(ran(str(ESTIMATES / name), "--json", exit_code=exit_code))["doubts"]
    return {each["name"]: (each["stated"], round(each["computed"], 2)) for each in found}


def test_estimate__of_a_state_store__has_a_wrong_line_and_a_sixtieth_of_its_sum_as_total() -> None:
    assert doubts("state-store.toml") == {
        # At the lowest of the stated prices.
        "DatasetRegistry, 13 billion operations": (1000.0, 3250.0),
        "total": (3000.0, 181_460.0),
    }


def test_estimate__of_reserved_capacity__is_too_high_in_both_lines() -> None:
    # (2,000 x 0.00065 + 8,000 x 0.00013) x 730 x 0.65, and (100 x 0.00065 + 5,000 x 0.00013) x 730 x 0.60
    assert [value for _, value in sorted(doubts("reserved-capacity.toml").items())] == [
        (400.0, 313.17),
        (2500.0, 1110.33),
    ]


def test_estimate__of_a_survey_in_chunks__is_too_high() -> None:
    # 233 x 320 and 5,100 x 320 x 1.3 GB-seconds
    assert [value for _, value in sorted(doubts("chunked-survey.toml").items())] == [(40.0, 28.29), (2.0, 0.99)]


def test_estimate__of_the_price_of_a_step__adds_up() -> None:
    assert doubts("step-prices.toml", exit_code=0) == {}
