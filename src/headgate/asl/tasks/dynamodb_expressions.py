"""DynamoDB expressions: parses condition, update and projection expressions into syntax trees."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

from msgspec import Struct

from headgate.errors import InvalidItemError

BYTES_MAX: Final = 4096
_DEPTH_MAX: Final = 50
_TOKEN: Final = re.compile(r"\s*(?:([#:]?[A-Za-z_][A-Za-z0-9_]*|[#:][A-Za-z0-9_]+)|(\d+)|(<>|<=|>=|[=<>+\-,().\[\]]))")
_COMPARISONS: Final = ("=", "<>", "<", "<=", ">", ">=")
_END: Final = ""
_T = TypeVar("_T")


class Path(Struct, frozen=True):
    """An attribute, or a path inside one."""

    name: str
    steps: tuple[str | int, ...] = ()

    def __str__(self) -> str:
        return self.name + "".join(f".{step}" if isinstance(step, str) else f"[{step}]" for step in self.steps)


class Value(Struct, frozen=True):
    """The value of a placeholder."""

    value: Any


class Size(Struct, frozen=True):
    """The size of the value at a path."""

    path: Path


Operand: TypeAlias = Path | Value | Size


class TestFunction(enum.StrEnum):
    """The boolean functions of a path."""

    EXISTS = "attribute_exists"
    LACKS = "attribute_not_exists"
    TYPE = "attribute_type"
    BEGINS = "begins_with"
    CONTAINS = "contains"


class Comparison(Struct, frozen=True):
    """A comparison of two operands."""

    operator: str
    left: Operand
    right: Operand


class Between(Struct, frozen=True):
    """An operand in an inclusive range."""

    operand: Operand
    low: Operand
    high: Operand


class In(Struct, frozen=True):
    """An operand that equals one of several choices."""

    operand: Operand
    choices: tuple[Operand, ...]


class FunctionTest(Struct, frozen=True):
    """A call of a boolean function."""

    test: TestFunction
    path: Path
    operand: Operand | None = None


class And(Struct, frozen=True):
    """A conjunction."""

    left: Condition
    right: Condition


class Or(Struct, frozen=True):
    """A disjunction."""

    left: Condition
    right: Condition


class Not(Struct, frozen=True):
    """A negation."""

    condition: Condition


Condition: TypeAlias = Comparison | Between | In | FunctionTest | And | Or | Not


class IfNotExists(Struct, frozen=True):
    """The value at a path, or a default."""

    path: Path
    otherwise: Term


class Sum(Struct, frozen=True):
    """A sum or difference of two terms."""

    left: Term
    right: Term
    is_difference: bool = False


Term: TypeAlias = Path | Value | IfNotExists | Sum


class ItemUpdate(Struct, frozen=True):
    """A parsed UpdateExpression: attributes to set, to add to and to remove."""

    set: dict[str, Term] = {}
    add: dict[str, Any] = {}
    remove: tuple[str, ...] = ()


class Placeholders:
    """ExpressionAttributeNames and -Values of one call. Each must be used."""

    def __init__(self, names: Mapping[str, str], values: Mapping[str, Any]) -> None:
        self._defined: dict[str, Any] = {**names, **values}
        self._used: set[str] = set()

    def resolve(self, placeholder: str) -> Any:  # noqa: ANN401 - a value of any type
        """Return the name or value of a placeholder. Raises `InvalidItemError`."""
        if placeholder not in self._defined:
            kind = "Names" if placeholder[0] == "#" else "Values"
            raise InvalidItemError(f"{placeholder}: it is not in ExpressionAttribute{kind}")
        self._used.add(placeholder)
        return self._defined[placeholder]

    def check_used(self) -> None:
        """Raise `InvalidItemError` for a placeholder that no expression uses."""
        unused = sorted(self._defined.keys() - self._used)
        if unused:
            raise InvalidItemError(f"{', '.join(unused)}: given and used in no expression")


def parse_condition(text: str, placeholders: Placeholders, what: str = "ConditionExpression") -> Condition:
    """Parse a condition. Raises `InvalidItemError` with the position."""
    return _Parser(text, placeholders, what).whole(_Parser.condition)


def parse_update(text: str, placeholders: Placeholders) -> ItemUpdate:
    """Parse an UpdateExpression. Raises `InvalidItemError`, also for unsupported operations."""
    return _Parser(text, placeholders, "UpdateExpression").whole(_Parser.change)


def parse_projection(text: str, placeholders: Placeholders) -> tuple[str, ...]:
    """Return the attributes of a ProjectionExpression. Raises `InvalidItemError`."""
    return _Parser(text, placeholders, "ProjectionExpression").whole(lambda parser: parser.several(parser.attribute))


class _Parser:
    """Recursive-descent parser of one expression."""

    def __init__(self, text: str, placeholders: Placeholders, what: str) -> None:
        self._what = what
        self._placeholders = placeholders
        self._depth = 0
        self._at = 0
        if not isinstance(text, str) or not text.strip():
            raise InvalidItemError(f"{what}: it must be text, and not empty")
        if len(text.encode()) > BYTES_MAX:
            raise InvalidItemError(f"{what}: {len(text.encode())} bytes; at most {BYTES_MAX}")
        self._tokens = self._split(text)

    def whole(self, read: Callable[[_Parser], _T]) -> _T:
        found = read(self)
        if self._next != _END:
            raise self._syntax_error("the end")
        return found

    # Conditions. Precedence: NOT before AND before OR.

    def condition(self) -> Condition:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise InvalidItemError(f"{self._what}: nested deeper than {_DEPTH_MAX} levels")
        found = self._all()
        while self._accept("OR"):
            found = Or(found, self._all())
        self._depth -= 1
        return found

    def _all(self) -> Condition:
        found = self._negated()
        while self._accept("AND"):
            found = And(found, self._negated())
        return found

    def _negated(self) -> Condition:
        negations = 0
        while self._accept("NOT"):
            negations += 1
        if self._accept("("):
            found = self.condition()
            self._expect(")")
        else:
            found = self._single()
        return Not(found) if negations % 2 else found

    def _single(self) -> Condition:
        if self._next in list(TestFunction):
            return self._tested(TestFunction(self._take()))
        operand = self._operand()
        if self._accept("BETWEEN"):
            low = self._operand()
            self._expect("AND")
            return Between(operand, low, self._operand())
        if self._accept("IN"):
            self._expect("(")
            choices = self.several(self._operand)
            self._expect(")")
            return In(operand, choices)
        if self._next not in _COMPARISONS:
            raise self._syntax_error("a comparison, BETWEEN or IN")
        return Comparison(self._take(), operand, self._operand())

    def _tested(self, test: TestFunction) -> Condition:
        self._expect("(")
        path = self._path()
        operand = None
        if test not in (TestFunction.EXISTS, TestFunction.LACKS):
            self._expect(",")
            operand = self._operand()
        self._expect(")")
        return FunctionTest(test, path, operand)

    def _operand(self) -> Operand:
        if self._next.startswith(":"):
            return Value(self._placeholders.resolve(self._take()))
        if self._next == "size" and self._tokens[self._at + 1 : self._at + 2] == ["("]:
            self._take()
            self._expect("(")
            path = self._path()
            self._expect(")")
            return Size(path)
        return self._path()

    # Updates.

    def change(self) -> ItemUpdate:
        sets: dict[str, Term] = {}
        adds: dict[str, Any] = {}
        removes: list[str] = []
        touched: list[str] = []
        sections: set[str] = set()
        while self._next != _END:
            section = self._take().upper()
            if section in sections:
                raise InvalidItemError(f"{self._what}: {section} is there twice; write it once")
            sections.add(section)
            match section:
                case "SET":
                    pairs = self.several(self._assignment)
                    sets = dict(pairs)
                    touched += [name for name, _ in pairs]
                case "ADD":
                    sums = self.several(self._addition)
                    adds = dict(sums)
                    touched += [name for name, _ in sums]
                case "REMOVE":
                    removes += self.several(self.attribute)
                    touched += removes
                case "DELETE":
                    raise InvalidItemError(f"{self._what}: DELETE, which takes from a set, is not supported here")
                case _:
                    self._at -= 1
                    raise self._syntax_error("SET, ADD or REMOVE")
        twice = sorted({name for name in touched if touched.count(name) > 1})
        if twice:
            raise InvalidItemError(f"{self._what}: two document paths overlap: {twice[0]}")
        return ItemUpdate(sets, adds, tuple(removes))

    def _assignment(self) -> tuple[str, Term]:
        name = self.attribute()
        self._expect("=")
        found = self._term()
        if self._next in ("+", "-"):
            is_difference = self._take() == "-"
            found = Sum(found, self._term(), is_difference)
        return name, found

    def _term(self) -> Term:
        if self._next == "list_append":
            raise InvalidItemError(
                f"{self._what}: list_append is not supported here, as the store cannot compare lists; read the item, "
                "make the list in the machine, and set it"
            )
        if self._next == "if_not_exists":
            self._take()
            self._expect("(")
            path = Path(self.attribute())
            self._expect(",")
            found = IfNotExists(path, self._term())
            self._expect(")")
            return found
        if self._next.startswith(":"):
            return Value(self._placeholders.resolve(self._take()))
        return Path(self.attribute())

    def _addition(self) -> tuple[str, Any]:
        name = self.attribute()
        if not self._next.startswith(":"):
            raise self._syntax_error("a value such as :n")
        value = self._placeholders.resolve(self._take())
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidItemError(f"{self._what}: ADD {name} takes a number; sets cannot be added to here")
        return name, value

    # Names.

    def attribute(self) -> str:
        """Parse a path that is a whole attribute."""
        path = self._path()
        if path.steps:
            raise InvalidItemError(
                f"{self._what}: {path} is within an attribute; only whole attributes can be named here"
            )
        return path.name

    def _path(self) -> Path:
        name = self._name()
        steps: list[str | int] = []
        while True:
            if self._accept("."):
                steps.append(self._name())
            elif self._accept("["):
                if not self._next.isdigit():
                    raise self._syntax_error("the number of an element")
                steps.append(int(self._take()))
                self._expect("]")
            else:
                return Path(name, tuple(steps))

    def _name(self) -> str:
        token = self._next
        if token.startswith("#"):
            return str(self._placeholders.resolve(self._take()))
        if not token or not (token[0].isalpha() or token[0] == "_"):
            raise self._syntax_error("the name of an attribute")
        return self._take()

    # Tokens.

    def several(self, read: Callable[[], _T]) -> tuple[_T, ...]:
        """Parse one or more elements separated by commas."""
        found = [read()]
        while self._accept(","):
            found.append(read())
        return tuple(found)

    @property
    def _next(self) -> str:
        return self._tokens[self._at]

    def _take(self) -> str:
        token = self._tokens[self._at]
        self._at += token != _END
        return token

    def _accept(self, token: str) -> bool:
        if self._next.upper() != token:
            return False
        self._at += 1
        return True

    def _expect(self, token: str) -> None:
        if not self._accept(token):
            raise self._syntax_error(repr(token))

    def _syntax_error(self, expected: str) -> InvalidItemError:
        found = repr(self._next) if self._next != _END else "the end"
        before = " ".join(self._tokens[max(0, self._at - 4) : self._at])
        return InvalidItemError(f"{self._what}: syntax error after {before!r}: found {found}, expected {expected}")

    def _split(self, text: str) -> list[str]:
        tokens: list[str] = []
        at, end = 0, len(text.rstrip())
        while at < end:
            found = _TOKEN.match(text, at)
            if found is None:
                raise InvalidItemError(f"{self._what}: {text[at : at + 20].strip()!r} is not understood")
            tokens.append(found[0].strip())
            at = found.end()
        return [*tokens, _END]
