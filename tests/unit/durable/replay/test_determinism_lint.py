"""The look at workflow source: plain functions of the same package that it calls are looked through as well."""

from __future__ import annotations

import inspect
import json
import logging
import random
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import headgate as hg
from headgate.durable.replay.determinism_lint import lint
from headgate.errors import DefinitionError
from tests.unit.durable import clock_helpers
from tests.unit.durable.clock_helpers import Pricing, cached, plain, pricing, stamp, stamped

_log = logging.getLogger(__name__)
STAMP_LINE = inspect.getsourcelines(stamp)[1] + 1
STAMP = f"stamp() at clock_helpers.py:{STAMP_LINE}: time.time(): use hg.now()"


def here() -> int:
    return random.randint(1, 6)


async def pauses() -> None:
    time.sleep(1)


def again(n: int) -> int:
    return again(n - 1) if n else here()


async def _by_name() -> object:
    return stamp()


async def _by_module() -> object:
    return clock_helpers.stamp()


async def _two_deep() -> object:
    return stamped("x")


async def _cached() -> object:
    return cached("x")


async def _method() -> object:
    return pricing.total(3)


async def _static() -> object:
    return Pricing.fixed(3)


async def _as_argument(names: list[str]) -> object:
    return sorted(names, key=stamped)


async def _local_import() -> object:
    from tests.unit.durable.clock_helpers import stamp as mark

    return mark()


@pytest.mark.parametrize(
    "function", [_by_name, _by_module, _two_deep, _cached, _method, _static, _as_argument, _local_import]
)
def test_lint__clock_in_a_helper__is_found_with_its_name_and_line(function: Callable[..., object]) -> None:
    (finding,) = lint(function).findings
    line, _, result = finding.partition(": ")
    first = inspect.getsourcelines(function)[1]
    assert first < int(line.removeprefix("line ")) <= first + 3
    assert result == STAMP


async def _mixed() -> object:
    await pauses()
    return here(), again(3), here()


def test_lint__helpers_of_the_same_file__are_found_once_each() -> None:
    findings = [finding.partition(": ")[2] for finding in lint(_mixed).findings]
    assert [finding.partition(" at ")[0] for finding in findings] == ["pauses()", "here()"]
    assert findings[0].endswith("time.sleep(): use `await hg.sleep()`")
    assert findings[1].endswith("random.randint(): use hg.random()")


async def _innocent(pricing: Any, stamp: Any) -> object:
    _log.info("logging and the standard library are not the user's code: %s", json.dumps({}))
    here_too = SimpleNamespace(here=1)
    made = hg.side_effect(here)
    return plain("x"), pricing.total(1), stamp(), here_too.here, made, hg.side_effect(lambda: clock_helpers.stamp())


def test_lint__helpers_that_are_not_meant_or_do_no_harm__are_passed_over() -> None:
    assert lint(_innocent).findings == []


def test_lint__very_many_helpers__is_bounded() -> None:
    source = "".join(f"def f{n}():\n    return f{n + 1}()\n" for n in range(1000))
    scope: dict[str, Any] = {"__name__": __name__}
    exec(compile(source + "async def w():\n    return f0()\n", __file__, "exec"), scope)
    assert isinstance(lint(scope["w"]).findings, list)


def test_workflow__that_calls_a_helper_with_a_clock__is_refused() -> None:
    app = hg.App("shop")
    with pytest.raises(DefinitionError, match=r"workflow _by_name cannot be replayed: line \d+: stamp\(\) at clock_he"):
        app.workflow(_by_name)
    assert app.workflow(check=False)(_by_name).name == "_by_name"


early = hg.App("early")


@early.workflow
async def calls_what_comes_later() -> object:
    return defined_later()


def defined_later() -> float:
    return time.monotonic()


@pytest.mark.integration
def test_workflow__that_calls_a_helper_defined_after_it__is_refused_when_work_begins() -> None:
    with (
        pytest.raises(DefinitionError, match=r"calls_what_comes_later cannot be replayed: .*defined_later\(\) at"),
        hg.testing.Environment(early),
    ):
        pass


# Sets of strings.


async def _over_a_display() -> list[str]:
    return [name for name in {"a", "b"}]  # noqa: C416


async def _over_names_made() -> None:
    for name in {f"n{number}" for number in range(3)}:
        hg.log(name)


async def _over_a_call() -> None:
    for name in frozenset(["a", "b"]):
        hg.log(name)


async def _over_numbers_and_sorted() -> None:
    for number in {1, 2}:
        hg.log(str(number))
    for name in sorted({"a", "b"}):
        hg.log(name)


@pytest.mark.parametrize("function", [_over_a_display, _over_names_made, _over_a_call])
def test_lint__iteration_over_a_set_of_strings__is_found_with_the_remedy(function: Callable[..., object]) -> None:
    (finding,) = lint(function).findings

    assert "iteration over a set of strings: its order differs between processes" in finding


def test_lint__sets_of_numbers_and_sorted_sets__pass() -> None:
    assert lint(_over_numbers_and_sorted).findings == []


def new_side() -> bool:
    return hg.patched("in-a-helper")


async def patching(name: str) -> None:
    if new_side() and hg.patched("twice") and hg.patched("twice"):
        hg.deprecate_patch(patch="gone")
    hg.patched(name)


def test_lint__code_with_patches__names_the_literal_ones_once() -> None:
    assert lint(patching).patches == ["gone", "in-a-helper", "twice"]
    assert lint(pauses).patches == []
