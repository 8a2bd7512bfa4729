"""Command inputs: decoded from a JSON body, or from path, query, headers and body, and validated."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from types import UnionType
from typing import Any, Final, Literal, get_args, get_origin

import msgspec
import msgspec.inspect

from headgate import typed_decode
from headgate.durable.http.messages import BadInputError, HttpError, InputProblem, Request, from_json
from headgate.durable.http.paths import PathTemplate
from headgate.errors import DefinitionError

Source = Literal["path", "query", "header", "body"]
Params = Mapping[str, Source | tuple[Source, str]]

# Errors of evaluating an annotation with an unknown name, or one that means something else.
_HINT_ERRORS: Final = (NameError, AttributeError, TypeError, SyntaxError, ValueError, LookupError, ImportError)
_SOURCES: Final = frozenset(get_args(Source))
_BODILESS: Final = frozenset({"GET", "HEAD", "DELETE"})
_MANY: Final = (
    msgspec.inspect.CollectionType,
    msgspec.inspect.TupleType,
)
_OBJECTS: Final = (
    msgspec.inspect.StructType,
    msgspec.inspect.DataclassType,
    msgspec.inspect.TypedDictType,
)


class Field(msgspec.Struct, frozen=True):
    """One member of the JSON object that is the input. `takes_many` is True for a list."""

    name: str
    type: Any
    required: bool
    takes_many: bool


class Binding(msgspec.Struct, frozen=True):
    """The part of a request that has a field, and its name there."""

    field: Field
    source: Source
    sent_as: str


class Input:
    """The parameters of a command's handler, other than the request.

    One parameter is the input itself; several are an object by their names. `as_object` is the type that a
    REST mapping fills: the input, if that is an object, or else an object with the input under its name.
    """

    def __init__(self, name: str, parameters: Sequence[inspect.Parameter], hints: Mapping[str, Any]) -> None:
        """Create the input of the command `name` from its parameters and annotations."""
        types = {each.name: hints.get(each.name, Any) for each in parameters}
        self._optional = frozenset(each.name for each in parameters if each.default is not each.empty)
        self._only = parameters[0].name if len(parameters) == 1 else None
        by_name = _object_of(name, types, self._optional) if parameters else None
        self.type: Any = types[self._only] if self._only is not None else by_name
        self.is_empty = not parameters
        self._is_object = self._only is None or _is_open(self.type) or _fields_of(self.type) is not None
        self.as_object: Any = self.type if self._is_object else by_name
        self.fields: tuple[Field, ...] = (_fields_of(self.as_object) or ()) if parameters else ()
        self.is_open = self._only is not None and _is_open(self.type)

    @property
    def is_optional(self) -> bool:
        """Whether the input may be missing."""
        return not any(field.required for field in self.fields) if self._only is None else bool(self._optional)

    def decode(self, request: Request) -> dict[str, Any]:
        """Return the arguments from the JSON body. Raises `BadInputError`, and `HttpError` 415 for other bodies."""
        check_is_json(request)
        if not request.body.strip():
            if self.is_optional:
                return {}
            raise BadInputError([InputProblem("a JSON body is needed, and it is empty", "", "body")])
        if self.is_empty:
            if request.json() not in (None, {}):
                raise BadInputError([InputProblem("nothing is taken; send no body, or null", "", "body")])
            return {}
        try:
            return self._arguments(from_json(request.body, self.type))
        except msgspec.ValidationError as exc:
            problems = [] if self._only is not None and not self._is_object else self.problems(request.json())
            raise BadInputError(problems or [InputProblem.of(exc, "body")]) from exc

    def convert(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments from a complete object. Raises `msgspec.ValidationError`."""
        if self.is_empty:
            return {}
        value = typed_decode.convert(data, self.as_object, str_keys=True)
        return self._arguments(value) if self._is_object else _given(value)

    def problems(self, data: object) -> list[InputProblem]:
        """Return the problem of each invalid field of an object."""
        if not isinstance(data, dict):
            return []
        problems = []
        for field in self.fields:
            if field.name in data:
                problems += _misfit(field, data[field.name])
            elif field.required:
                problems.append(InputProblem("it is required, and missing", field.name, "body"))
        return problems

    def _arguments(self, value: Any) -> dict[str, Any]:  # noqa: ANN401 - of any type
        return _given(value) if self._only is None else {self._only: value}


class RestInput:
    """The mapping of the parts of a request to a command's input."""

    def __init__(self, whole: Input, method: str, template: PathTemplate, params: Params) -> None:
        """Raises `DefinitionError` if a parameter of the path or a name in `params` is not a field of the input."""
        self.input = whole
        self.default: Source = "query" if method in _BODILESS else "body"
        sources = {name: _source(name, source) for name, source in params.items()}
        in_path = {sent_as for source, sent_as in sources.values() if source == "path"}
        sources |= {name: ("path", name) for name in template.names if name not in in_path and name not in sources}
        fields = {field.name: field for field in whole.fields}
        if whole.is_open:
            fields |= {name: _open_field(name, whole.type) for name in sources}
        unknown = sorted(set(sources) - set(fields))
        if unknown:
            known = ", ".join(fields) or "nothing"
            raise DefinitionError(f"path {template.text!r}: {unknown[0]!r} is not in the input, which has {known}")
        self.bindings = tuple(
            Binding(field, *sources.get(field.name, (self.default, field.name))) for field in fields.values()
        )
        self._check(method, template)

    def _check(self, method: str, template: PathTemplate) -> None:
        paths = [each.sent_as for each in self.bindings if each.source == "path"]
        if sorted(paths) != sorted(template.names):
            raise DefinitionError(f"path {template.text!r}: its parameters and those of params differ: {paths}")
        if self.uses_body and method in _BODILESS:
            raise DefinitionError(f"{method} {template.text}: such a request has no body; take it from the query")

    @property
    def uses_body(self) -> bool:
        """Whether any part of the input is in the body."""
        if self.input.is_open and self.default == "body":
            return True
        return any(each.source == "body" for each in self.bindings)

    def gather(self, request: Request) -> dict[str, Any]:
        """Return the arguments. Raises `BadInputError`, and `HttpError` 415 for a body that is not JSON."""
        data = self._body(request) if self.uses_body else {}
        problems = []
        for binding in self._outside_body(request):
            texts = _texts(request, binding)
            try:
                if texts:
                    data[binding.field.name] = _from_texts(binding.field, texts)
            except msgspec.ValidationError as exc:
                problems.append(InputProblem.of(exc, binding.source, binding.sent_as))
        if problems:
            known = {problem.key for problem in problems}
            others = [each for each in self._problems(data) if each.key not in known]
            raise BadInputError([*problems, *others])
        try:
            return self.input.convert(data)
        except msgspec.ValidationError as exc:
            raise BadInputError(self._problems(data) or [InputProblem.of(exc, self.default)]) from exc

    def _body(self, request: Request) -> dict[str, Any]:
        check_is_json(request)
        body: Any = request.json() if request.body.strip() else {}
        if not isinstance(body, dict):
            raise BadInputError([InputProblem("an object is expected", "", "body")])
        fields = {each.sent_as: each.field.name for each in self.bindings if each.source == "body"}
        # A field from another part of the request, or with another name, is ignored in the body.
        hidden = {each.field.name for each in self.bindings} - fields.keys()
        names: list[str] = [name for name in body if name not in hidden]
        return {fields.get(name, name): body[name] for name in names}

    def _outside_body(self, request: Request) -> list[Binding]:
        """Return the bindings outside of the body: an open input takes all arguments of the query."""
        bindings = [each for each in self.bindings if each.source != "body"]
        if self.input.is_open and self.default == "query":
            bound = {name for each in self.bindings for name in (each.field.name, each.sent_as)}
            others = [_open_field(name, self.input.type, len(request.query[name])) for name in request.query]
            bindings += [Binding(field, "query", field.name) for field in others if field.name not in bound]
        return bindings

    def _problems(self, data: object) -> list[InputProblem]:
        """Return the problems of the fields, under the names that the caller has sent."""
        places = {each.field.name: each for each in self.bindings}
        return [_placed(problem, places) for problem in self.input.problems(data)]


def parameters_of(handler: Callable[..., object], what: str) -> tuple[list[inspect.Parameter], dict[str, Any]]:
    """Return a handler's parameters and annotations. Raises `DefinitionError` if it cannot be called by name."""
    try:
        parameters = list(inspect.signature(handler).parameters.values())
    except (ValueError, TypeError) as exc:
        raise DefinitionError(f"{what}: its parameters cannot be seen; wrap it in a function of your own") from exc
    for each in parameters:
        if each.kind not in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
            raise DefinitionError(f"{what}: parameter {str(each)!r}: arguments are given by name; drop '/', * and **")
    try:
        return parameters, _read_annotations(handler)
    except _HINT_ERRORS as exc:
        raise DefinitionError(f"{what}: an annotation cannot be read: {exc}; import its type at the top level") from exc


def annotations_of(handler: Callable[..., object]) -> dict[str, Any]:
    """Return the annotations of a handler; none if one of them cannot be evaluated."""
    try:
        return _read_annotations(handler)
    except _HINT_ERRORS:
        return {}


def _read_annotations(handler: Callable[..., object]) -> dict[str, Any]:
    target: Any = inspect.unwrap(handler)
    while isinstance(target, partial):
        target = inspect.unwrap(target.func)
    target = target if inspect.isroutine(target) or isinstance(target, type) else type(target).__call__
    return typing.get_type_hints(target, include_extras=True)


def check_is_json(request: Request) -> None:
    """Raise `HttpError` 415 for a body with another content type than JSON."""
    sent = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.body and sent and sent != "application/json" and not sent.endswith("+json"):
        raise HttpError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"a body of {sent} is not understood; send application/json")


def _object_of(name: str, types: Mapping[str, Any], optional: frozenset[str]) -> type[msgspec.Struct]:
    fields = [
        (each, typing.Union[kind, msgspec.UnsetType], msgspec.UNSET) if each in optional else (each, kind)  # noqa: UP007
        for each, kind in types.items()
    ]
    # OpenAPI names the schema by this title, and by the module too if another has the same title.
    title = f"{re.sub(r'[^A-Za-z0-9]', '_', name)}_input"
    return msgspec.defstruct(title, fields, module=name, kw_only=True, forbid_unknown_fields=True)


def _given(value: msgspec.Struct) -> dict[str, Any]:
    members = {name: getattr(value, name) for name in value.__struct_fields__}
    return {name: member for name, member in members.items() if member is not msgspec.UNSET}


def _is_open(kind: Any) -> bool:  # noqa: ANN401 - an annotation
    return isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.DictType | msgspec.inspect.AnyType)


def _open_field(name: str, kind: Any, count: int = 1) -> Field:  # noqa: ANN401 - an annotation
    """Return a field of a dict, which has any members; one of any type may be repeated."""
    member_type = (get_args(kind) or (str, Any))[1]
    return Field(name, member_type, required=False, takes_many=count > 1 and member_type is Any)


def _fields_of(kind: Any) -> tuple[Field, ...] | None:  # noqa: ANN401 - an annotation
    """Return the fields of a type that is an object in JSON; None for others and for generic ones."""
    info = _without_none(msgspec.inspect.type_info(kind))
    if not isinstance(info, _OBJECTS) or get_origin(info.cls) is not None or getattr(info, "array_like", False):
        return None
    is_typed_dict = isinstance(info, msgspec.inspect.TypedDictType)
    hints = typing.get_type_hints(info.cls, include_extras=not is_typed_dict)
    return tuple(
        Field(
            each.encode_name,
            _without_unset(hints[each.name]),
            each.required,
            isinstance(_without_none(each.type), _MANY),
        )
        for each in info.fields
    )


def _without_unset(kind: Any) -> Any:  # noqa: ANN401 - an annotation
    if get_origin(kind) not in (typing.Union, UnionType) or msgspec.UnsetType not in get_args(kind):
        return kind
    return typing.Union[tuple(each for each in get_args(kind) if each is not msgspec.UnsetType)]  # noqa: UP007


def _without_none(info: msgspec.inspect.Type) -> msgspec.inspect.Type:
    if isinstance(info, msgspec.inspect.UnionType):
        members = [each for each in info.types if not isinstance(each, msgspec.inspect.NoneType)]
        return members[0] if len(members) == 1 else info
    return info


def _source(name: str, param: Source | tuple[Source, str]) -> tuple[Source, str]:
    source, sent_as = param if isinstance(param, tuple) else (param, name)
    if source not in _SOURCES or not sent_as:
        raise DefinitionError(
            f"params {name!r}: {param!r} is not one of {', '.join(sorted(_SOURCES))}, or one and a name"
        )
    return source, sent_as.replace("_", "-") if source == "header" and isinstance(param, str) else sent_as


def _texts(request: Request, binding: Binding) -> list[str]:
    match binding.source:
        case "path":
            return [request.path_params[binding.sent_as]]
        case "header" if binding.field.takes_many:
            return [each.strip() for value in request.headers.all(binding.sent_as) for each in value.split(",")]
        case "header":
            return [request.headers[binding.sent_as]] if binding.sent_as in request.headers else []
    return request.query.get(binding.sent_as, [])


def _from_texts(field: Field, texts: Sequence[str]) -> Any:  # noqa: ANN401 - the field decides
    if not field.takes_many and len(texts) > 1:
        raise msgspec.ValidationError(f"sent {len(texts)} times, and one is taken")
    value = typed_decode.convert(list(texts) if field.takes_many else texts[0], field.type, strict=False)
    # Converted to JSON types, so that the whole is validated as strictly as a body.
    return msgspec.to_builtins(value)


def _misfit(field: Field, value: object) -> list[InputProblem]:
    try:
        typed_decode.convert(value, field.type, str_keys=True)
    except msgspec.ValidationError as exc:
        return [InputProblem.of(exc, "body", field.name)]
    return []


def _placed(problem: InputProblem, places: Mapping[str, Binding]) -> InputProblem:
    name = next(
        (each for each in places if problem.key == each or problem.key.startswith((f"{each}.", f"{each}["))), None
    )
    if name is None:
        return problem
    return InputProblem(problem.message, places[name].sent_as + problem.key[len(name) :], places[name].source)
