"""Path templates such as `/orders/{id}` and `/files/{rest:path}`, and the search for the best match of a path.

Paths are split before they are decoded, so that an encoded slash is part of a value and not a separator.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import Enum
from http import HTTPStatus
from typing import Final, Generic, NamedTuple, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec

from headgate.durable.http.messages import HttpError
from headgate.errors import DefinitionError

T = TypeVar("T")

RPC: Final = "rpc"
_RESERVED: Final = frozenset({"api", "ui", "graphql", "metrics", "health", RPC})
# Connect serves a gRPC method at /package.Service/Method.
_RESERVED_PACKAGES: Final = ("observability.", "headgate.", "grpc.")
_PARAMETER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]{0,63})(:path)?\}")
_TEXT: Final = re.compile(r"[^\x00-\x20\x7f{}?#%\\/]+")
_DOTS: Final = frozenset({".", ".."})


class SegmentKind(Enum):
    """The kind of a segment of a template."""

    TEXT = "text"
    PARAMETER = "parameter"
    TAIL = "tail"


class Segment(NamedTuple):
    """The part between two slashes of a template: text, or the name of a parameter."""

    kind: SegmentKind
    text: str


class PathTemplate(msgspec.Struct, frozen=True):
    """A path with parameters as segments."""

    text: str
    segments: tuple[Segment, ...]

    @classmethod
    def parse(cls, text: str) -> PathTemplate:
        """Parse a template. Raises `DefinitionError` if it is not valid."""
        if not isinstance(text, str) or not text.startswith("/") or text == "/" or text.endswith("/"):
            raise DefinitionError(f"path {text!r}: begin it with a slash and a word, and do not end it with a slash")
        template = cls(text, tuple(_segment(text, each) for each in text[1:].split("/")))
        if any(each.kind is SegmentKind.TAIL for each in template.segments[:-1]):
            raise DefinitionError(f"path {text!r}: a parameter of kind path takes all the rest, so put it last")
        if len(set(template.names)) < len(template.names):
            raise DefinitionError(f"path {text!r}: two parameters have the same name")
        return template

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters, from left to right."""
        return tuple(each.text for each in self.segments if each.kind is not SegmentKind.TEXT)

    @property
    def documented(self) -> str:
        """The template in the form of OpenAPI, which has one kind of parameter."""
        return self.text.replace(":path}", "}")

    def check_not_reserved(self) -> None:
        """Raise `DefinitionError` if the path belongs to the server's own routes."""
        first = self.segments[0]
        if first.kind is SegmentKind.TEXT and is_reserved(first.text):
            raise DefinitionError(f"path {self.text!r}: /{first.text} is the server's own; begin it with another word")


def _segment(path: str, text: str) -> Segment:
    parameter = _PARAMETER.fullmatch(text)
    if parameter is not None:
        return Segment(SegmentKind.TAIL if parameter[2] else SegmentKind.PARAMETER, parameter[1])
    if not _TEXT.fullmatch(text) or text in _DOTS:
        raise DefinitionError(
            f"path {path!r}: {text!r} is neither plain text (not encoded, without spaces) nor a parameter; "
            "a parameter is {name}, or {name:path} for all the rest, and takes a whole segment"
        )
    return Segment(SegmentKind.TEXT, text)


def is_reserved(first_segment: str) -> bool:
    """Whether paths with this first segment belong to the server."""
    return first_segment in _RESERVED or first_segment.startswith(_RESERVED_PACKAGES)


def split_path(raw_path: str) -> list[str]:
    """Return the decoded segments of a raw path. A trailing slash is ignored.

    Raises `HttpError` 400 if it is not UTF-8.
    """
    raw = raw_path.removeprefix("/").removesuffix("/").split("/")
    try:
        return [unquote_to_bytes(each).decode() for each in raw]
    except UnicodeDecodeError as exc:
        raise HttpError(HTTPStatus.BAD_REQUEST, "the path is not UTF-8; encode it so", code="bad_path") from exc


class PathTree(Generic[T]):
    """Finds the values of the templates that match a path. Text wins over a parameter, and that over a tail."""

    def __init__(self) -> None:
        self._leaf: tuple[PathTemplate, T] | None = None
        self._texts: dict[str, PathTree[T]] = {}
        self._parameter: PathTree[T] | None = None
        self._tail: PathTree[T] | None = None

    def at(self, template: PathTemplate, new: T) -> T:
        """Return the value at a template; store and return `new` if there is none.

        Raises `DefinitionError` if the template has other parameter names than the stored one.
        """
        node = self
        for segment in template.segments:
            node = node._below(segment)
        if node._leaf is None:
            node._leaf = (template, new)
        known, value = node._leaf
        if known.names != template.names:
            raise DefinitionError(f"path {template.text!r}: its parameters have other names in {known.text!r}")
        return value

    def find(self, segments: Sequence[str]) -> Iterator[tuple[T, dict[str, str]]]:
        """Yield the value of every matching template, the best first, with its parameters."""
        for template, value, values in self._find(segments, ()):
            yield value, dict(zip(template.names, values, strict=True))

    def _below(self, segment: Segment) -> PathTree[T]:
        match segment.kind:
            case SegmentKind.TEXT:
                return self._texts.setdefault(segment.text, PathTree())
            case SegmentKind.PARAMETER:
                self._parameter = self._parameter or PathTree()
                return self._parameter
            case SegmentKind.TAIL:
                self._tail = self._tail or PathTree()
                return self._tail

    def _find(
        self, segments: Sequence[str], values: tuple[str, ...]
    ) -> Iterator[tuple[PathTemplate, T, tuple[str, ...]]]:
        if not segments:
            if self._leaf is not None:
                yield (*self._leaf, values)
            return
        first, *rest = segments
        if first in self._texts:
            yield from self._texts[first]._find(rest, values)
        if self._parameter is not None and _is_value(first):
            yield from self._parameter._find(rest, (*values, first))
        if self._tail is not None and self._tail._leaf is not None and _is_value("/".join(segments)):
            yield (*self._tail._leaf, (*values, "/".join(segments)))


def _is_value(text: str) -> bool:
    """Whether a parameter may have this value: `..` would lead a handler that opens files to other folders."""
    return text != "" and not _DOTS & set(re.split(r"[/\\]", text))
