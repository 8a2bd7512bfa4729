"""Mock configuration: the recorded answers of Step Functions Local, in the format of its MockConfigFile.json.

A test case names a mocked response for some states of a machine; a mocked response has an answer for each call of the
state, by its number: "0", "1-2".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from headgate.asl.errors import StateError, runtime_error
from headgate.asl.expressions.scope import Json
from headgate.errors import DefinitionError, NotFoundError

_CALLS: Final = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")
_MACHINES: Final = "StateMachines"
_CASES: Final = "TestCases"
_RESPONSES: Final = "MockedResponses"
_FIELDS: Final = (_MACHINES, _RESPONSES)


class MockedAnswer(Struct, frozen=True):
    """The answer to the calls from `first` to `last`: a result, or an error."""

    first: int
    last: int
    result: Json = None
    error: str | None = None
    cause: str = ""

    def outcome(self) -> Json:
        """Return the result. Raises `StateError` if the answer is an error."""
        if self.error is not None:
            raise StateError(self.error, self.cause)
        return self.result


class MockConfig(Struct, frozen=True):
    """The test cases of machines, and the answers that they name."""

    # Mocked response by machine, test case and state.
    cases: dict[str, dict[str, dict[str, str]]] = {}
    responses: dict[str, tuple[MockedAnswer, ...]] = {}

    def check_case(self, machine: str, case: str) -> None:
        """Raise `NotFoundError` if a machine has no such test case."""
        if case not in self.cases.get(machine, {}):
            known = ", ".join(sorted(self.cases.get(machine, {}))) or "none"
            raise NotFoundError(f"test case {case[:80]!r}: machine {machine} has no such test case; there is {known}")

    def answer(self, machine: str, case: str, state: str, call: int) -> MockedAnswer | None:
        """Return the answer to a call of a state, counted from 0; None: the test case does not mock the state.

        Raises `StateError` if the mocked response has no answer to this call.
        """
        name = self.cases.get(machine, {}).get(case, {}).get(state)
        if name is None:
            return None
        for each in self.responses[name]:
            if each.first <= call <= each.last:
                return each
        raise runtime_error(f"The mocked response {name!r} of the state '{state}' has no answer to call {call}")


def is_mock_config(document: Json) -> bool:
    """Whether a document has the form of a MockConfigFile."""
    return isinstance(document, dict) and _MACHINES in document


def read_mock_config(document: Json, source: str) -> MockConfig:
    """Parse a MockConfigFile. Raises `DefinitionError`, naming the field and what is allowed."""
    top = _object(document, source)
    for field in top:
        if field not in _FIELDS:
            raise DefinitionError(f"{source}: there is no field {field[:80]!r} here; write {' and '.join(_FIELDS)}")
    responses = {
        name: _answers(response, f"{source}: {_RESPONSES}.{name}")
        for name, response in _object(top.get(_RESPONSES, {}), f"{source}: {_RESPONSES}").items()
    }
    cases = {
        machine: _cases(body, f"{source}: {_MACHINES}.{machine}")
        for machine, body in _object(top[_MACHINES], f"{source}: {_MACHINES}").items()
    }
    for machine, of_machine in cases.items():
        for case, states in of_machine.items():
            for state, name in states.items():
                if name not in responses:
                    where = f"{source}: {_MACHINES}.{machine}.{_CASES}.{case}.{state}"
                    known = ", ".join(sorted(responses)) or "none"
                    raise DefinitionError(f"{where}: there is no mocked response {name[:80]!r}; there is {known}")
    return MockConfig(cases, responses)


def _cases(body: Json, where: str) -> dict[str, dict[str, str]]:
    found = _object(_object(body, where).get(_CASES, {}), f"{where}.{_CASES}")
    return {case: _names(states, f"{where}.{_CASES}.{case}") for case, states in found.items()}


def _names(states: Json, where: str) -> dict[str, str]:
    found = _object(states, where)
    for state, name in found.items():
        if not isinstance(name, str):
            raise DefinitionError(f"{where}.{state}: it must be the name of a mocked response")
    return {state: str(name) for state, name in found.items()}


def _answers(response: Json, where: str) -> tuple[MockedAnswer, ...]:
    answers = [_answer(calls, answer, where) for calls, answer in _object(response, where).items()]
    answers.sort(key=lambda each: each.first)
    expected = 0
    for each in answers:
        if each.first != expected:
            raise DefinitionError(f"{where}: calls are numbered from 0 without gaps; {expected} is missing or repeated")
        expected = each.last + 1
    return tuple(answers)


def _answer(calls: str, answer: Json, where: str) -> MockedAnswer:
    place = f"{where}.{calls[:20]}"
    number = _CALLS.fullmatch(calls)
    if number is None:
        raise DefinitionError(f'{place}: write the number of a call, or a range, such as "0" or "1-2"')
    first = int(number[1])
    last = first if number[2] is None else int(number[2])
    if last < first:
        raise DefinitionError(f"{place}: the range ends before it begins")
    match _object(answer, place):
        case {"Return": result, **rest} if not rest:
            return MockedAnswer(first, last, result)
        case {"Throw": {"Error": str() as error, **throw}, **rest} if not rest:
            return MockedAnswer(first, last, error=error, cause=str(throw.get("Cause", "")))
        case _:
            raise DefinitionError(f"{place}: write Return with a result, or Throw with Error and Cause")


def _object(value: Json, where: str) -> Mapping[str, Json]:
    if not isinstance(value, dict):
        raise DefinitionError(f"{where}: it must be an object")
    return value
