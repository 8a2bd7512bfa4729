"""The look at the source of workflow code: clocks, random numbers and I/O that a replay would not repeat.

It is there to catch a mistake early and by name; what it cannot see for certain it lets pass.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import _lru_cache_wrapper, lru_cache
from pathlib import PurePath
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Final

from msgspec import Struct

from headgate.durable.replay.sandbox import IN_ACTIVITY, THREADS

# So many functions are looked through for one workflow.
FUNCTIONS_MAX: Final = 200
# Packages whose functions are no business of a workflow's author.
_FOREIGN: Final = frozenset({"headgate", "builtins", ""})
_NOW: Final = "use hg.now()"
_DRAW: Final = "use hg.random()"
_SLEEP: Final = "use `await hg.sleep()`"
_SETTINGS: Final = "it may differ when the code is replayed; pass it as input, or read it in an activity"

# Whatever mentions one of these in workflow code will use it.
_NAMES: Final = {
    **{
        f"time.{name}{unit}": _NOW
        for name in ("time", "monotonic", "perf_counter", "process_time")
        for unit in ("", "_ns")
    },
    "time.sleep": _SLEEP,
    **dict.fromkeys(("datetime.datetime.now", "datetime.datetime.utcnow"), _NOW),
    **dict.fromkeys(("datetime.datetime.today", "datetime.date.today"), _NOW),
    **dict.fromkeys(("uuid.uuid1", "uuid.uuid4"), "use hg.uuid()"),
    **dict.fromkeys(("os.environ", "os.environb", "os.getenv", "os.getenvb", "os.getpid"), _SETTINGS),
    "os.urandom": _DRAW,
    "builtins.open": IN_ACTIVITY,
    "builtins.input": "use hg.wait_signal()",
    "asyncio.run": "await the coroutine",
    "asyncio.to_thread": IN_ACTIVITY,
    "asyncio.as_completed": "its order is not the same twice; use asyncio.wait()",
    **dict.fromkeys(("asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell"), IN_ACTIVITY),
    **dict.fromkeys(("asyncio.open_connection", "asyncio.start_server"), IN_ACTIVITY),
}
# Of these modules any call counts, but not a mention: an annotation or an `except` does no harm.
_MODULES: Final = {
    **dict.fromkeys(("random", "secrets"), _DRAW),
    **dict.fromkeys(("threading", "_thread", "multiprocessing", "concurrent.futures"), THREADS),
    **dict.fromkeys(("requests", "httpx", "aiohttp", "urllib3", "urllib.request", "http.client", "boto3"), IN_ACTIVITY),
    "numpy.random": _DRAW,
    **dict.fromkeys(("socket", "subprocess", "sqlite3", "tempfile", "shutil"), IN_ACTIVITY),
}
_HARMLESS: Final = frozenset({"secrets.compare_digest"})
# `random.choice` is a method of a hidden object, and `threading.Lock` a built-in function of another module.
_NATIVE: Final = (BuiltinFunctionType, MethodType)
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


class Looked(Struct, frozen=True):
    """What a look has found, and whether it could see everything: a name may be given its meaning later."""

    findings: list[str]
    is_whole: bool


def check_source(function: Callable[..., object]) -> list[str]:
    """Return what workflow code does that a replay would not repeat, as sentences with the line and the remedy."""
    return look_through(function).findings


def look_through(function: Callable[..., object]) -> Looked:
    """Look for what a replay would not repeat in workflow code, and in the functions of its own package that it names.

    Only names are found that surely mean what is refused: those bound anywhere in a function are passed over. Without
    source there is nothing to say.
    """
    root = inspect.unwrap(function)
    findings: dict[tuple[int, str], None] = {}
    is_whole = True
    # What is to be looked through, with the line of the workflow that leads there; None: the workflow itself.
    waiting: deque[tuple[Callable[..., object], int | None]] = deque([(root, None)])
    seen: set[object] = set()
    known = _known_names()
    while waiting and len(seen) < FUNCTIONS_MAX:
        current, from_line = waiting.popleft()
        found = _definition(current)
        if found is None or current.__code__ in seen:
            continue
        seen.add(current.__code__)
        names = _Names(current, found, known)
        checker = _Checker(names, set(_side_effects(names, found)))
        for statement in found.body:
            checker.visit(statement)
        for line, sentence in sorted(checker.findings):
            place = "" if from_line is None else f"{_called(current)}:{line}: "
            findings[(from_line or line, f"{place}{sentence}")] = None
        is_whole = is_whole and not names.has_unknown
        followed = [(each, from_line or line) for line, each in checker.mentioned if _is_near(each, root)]
        waiting.extend(followed)
    return Looked([f"line {line}: {sentence}" for line, sentence in sorted(findings)], is_whole)


def _is_near(function: FunctionType, root: Callable[..., object]) -> bool:
    """Whether a function belongs to the same package as the workflow: what it does is its author's to change."""
    home = _package(root)
    return home == _package(function) and home not in _FOREIGN


def _package(function: Callable[..., object]) -> str:
    return str(getattr(function, "__module__", "")).partition(".")[0]


def _called(function: Callable[..., object]) -> str:
    code: CodeType = function.__code__
    return f"{code.co_name}() at {PurePath(code.co_filename).name}"


def _definition(function: Callable[..., object]) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Return the syntax tree of a function, with the line numbers of its file; None: there is no source."""
    code = getattr(function, "__code__", None)
    return _parsed(code) if isinstance(code, CodeType) else None


@lru_cache(maxsize=256)
def _parsed(code: CodeType) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    # Kept for a while: the workflows of an app have helpers in common.
    try:
        lines, first_line = inspect.getsourcelines(code)
        # Not dedented, which would change text that spans lines: an indented definition gets a block to be in.
        nested = lines[0][:1].isspace()
        tree = ast.parse("".join(["if True:\n", *lines] if nested else lines))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    ast.increment_lineno(tree, first_line - (2 if nested else 1))
    statement = tree.body[0]
    if isinstance(statement, ast.If):
        statement = statement.body[0]
    return statement if isinstance(statement, _FUNCTIONS) else None


class _Names:
    """What the names in a function mean, as far as that is certain. `known` has full names by identity."""

    def __init__(self, function: Callable[..., object], definition: ast.AST, known: Mapping[int, str]) -> None:
        self._known = known
        code = getattr(function, "__code__", None)
        cells = getattr(function, "__closure__", None) or ()
        self._outer: dict[str, object] = {**vars(builtins), **getattr(function, "__globals__", {})}
        self._outer |= {
            name: _content(cell) for name, cell in zip(getattr(code, "co_freevars", ()), cells, strict=False)
        }
        self._imported: dict[str, str | None] = {}
        for name, meaning in _imports(definition):
            # One name for two things is not certain to be either.
            self._imported[name] = meaning if self._imported.get(name, meaning) == meaning else None
        self._bound = set(_bindings(definition))

        # Whether a name has no meaning yet, such as that of a function further down in the module.
        self.has_unknown = False

    def meaning(self, node: ast.AST) -> str | None:
        """Return the full name of what `a.b.c` stands for, such as `datetime.datetime.now`; None: not known."""
        if isinstance(node, ast.Attribute):
            owner = self.meaning(node.value)
            return None if owner is None else f"{owner}.{node.attr}"
        if not isinstance(node, ast.Name) or node.id in self._bound:
            return None
        if node.id in self._imported:
            return self._imported[node.id]
        return _full_name(self._outer.get(node.id), self._known)

    def function(self, node: ast.AST) -> FunctionType | None:
        """Return the plain function that `f`, `module.f`, `Class.f` or `thing.f` stands for; None: not known."""
        found = self._thing(node)
        if isinstance(found, staticmethod | classmethod):
            found = found.__func__
        if isinstance(found, FunctionType | _lru_cache_wrapper):
            found = inspect.unwrap(found)
        return found if isinstance(found, FunctionType) else None

    def _thing(self, node: ast.AST) -> object:
        """Return what a name stands for, without asking anything of the user's, which may run code."""
        if isinstance(node, ast.Attribute):
            owner = self._thing(node.value)
            if owner is None:
                return None
            if isinstance(owner, ModuleType):
                return vars(owner).get(node.attr)
            return inspect.getattr_static(owner if isinstance(owner, type) else type(owner), node.attr, None)
        if not isinstance(node, ast.Name) or node.id in self._bound:
            return None
        if node.id in self._imported:
            return _imported(self._imported[node.id])
        found = self._outer.get(node.id)
        self.has_unknown = self.has_unknown or (found is None and self._outer.get(node.id, self) is not None)
        return found


def _imported(meaning: str | None) -> object:
    """Return what an import inside of a function stands for, if that is loaded."""
    if meaning is None or meaning in sys.modules:
        return None if meaning is None else sys.modules[meaning]
    module_name, _, name = meaning.rpartition(".")
    module = sys.modules.get(module_name)
    return None if module is None else vars(module).get(name)


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        # Not assigned yet.
        return None


def _imports(definition: ast.AST) -> Iterator[tuple[str, str | None]]:
    """Yield the names that imports inside a function bind, with what they stand for; None: not known."""
    for node in ast.walk(definition):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (root, root)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, None if node.level else f"{node.module}.{alias.name}"


def _bindings(definition: ast.AST) -> Iterator[str]:
    """Yield the names that a function binds other than by an import, at any depth and in any way."""
    for node in ast.walk(definition):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name
            case ast.MatchMapping(rest=str(name)):
                yield name
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                yield from names


class _Checker(ast.NodeVisitor):
    """Collects what is refused. Annotations are not code that runs, and a side effect is what `side_effect` is for."""

    def __init__(self, names: _Names, side_effects: set[str]) -> None:
        self.findings: set[tuple[int, str]] = set()
        # Functions that are called here, or handed to someone who may call them, with the line.
        self.mentioned: list[tuple[int, FunctionType]] = []
        self._names = names
        self._side_effects = side_effects

    def visit_Call(self, node: ast.Call) -> None:
        meaning = self._names.meaning(node.func) or ""
        if not _is_side_effect(meaning):
            self._check(node, meaning, remedy=_remedy_of_call(meaning, node))
            self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._check_mention(node)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        self._check_mention(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_nested(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit_nested(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def _visit_nested(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in self._side_effects:
            return
        for part in (*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults), *node.body):
            self.visit(part)

    def _check_mention(self, node: ast.Attribute | ast.Name) -> None:
        function = self._names.function(node)
        if function is not None:
            self.mentioned.append((node.lineno, function))
        meaning = self._names.meaning(node) or ""
        self._check(node, meaning, remedy=_NAMES.get(meaning))

    def _check(self, node: ast.expr, meaning: str, *, remedy: str | None) -> None:
        if remedy is not None:
            call = "" if meaning.startswith("os.environ") else "()"
            self.findings.add((node.lineno, f"{meaning.removeprefix('builtins.')}{call}: {remedy}"))


def _is_side_effect(meaning: str) -> bool:
    return meaning.startswith("headgate.") and meaning.endswith(".side_effect")


def _side_effects(names: _Names, definition: ast.AST) -> Iterator[str]:
    """Yield the names of functions that are handed to `side_effect`, whose purpose is what we refuse elsewhere."""
    for node in ast.walk(definition):
        if isinstance(node, ast.Call) and _is_side_effect(names.meaning(node.func) or ""):
            yield from (argument.id for argument in node.args if isinstance(argument, ast.Name))


def _remedy_of_call(meaning: str, node: ast.Call) -> str | None:
    seeded = meaning == "random.Random" and (node.args or node.keywords)
    if seeded or meaning in _HARMLESS or _is_error(meaning):
        return None
    return next((remedy for module, remedy in _MODULES.items() if meaning.startswith(f"{module}.")), None)


def _is_error(meaning: str) -> bool:
    """Whether a name is that of an error class, to make which is harmless whatever module it is from."""
    module_name, _, name = meaning.rpartition(".")
    module = sys.modules.get(module_name)
    found = None if module is None else vars(module).get(name)
    return name.endswith("Error") if found is None else isinstance(found, type) and issubclass(found, BaseException)


def _full_name(found: object, names: Mapping[int, str]) -> str | None:
    """Return the name by which something is known to the tables above, or else by its definition."""
    if isinstance(found, ModuleType):
        return found.__name__
    known = names.get(id(found))
    if known is not None:
        return known
    if isinstance(found, type | FunctionType):
        return f"{found.__module__}.{found.__qualname__}"
    return None


def _known_names() -> dict[int, str]:
    """Return the full names of what is refused and does not itself know where it belongs, by identity."""
    known: dict[int, str] = {}
    for module_name in _MODULES.keys() & sys.modules.keys():
        module = vars(sys.modules[module_name])
        # Public ones only: a module also holds what it imports from elsewhere, such as `math.ceil`.
        members = {name: module[name] for name in module.get("__all__", ()) if name in module}
        known |= {id(each): f"{module_name}.{name}" for name, each in members.items() if isinstance(each, _NATIVE)}
    for full_name in _NAMES:
        module_name, _, name = full_name.partition(".")
        module = vars(sys.modules[module_name]) if module_name in sys.modules else {}
        if name in module:
            known[id(module[name])] = full_name
    return known
