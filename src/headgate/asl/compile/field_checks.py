"""Checks: whether the value of one field is what the field takes. A check reports to the spot it is given."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final, TypeAlias

from headgate.asl.compile.problems import Code, Spot, listed, nearest
from headgate.asl.expressions.choice_rules import CONNECTIVES, OPERATORS, compile_rule
from headgate.asl.expressions.formats import parse_timestamp
from headgate.asl.expressions.intrinsics import compile_intrinsic
from headgate.asl.expressions.jsonata import compile_expression, compile_jsonata, is_expression
from headgate.asl.expressions.jsonpath import compile_path, compile_reference
from headgate.asl.expressions.payload_templates import TemplateError, compile_template
from headgate.asl.expressions.scope import Json
from headgate.asl.model.substitution import unresolved
from headgate.asl.tasks.actions import INVOKE, known_actions, normalized_call
from headgate.asl.tasks.resources import RESOURCES, Callee, TaskTarget, target_of

Check: TypeAlias = Callable[[Spot, Json], None]

# What AWS takes as a number of seconds or of attempts at most.
LARGEST: Final = 99_999_999
VARIABLE_NAME_LENGTH_MAX: Final = 80
_REFERENCE: Final = "a reference path such as $.result: members and places in lists, nothing that selects more than one"
_RESERVED_VARIABLE: Final = "states"
_RULE_FIELDS: Final = frozenset({"Variable", *CONNECTIVES, *OPERATORS})


def kind_of(value: Json) -> str:
    """Return what JSON calls a value of this type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"


def wrong_type(spot: Spot, value: Json, allowed: str) -> None:
    spot.report(Code.WRONG_TYPE, f"it is {kind_of(value)}", f"write {allowed}")


def anything(spot: Spot, value: Json) -> None:
    """Take every value."""


def text(spot: Spot, value: Json) -> None:
    if not isinstance(value, str):
        wrong_type(spot, value, "a string")
    elif not value:
        spot.report(Code.EMPTY, "it is an empty string", "write at least one character")


def boolean(spot: Spot, value: Json) -> None:
    if not isinstance(value, bool):
        wrong_type(spot, value, "true or false")


def an_object(spot: Spot, value: Json) -> None:
    if not isinstance(value, dict):
        wrong_type(spot, value, "an object")


def integer(low: int, high: int = LARGEST) -> Check:
    """Return a check for whole numbers in this range, ends included."""

    def check(spot: Spot, value: Json) -> None:
        if not isinstance(value, int) or isinstance(value, bool):
            wrong_type(spot, value, f"a whole number from {low} to {high}")
        elif not low <= value <= high:
            spot.report(Code.OUT_OF_RANGE, f"it is {value}", f"write a whole number from {low} to {high}")

    return check


def number(low: float, high: float | None = None) -> Check:
    """Return a check for numbers in this range, ends included."""
    allowed = f"a number from {low:g} to {high:g}" if high is not None else f"a number of at least {low:g}"

    def check(spot: Spot, value: Json) -> None:
        if not isinstance(value, int | float) or isinstance(value, bool):
            wrong_type(spot, value, allowed)
        elif value < low or (high is not None and value > high):
            spot.report(Code.OUT_OF_RANGE, f"it is {value}", f"write {allowed}")

    return check


def one_of(*names: str) -> Check:
    """Return a check for one of these words."""

    def check(spot: Spot, value: Json) -> None:
        if not isinstance(value, str):
            wrong_type(spot, value, listed(names))
        elif value not in names:
            meant = nearest(value, names)
            hint = f"did you mean {meant}? " if meant else ""
            spot.report(Code.UNKNOWN_VALUE, f"it is {value!r}", f"{hint}write {listed(names)}")

    return check


def or_expression(check: Check) -> Check:
    """Return the check, with a JSONata string taken in place of the value."""

    def either(spot: Spot, value: Json) -> None:
        if is_expression(value):
            expression(spot, value)
        else:
            check(spot, value)

    return either


def or_null(check: Check) -> Check:
    """Return the check, with null taken in place of the value."""

    def either(spot: Spot, value: Json) -> None:
        if value is not None:
            check(spot, value)

    return either


def _compiles(spot: Spot, value: Json, compiler: Callable[[Json], object], code: Code, allowed: str) -> None:
    try:
        compiler(value)
    except ValueError as error:
        _refused(spot, error, code, allowed)


def _refused(spot: Spot, error: ValueError, code: Code, allowed: str) -> None:
    # The compilers say what is allowed after the fact, where they can say it more exactly than the field can.
    text = error.fact if isinstance(error, TemplateError) else str(error)
    fact, _, exactly = text.partition(". Allowed: ")
    spot.report(code, fact, f"write {exactly}" if exactly else allowed)


def path(spot: Spot, value: Json) -> None:
    if not isinstance(value, str):
        wrong_type(spot, value, "a path such as $.orders[0].id")
    else:
        _compiles(
            spot, value, compile_path, Code.BAD_PATH, "write a path such as $.orders[0].id, $$.State.Name or $name"
        )


def reference(spot: Spot, value: Json) -> None:
    """Check a place to write to."""
    if not isinstance(value, str):
        wrong_type(spot, value, f"{_REFERENCE}; or null")
    else:
        _compiles(spot, value, compile_reference, Code.BAD_REFERENCE_PATH, f"write {_REFERENCE}")


def single_path(spot: Spot, value: Json) -> None:
    """Check a path that reads one value: of the input, of the context object or of a variable."""
    before = len(spot.found)
    path(spot, value)
    if len(spot.found) == before:
        _selects_one(spot, value)


def _selects_one(spot: Spot, value: Json) -> None:
    if not compile_path(value).is_reference:
        fact = f"{value!r} can select more than one value"
        spot.report(Code.BAD_REFERENCE_PATH, fact, f"write {_REFERENCE}")


def path_or_intrinsic(spot: Spot, value: Json) -> None:
    """Check what ErrorPath and CausePath take: a path, or a call of an intrinsic function."""
    if isinstance(value, str) and value.startswith("States."):
        _compiles(
            spot, value, compile_intrinsic, Code.BAD_PATH, "write a path or a call such as States.Format('{}', $.id)"
        )
    else:
        single_path(spot, value)


def expression(spot: Spot, value: Json) -> None:
    """Check one JSONata string."""
    if not is_expression(value):
        wrong_type(spot, value, "a JSONata string: {% … %}")
    else:
        _compiles(spot, value, compile_expression, Code.BAD_JSONATA, "write a JSONata expression between {% and %}")


def template(spot: Spot, value: Json) -> None:
    """Check a payload template of JSONPath: members whose names end in `.$` are paths or intrinsic functions."""
    allowed = 'write a path or an intrinsic function as the value of a member whose name ends in ".$"'
    _all_compile(spot, value, compile_template, Code.BAD_TEMPLATE, allowed)


def jsonata(spot: Spot, value: Json) -> None:
    """Check any JSON value that may have JSONata strings in it."""
    _all_compile(spot, value, compile_jsonata, Code.BAD_JSONATA, "write a JSONata expression between {% and %}")


def _all_compile(spot: Spot, value: Json, compiler: Callable[[Json], object], code: Code, allowed: str) -> None:
    """Report each member or entry that does not compile, or the whole where none of them is alone at fault."""
    try:
        compiler(value)
    except ValueError as error:
        before = len(spot.found)
        for place, fragment in _fragments(spot, value):
            _compiles(place, fragment, compiler, code, allowed)
        if len(spot.found) == before:
            _refused(spot, error, code, allowed)


def _fragments(spot: Spot, value: Json) -> Iterator[tuple[Spot, Json]]:
    """Yield the smallest pieces that can be compiled alone. A member is one with its name, which has a meaning."""
    if isinstance(value, dict):
        for key, member in value.items():
            if isinstance(member, dict | list) and member:
                yield from _fragments(spot.at(key), member)
            else:
                yield spot.at(key), {key: member}
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _fragments(spot.at(index), entry)
    else:
        yield spot, value


def assignment(values: Check) -> Check:
    """Return a check for Assign: names of variables, with values that `values` takes."""

    def check(spot: Spot, value: Json) -> None:
        if not isinstance(value, dict):
            wrong_type(spot, value, "an object of variables")
            return
        suffix = ".$" if values is template else ""
        for key in value:
            _check_variable(spot.at(key), key.removesuffix(suffix) if suffix else key)
        values(spot, value)

    return check


def _check_variable(spot: Spot, name: str) -> None:
    # Unicode's ID_Start, which a name begins with, has no underscore in it; Python's identifiers do.
    is_name = name.isidentifier() and not name.startswith("_")
    if name == _RESERVED_VARIABLE:
        spot.report(Code.BAD_VARIABLE, "the name states is reserved", "choose another name")
    elif not is_name or len(name) > VARIABLE_NAME_LENGTH_MAX:
        allowed = f"write a letter, then letters, digits or _, {VARIABLE_NAME_LENGTH_MAX} characters at most"
        spot.report(Code.BAD_VARIABLE, f"{name!r} cannot name a variable", allowed)


def timestamp(spot: Spot, value: Json) -> None:
    allowed = "a moment such as 2030-03-14T01:59:00Z"
    if not isinstance(value, str):
        wrong_type(spot, value, allowed)
    elif parse_timestamp(value) is None:
        spot.report(Code.BAD_TIMESTAMP, f"{value!r} is not a moment by RFC 3339", f"write {allowed}")


def rule(spot: Spot, value: Json) -> None:
    """Check one condition of a JSONPath Choice, at the innermost rule that is wrong."""
    allowed = "write Variable with one comparison, or And, Or or Not of such"
    if not isinstance(value, dict):
        wrong_type(spot, value, "an object")
        return
    before = len(spot.found)
    for key in value:
        if key not in _RULE_FIELDS and key != "Comment":
            unknown_field(spot.at(key), key, _RULE_FIELDS)
    for operator in ("And", "Or"):
        if isinstance(value.get(operator), list):
            for index, part in enumerate(value[operator]):
                _nested_rule(spot.at(operator, index), part)
    if isinstance(value.get("Not"), dict):
        _nested_rule(spot.at("Not"), value["Not"])
    # What is wrong inside would only be said again of the whole.
    if len(spot.found) == before:
        _compiles(spot, value, compile_rule, Code.BAD_RULE, allowed)
    if len(spot.found) == before:
        _compares_single_values(spot, value)


def _compares_single_values(spot: Spot, rule: Mapping[str, Json]) -> None:
    for key, operand in rule.items():
        if key == "Variable" or key.endswith("Path"):
            _selects_one(spot.at(key), operand)


def _nested_rule(spot: Spot, value: Json) -> None:
    if isinstance(value, dict):
        for field in ("Next", "Assign", "Output"):
            if field in value:
                fact = f"{field} stands in a rule inside another"
                spot.at(field).report(Code.UNKNOWN_FIELD, fact, "write it in the entry of Choices")
        value = {key: member for key, member in value.items() if key not in ("Next", "Assign", "Output")}
    rule(spot, value)


def fields(spot: Spot, value: Json, known: Mapping[str, Check], required: tuple[str, ...] = ()) -> None:
    """Check the members of an object against the fields it may have. Comment is always one of them."""
    if not isinstance(value, dict):
        wrong_type(spot, value, "an object")
        return
    for key, member in value.items():
        if key in known:
            apply(spot.at(key), member, known[key])
        elif key != "Comment":
            unknown_field(spot.at(key), key, known)
    for key in required:
        if key not in value:
            spot.report(Code.MISSING_FIELD, f"{key} is missing", f"write {key}")


def apply(spot: Spot, value: Json, check: Check) -> None:
    """Check a value, unless it is a placeholder: those are reported once, as what they are."""
    if not (isinstance(value, str) and unresolved(value)):
        check(spot, value)


def unknown_field(spot: Spot, key: str, known: Collection[str]) -> None:
    meant = nearest(key, known)
    allowed = f"did you mean {meant}?" if meant else f"write one of {listed(sorted({*known, 'Comment'}))}"
    spot.report(Code.UNKNOWN_FIELD, f"there is no field {key!r} here", allowed)


def resource(spot: Spot, value: Json) -> None:
    """Check what a Task calls."""
    if not isinstance(value, str):
        wrong_type(spot, value, "a string")
        return
    try:
        target = target_of(value)
    except ValueError as error:
        spot.report(Code.BAD_RESOURCE, str(error), f"write {RESOURCES}")
    else:
        _check_action(spot, target)


def _check_action(spot: Spot, target: TaskTarget) -> None:
    if target.callee is not Callee.SERVICE or (target.name, target.action) == INVOKE:
        return
    known = known_actions()
    service, action, _ = normalized_call(target.name, target.action)
    if action not in known.get(service, ()):
        near = {service: known[service]} if service in known else known
        names = [f"{name}:{each}" for name, actions in near.items() for each in actions]
        fact = f"no Task can call {target.name}:{target.action} here"
        allowed = f"write arn:aws:states::: with {listed(names)}, or call a function that does it"
        spot.report(Code.BAD_RESOURCE, fact, allowed)


def action_of(*names: str) -> Check:
    """Return a check for the ARN of one of these actions."""
    arns = [f"arn:aws:states:::{name}" for name in names]

    def check(spot: Spot, value: Json) -> None:
        if not isinstance(value, str):
            wrong_type(spot, value, listed(arns))
        elif not value.startswith("arn:aws") or not value.endswith(tuple(f":states:::{name}" for name in names)):
            spot.report(Code.BAD_RESOURCE, f"{value!r} cannot be called here", f"write {listed(arns)}")

    return check


def exclusive(spot: Spot, value: Mapping[str, Json], *pair: str) -> None:
    """Report fields that exclude each other and are there together."""
    given = [name for name in pair if name in value]
    if len(given) > 1:
        fact = f"{listed(given, 'and')} are both given" if len(given) == 2 else f"{listed(given, 'and')} are given"
        spot.report(Code.CONFLICTING_FIELDS, fact, f"write one of {listed(pair)}")
