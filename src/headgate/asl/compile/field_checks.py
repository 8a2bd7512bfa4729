"""Field checks: each validates the value of one field and reports problems to its location."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final, TypeAlias

from headgate.asl.compile.problems import ProblemCode, SourceLocation, listed, nearest
from headgate.asl.compile.task_resources import check_action
from headgate.asl.expressions.choice_rules import CONNECTIVES, OPERATORS, compile_rule
from headgate.asl.expressions.formats import parse_timestamp
from headgate.asl.expressions.intrinsics import compile_intrinsic
from headgate.asl.expressions.jsonata import compile_expression, compile_jsonata, is_expression
from headgate.asl.expressions.jsonpath import compile_path, compile_reference
from headgate.asl.expressions.payload_templates import TemplateError, compile_template
from headgate.asl.expressions.scope import Json
from headgate.asl.model.substitution import replace_unresolved, unresolved

Check: TypeAlias = Callable[[SourceLocation, Json], None]

# The largest number of seconds or attempts that AWS accepts.
LARGEST: Final = 99_999_999
VARIABLE_NAME_LENGTH_MAX: Final = 80
_REFERENCE: Final = "a reference path such as $.result: names and list indexes only"
_RESERVED_VARIABLE: Final = "states"
_RULE_FIELDS: Final = frozenset({"Variable", *CONNECTIVES, *OPERATORS})


def kind_of(value: Json) -> str:
    """Return the JSON name of a value's type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"


def wrong_type(location: SourceLocation, value: Json, allowed: str) -> None:
    location.report(ProblemCode.WRONG_TYPE, f"it is {kind_of(value)}", f"write {allowed}")


def anything(location: SourceLocation, value: Json) -> None:
    """Accept every value."""


def text(location: SourceLocation, value: Json) -> None:
    if not isinstance(value, str):
        wrong_type(location, value, "a string")
    elif not value:
        location.report(ProblemCode.EMPTY, "it is an empty string", "write at least one character")


def boolean(location: SourceLocation, value: Json) -> None:
    if not isinstance(value, bool):
        wrong_type(location, value, "true or false")


def an_object(location: SourceLocation, value: Json) -> None:
    if not isinstance(value, dict):
        wrong_type(location, value, "an object")


def integer(low: int, high: int = LARGEST) -> Check:
    """Return a check for integers in an inclusive range."""

    def check(location: SourceLocation, value: Json) -> None:
        if not isinstance(value, int) or isinstance(value, bool):
            wrong_type(location, value, f"a whole number from {low} to {high}")
        elif not low <= value <= high:
            location.report(ProblemCode.OUT_OF_RANGE, f"it is {value}", f"write a whole number from {low} to {high}")

    return check


def number(low: float, high: float | None = None) -> Check:
    """Return a check for numbers in an inclusive range."""
    allowed = f"a number from {low:g} to {high:g}" if high is not None else f"a number of at least {low:g}"

    def check(location: SourceLocation, value: Json) -> None:
        if not isinstance(value, int | float) or isinstance(value, bool):
            wrong_type(location, value, allowed)
        elif value < low or (high is not None and value > high):
            location.report(ProblemCode.OUT_OF_RANGE, f"it is {value}", f"write {allowed}")

    return check


def one_of(*names: str) -> Check:
    """Return a check for one of these strings."""

    def check(location: SourceLocation, value: Json) -> None:
        if not isinstance(value, str):
            wrong_type(location, value, listed(names))
        elif value not in names:
            meant = nearest(value, names)
            hint = f"did you mean {meant}? " if meant else ""
            location.report(ProblemCode.UNKNOWN_VALUE, f"it is {value!r}", f"{hint}write {listed(names)}")

    return check


def or_expression(check: Check) -> Check:
    """Return a check that also accepts a JSONata string."""

    def either(location: SourceLocation, value: Json) -> None:
        if is_expression(value):
            expression(location, value)
        else:
            check(location, value)

    return either


def or_null(check: Check) -> Check:
    """Return a check that also accepts null."""

    def either(location: SourceLocation, value: Json) -> None:
        if value is not None:
            check(location, value)

    return either


def _compiles(
    location: SourceLocation, value: Json, compiler: Callable[[Json], object], code: ProblemCode, allowed: str
) -> None:
    try:
        compiler(value)
    except ValueError as error:
        _report_error(location, error, code, allowed)


def _report_error(location: SourceLocation, error: ValueError, code: ProblemCode, allowed: str) -> None:
    # A compiler's message may end with the allowed form, which is more specific than the field's.
    text = error.fact if isinstance(error, TemplateError) else str(error)
    fact, _, specific = text.partition(". Allowed: ")
    location.report(code, fact, f"write {specific}" if specific else allowed)


def path(location: SourceLocation, value: Json) -> None:
    if not isinstance(value, str):
        wrong_type(location, value, "a path such as $.orders[0].id")
    else:
        _compiles(
            location,
            value,
            compile_path,
            ProblemCode.BAD_PATH,
            "write a path such as $.orders[0].id, $$.State.Name or $name",
        )


def reference(location: SourceLocation, value: Json) -> None:
    """Check a reference path to write to."""
    if not isinstance(value, str):
        wrong_type(location, value, f"{_REFERENCE}; or null")
    else:
        _compiles(location, value, compile_reference, ProblemCode.BAD_REFERENCE_PATH, f"write {_REFERENCE}")


def single_path(location: SourceLocation, value: Json) -> None:
    """Check a definite path: on the input, the context object or a variable."""
    before = len(location.problems)
    path(location, value)
    if len(location.problems) == before:
        _selects_one(location, value)


def _selects_one(location: SourceLocation, value: Json) -> None:
    if not compile_path(value).is_reference:
        fact = f"{value!r} can select more than one value"
        location.report(ProblemCode.BAD_REFERENCE_PATH, fact, f"write {_REFERENCE}")


def path_or_intrinsic(location: SourceLocation, value: Json) -> None:
    """Check ErrorPath or CausePath: a path, or a call of an intrinsic function."""
    if isinstance(value, str) and value.startswith("States."):
        _compiles(
            location,
            value,
            compile_intrinsic,
            ProblemCode.BAD_PATH,
            "write a path or a call such as States.Format('{}', $.id)",
        )
    else:
        single_path(location, value)


def expression(location: SourceLocation, value: Json) -> None:
    """Check one JSONata string."""
    if not is_expression(value):
        wrong_type(location, value, "a JSONata string: {% … %}")
    else:
        _compiles(
            location, value, compile_expression, ProblemCode.BAD_JSONATA, "write a JSONata expression between {% and %}"
        )


def template(location: SourceLocation, value: Json) -> None:
    """Check a payload template of JSONPath: members whose names end in `.$` are paths or intrinsic functions."""
    allowed = 'write a path or an intrinsic function as the value of a member whose name ends in ".$"'
    _all_compile(location, value, compile_template, ProblemCode.BAD_TEMPLATE, allowed)


def jsonata(location: SourceLocation, value: Json) -> None:
    """Check any JSON value that may have JSONata strings in it."""
    allowed = "write a JSONata expression between {% and %}"
    _all_compile(location, value, compile_jsonata, ProblemCode.BAD_JSONATA, allowed)
    for place, fragment in _fragments(location, value):
        for text in fragment.values() if isinstance(fragment, dict) else (fragment,):
            if isinstance(text, str) and text.startswith("{%") != text.endswith("%}"):
                place.warn(ProblemCode.BAD_JSONATA, "it is text: an expression has both {% and %}", allowed)


def _all_compile(
    location: SourceLocation, value: Json, compiler: Callable[[Json], object], code: ProblemCode, allowed: str
) -> None:
    """Report each fragment that does not compile, or the whole value if every fragment compiles alone."""
    value = _without_placeholders(value)
    try:
        compiler(value)
    except ValueError as error:
        before = len(location.problems)
        for place, fragment in _fragments(location, value):
            _compiles(place, fragment, compiler, code, allowed)
        if len(location.problems) == before:
            _report_error(location, error, code, allowed)


def _without_placeholders(value: Json) -> Json:
    """Return a value with a word in place of each placeholder, which the validator reports once.

    A placeholder that is all of a path may stand for anything: such a member is left out.
    """
    if isinstance(value, str):
        return replace_unresolved(value, "placeholder")
    if isinstance(value, list):
        return [_without_placeholders(entry) for entry in value]
    if isinstance(value, dict):
        return {
            key: _without_placeholders(member)
            for key, member in value.items()
            if not (key.endswith(".$") and isinstance(member, str) and not replace_unresolved(member, "").strip())
        }
    return value


def _fragments(location: SourceLocation, value: Json) -> Iterator[tuple[SourceLocation, Json]]:
    """Yield the smallest parts that compile alone. A member keeps its name, whose suffix matters."""
    if isinstance(value, dict):
        for key, member in value.items():
            if isinstance(member, dict | list) and member:
                yield from _fragments(location.at(key), member)
            else:
                yield location.at(key), {key: member}
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _fragments(location.at(index), entry)
    else:
        yield location, value


def assignment(values: Check) -> Check:
    """Return a check for Assign: valid variable names, with values that `values` accepts."""

    def check(location: SourceLocation, value: Json) -> None:
        if not isinstance(value, dict):
            wrong_type(location, value, "an object of variables")
            return
        suffix = ".$" if values is template else ""
        for key in value:
            _check_variable(location.at(key), key.removesuffix(suffix) if suffix else key)
        values(location, value)

    return check


def _check_variable(location: SourceLocation, name: str) -> None:
    # A name starts with Unicode's ID_Start, which excludes the underscore that Python allows.
    is_name = name.isidentifier() and not name.startswith("_")
    if name == _RESERVED_VARIABLE:
        location.report(ProblemCode.BAD_VARIABLE, "the name states is reserved", "choose another name")
    elif not is_name or len(name) > VARIABLE_NAME_LENGTH_MAX:
        allowed = f"write a letter, then letters, digits or _, {VARIABLE_NAME_LENGTH_MAX} characters at most"
        location.report(ProblemCode.BAD_VARIABLE, f"{name!r} cannot name a variable", allowed)


def timestamp(location: SourceLocation, value: Json) -> None:
    allowed = "a timestamp such as 2030-03-14T01:59:00Z"
    if not isinstance(value, str):
        wrong_type(location, value, allowed)
    elif parse_timestamp(value) is None:
        location.report(ProblemCode.BAD_TIMESTAMP, f"{value!r} is not a timestamp by RFC 3339", f"write {allowed}")


def rule(location: SourceLocation, value: Json) -> None:
    """Check one rule of a JSONPath Choice; reports at the innermost invalid rule."""
    allowed = "write Variable with one comparison, or And, Or or Not with such rules"
    if not isinstance(value, dict):
        wrong_type(location, value, "an object")
        return
    before = len(location.problems)
    for key in value:
        if key not in _RULE_FIELDS and key != "Comment":
            unknown_field(location.at(key), key, _RULE_FIELDS)
    for operator in ("And", "Or"):
        if isinstance(value.get(operator), list):
            for index, part in enumerate(value[operator]):
                _nested_rule(location.at(operator, index), part)
    if isinstance(value.get("Not"), dict):
        _nested_rule(location.at("Not"), value["Not"])
    # A problem inside would be reported again for the whole rule.
    if len(location.problems) == before:
        _compiles(location, value, compile_rule, ProblemCode.BAD_RULE, allowed)
    if len(location.problems) == before:
        _compares_single_values(location, value)


def _compares_single_values(location: SourceLocation, rule: Mapping[str, Json]) -> None:
    for key, operand in rule.items():
        if key == "Variable" or key.endswith("Path"):
            _selects_one(location.at(key), operand)


def _nested_rule(location: SourceLocation, value: Json) -> None:
    if isinstance(value, dict):
        for field in ("Next", "Assign", "Output"):
            if field in value:
                fact = f"{field} is in a nested rule"
                location.at(field).report(ProblemCode.UNKNOWN_FIELD, fact, "write it in the entry of Choices")
        value = {key: member for key, member in value.items() if key not in ("Next", "Assign", "Output")}
    rule(location, value)


def fields(location: SourceLocation, value: Json, known: Mapping[str, Check], required: tuple[str, ...] = ()) -> None:
    """Check an object against its known and required fields. Comment is always allowed."""
    if not isinstance(value, dict):
        wrong_type(location, value, "an object")
        return
    for key, member in value.items():
        if key in known:
            apply(location.at(key), member, known[key])
        elif key != "Comment":
            unknown_field(location.at(key), key, known)
    for key in required:
        if key not in value:
            location.report(ProblemCode.MISSING_FIELD, f"{key} is missing", f"write {key}")


def apply(location: SourceLocation, value: Json, check: Check) -> None:
    """Check a value unless it is a placeholder, which the validator reports once."""
    if not (isinstance(value, str) and unresolved(value)):
        check(location, value)


def unknown_field(location: SourceLocation, key: str, known: Collection[str]) -> None:
    meant = nearest(key, known)
    allowed = f"did you mean {meant}?" if meant else f"write one of {listed(sorted({*known, 'Comment'}))}"
    location.report(ProblemCode.UNKNOWN_FIELD, f"there is no field {key!r} here", allowed)


def action_of(*names: str) -> Check:
    """Return a check for the ARN of one of these actions."""

    def check(location: SourceLocation, value: Json) -> None:
        if not isinstance(value, str):
            wrong_type(location, value, listed([f"arn:aws:states:::{name}" for name in names]))
        else:
            check_action(location, value, names)

    return check


def exclusive(location: SourceLocation, value: Mapping[str, Json], *pair: str) -> None:
    """Report mutually exclusive fields that are both present."""
    present = [name for name in pair if name in value]
    if len(present) > 1:
        fact = f"{listed(present, 'and')} are {'both ' if len(present) == 2 else ''}given"
        location.report(ProblemCode.CONFLICTING_FIELDS, fact, f"write one of {listed(pair)}")
