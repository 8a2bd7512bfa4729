"""Payload templates: JSON in which the value of a member `name.$` is a path or a call of an intrinsic function."""

from __future__ import annotations

from typing import Final

from headgate.asl.expressions.intrinsics import compile_intrinsic
from headgate.asl.expressions.jsonpath import ALLOWED, compile_path
from headgate.asl.expressions.scope import Evaluator, Json, Scope, constant

_SUFFIX: Final = ".$"


class TemplateError(ValueError):
    """A member of a template is invalid. `path` holds the names and indexes that lead to it."""

    def __init__(self, path: tuple[str | int, ...], fact: str) -> None:
        super().__init__(f"{'/'.join(map(str, path))}: {fact}")
        self.path = path
        self.fact = fact


def is_dynamic(value: Json) -> bool:
    """Whether `value` contains, at any depth, a member to evaluate."""
    if isinstance(value, dict):
        return any(name.endswith(_SUFFIX) or is_dynamic(member) for name, member in value.items())
    return isinstance(value, list) and any(map(is_dynamic, value))


def compile_template(value: Json) -> Evaluator:
    """Compile a payload template, such as Parameters, ResultSelector, ItemSelector or Assign.

    A definite path that selects nothing fails the state with States.Runtime; an indefinite one returns a list, which
    may be empty. Raises `TemplateError` if the value of a member `name.$` is neither a path nor a call of an intrinsic
    function, or if a member `name` exists as well.
    """
    return _compiled(value, ())


def compile_dynamic(text: Json, field: str = "") -> Evaluator:
    """Compile a path or a call of an intrinsic function; errors of a path name `field`.

    Raises `ValueError` with the allowed forms if `text` is neither.
    """
    if isinstance(text, str) and text.startswith("$"):
        return compile_path(text, field)
    if isinstance(text, str) and text.startswith("States."):
        return compile_intrinsic(text)
    raise ValueError(
        f"{text!r} is neither a path nor a call of an intrinsic function. Allowed: {ALLOWED}; or a call such as "
        "States.Format('{}', $.name)"
    )


def _compiled(value: Json, path: tuple[str | int, ...]) -> Evaluator:
    if not is_dynamic(value):
        return constant(value)
    if isinstance(value, list):
        return _compiled_list(value, path)
    return _compiled_object(value, path)


def _compiled_list(items: list[Json], path: tuple[str | int, ...]) -> Evaluator:
    evaluators = tuple(_compiled(item, (*path, index)) for index, item in enumerate(items))
    return lambda scope: [evaluate(scope) for evaluate in evaluators]


def _compiled_object(members: dict[str, Json], path: tuple[str | int, ...]) -> Evaluator:
    # Keeps the order of the members; the evaluation replaces the dynamic ones.
    outline: dict[str, Json] = {}
    dynamic: list[tuple[str, Evaluator]] = []
    for name, member in members.items():
        plain, evaluator = _member(members, name, (*path, name))
        outline[plain] = member
        if evaluator is not None:
            dynamic.append((plain, evaluator))

    def evaluate(scope: Scope) -> Json:
        result = outline.copy()
        for name, evaluator in dynamic:
            result[name] = evaluator(scope)
        return result

    return evaluate


def _member(members: dict[str, Json], name: str, path: tuple[str | int, ...]) -> tuple[str, Evaluator | None]:
    member = members[name]
    if not name.endswith(_SUFFIX):
        return name, _compiled(member, path) if is_dynamic(member) else None
    plain = name.removesuffix(_SUFFIX)
    if plain in members:
        raise TemplateError(path, f"{plain!r} and {name!r} cannot both be given. Allowed: one of them")
    try:
        return plain, compile_dynamic(member, name)
    except ValueError as exc:
        raise TemplateError(path, str(exc)) from exc
