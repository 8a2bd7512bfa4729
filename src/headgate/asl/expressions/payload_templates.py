"""Templates: JSON in which a member whose name ends in `.$` gets its value from a path or an intrinsic function."""

from __future__ import annotations

from typing import Final

from headgate.asl.expressions.intrinsics import compile_intrinsic
from headgate.asl.expressions.jsonpath import ALLOWED, compile_path
from headgate.asl.expressions.scope import Evaluator, Json, Scope, constant

_SUFFIX: Final = ".$"


class TemplateError(ValueError):
    """A member of a template is not what a template may have. `path` is where: the names and places down to it."""

    def __init__(self, path: tuple[str | int, ...], fact: str) -> None:
        super().__init__(f"{'/'.join(map(str, path))}: {fact}")
        self.path = path
        self.fact = fact


def is_dynamic(value: Json) -> bool:
    """Whether anything in `value`, at any depth, is to be evaluated. What is not dynamic stands for itself."""
    if isinstance(value, dict):
        return any(name.endswith(_SUFFIX) or is_dynamic(member) for name, member in value.items())
    return isinstance(value, list) and any(map(is_dynamic, value))


def compile_template(value: Json) -> Evaluator:
    """Return the evaluator of a payload template: of Parameters, ResultSelector, ItemSelector, Assign and their like.

    Objects and lists may be nested as deep as one likes. A path in it that selects nothing fails the state with
    States.Runtime, and never gives null; one that can select many gives a list, which may be empty.

    Raises `TemplateError` when the value of a member `name.$` is neither a path nor a call of an intrinsic function,
    or when a member `name` stands beside it.
    """
    return _compiled(value, ())


def compile_dynamic(text: Json, field: str = "") -> Evaluator:
    """Return the evaluator of a path or of a call of an intrinsic function; `field` is named in errors of the path.

    Raises `ValueError`, with what is allowed, when `text` is neither.
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
    evaluators = tuple(_compiled(item, (*path, place)) for place, item in enumerate(items))
    return lambda scope: [evaluate(scope) for evaluate in evaluators]


def _compiled_object(members: dict[str, Json], path: tuple[str | int, ...]) -> Evaluator:
    # The members as written, so that their order stays; what is dynamic is put in its place on evaluation.
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
