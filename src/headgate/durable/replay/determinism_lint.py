"""Determinism lint: finds clocks, random numbers, I/O and unordered sets in workflow code, which replay cannot repeat.

It reports a mistake early and by name; code that it cannot resolve for certain passes.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import _lru_cache_wrapper, lru_cache
from pathlib import PurePath
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Final

from msgspec import Struct

from headgate.durable.replay.sandbox import IN_ACTIVITY, THREADS

# The lint reads at most this many functions for one workflow.
FUNCTIONS_MAX: Final = 200
# Packages whose functions the author of a workflow does not write.
_FOREIGN: Final = frozenset({"headgate", "builtins", ""})
_NOW: Final = "use hg.now()"
_DRAW: Final = "use hg.random()"
_SLEEP: Final = "use `await hg.sleep()`"
_UNORDERED: Final = "its order differs between processes; use a list, a dict, or sorted()"
_SETS: Final = frozenset({"builtins.set", "builtins.frozenset"})
_SETTINGS: Final = "it may differ when the code is replayed; pass it as input, or read it in an activity"

# Any mention of these in workflow code is reported.
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
# Calls into these modules are reported, mentions are not: an annotation or an `except` does no harm.
_MODULES: Final = {
    **dict.fromkeys(("random", "secrets"), _DRAW),
    **dict.fromkeys(("threading", "_thread", "multiprocessing", "concurrent.futures"), THREADS),
    **dict.fromkeys(("requests", "httpx", "aiohttp", "urllib3", "urllib.request", "http.client", "boto3"), IN_ACTIVITY),
    "numpy.random": _DRAW,
    **dict.fromkeys(("socket", "subprocess", "sqlite3", "tempfile", "shutil"), IN_ACTIVITY),
}
_HARMLESS: Final = frozenset({"secrets.compare_digest"})
# `random.choice` is a method of a private object, and `threading.Lock` a built-in function of another module.
_NATIVE: Final = (BuiltinFunctionType, MethodType)
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


class LintResult(Struct, frozen=True):
    """The findings of a lint, and whether every name was resolved: one may be defined later.

    `patches` are the names that the code passes to `patched` and `deprecate_patch` as literals. `has_sets` is whether
    the code makes a set or names the type, so that an order may differ between processes.
    """

    findings: list[str]
    is_whole: bool
    patches: list[str] = []
    has_sets: bool = False


def lint(function: Callable[..., object]) -> LintResult:
    """Check workflow code, and the functions of its own package that it names, for code that replay cannot repeat.

    Only names with a certain meaning are reported: those that a function binds itself are skipped. A function without
    source has no findings.
    """
    root = inspect.unwrap(function)
    findings: dict[tuple[int, str], None] = {}
    patches: set[str] = set()
    is_whole = True
    has_sets = False
    # The functions to check, with the line of the workflow that leads to each; None for the workflow itself.
    waiting: deque[tuple[Callable[..., object], int | None]] = deque([(root, None)])
    seen: set[object] = set()
    known = _known_names()
    while waiting and len(seen) < FUNCTIONS_MAX:
        current, from_line = waiting.popleft()
        definition = _definition(current)
        if definition is None or current.__code__ in seen:
            continue
        seen.add(current.__code__)
        names = _Names(current, definition, known)
        checker = _Checker(names, set(_side_effects(names, definition)))
        for statement in definition.body:
            checker.visit(statement)
        for line, sentence in sorted(checker.findings):
            place = "" if from_line is None else f"{_location(current)}:{line}: "
            findings[(from_line or line, f"{place}{sentence}")] = None
        patches |= checker.patches
        has_sets = has_sets or any(_is_set(each, names) for each in ast.walk(definition))
        is_whole = is_whole and not names.has_unknown
        followed = [(each, from_line or line) for line, each in checker.mentioned if _is_near(each, root)]
        waiting.extend(followed)
    sentences = [f"line {line}: {sentence}" for line, sentence in sorted(findings)]
    return LintResult(sentences, is_whole, sorted(patches), has_sets)


def _is_near(function: FunctionType, root: Callable[..., object]) -> bool:
    """Whether a function belongs to the same package as the workflow, so that its author can change it."""
    home = _package(root)
    return home == _package(function) and home not in _FOREIGN


def _package(function: Callable[..., object]) -> str:
    return str(getattr(function, "__module__", "")).partition(".")[0]


def _location(function: Callable[..., object]) -> str:
    code: CodeType = function.__code__
    return f"{code.co_name}() at {PurePath(code.co_filename).name}"


def _definition(function: Callable[..., object]) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Return the syntax tree of a function, with the line numbers of its file; None if there is no source."""
    code = getattr(function, "__code__", None)
    return _parsed(code) if isinstance(code, CodeType) else None


@lru_cache(maxsize=256)
def _parsed(code: CodeType) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    # Cached: the workflows of an app share helpers.
    try:
        lines, first_line = inspect.getsourcelines(code)
        # Not dedented, which would change multi-line strings: an indented definition is wrapped in a block.
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
    """Resolves the names in a function where that is certain. `known` has full names by identity."""

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
            # A name with two bindings is ambiguous.
            self._imported[name] = meaning if self._imported.get(name, meaning) == meaning else None
        self._bound = set(_bindings(definition))

        # Whether a name is undefined so far, such as that of a function further down in the module.
        self.has_unknown = False

    def meaning(self, node: ast.AST) -> str | None:
        """Return the full name of `a.b.c`, such as `datetime.datetime.now`; None if it is unknown."""
        if isinstance(node, ast.Attribute):
            owner = self.meaning(node.value)
            return None if owner is None else f"{owner}.{node.attr}"
        if not isinstance(node, ast.Name) or node.id in self._bound:
            return None
        if node.id in self._imported:
            return self._imported[node.id]
        return _full_name(self._outer.get(node.id), self._known)

    def function(self, node: ast.AST) -> FunctionType | None:
        """Return the plain function that `f`, `module.f`, `Class.f` or `object.f` refers to; None if it is unknown."""
        target = self._object(node)
        if isinstance(target, staticmethod | classmethod):
            target = target.__func__
        if isinstance(target, FunctionType | _lru_cache_wrapper):
            target = inspect.unwrap(target)
        return target if isinstance(target, FunctionType) else None

    def _object(self, node: ast.AST) -> object:
        """Return the object of a name, without calling user code such as `__getattr__`."""
        if isinstance(node, ast.Attribute):
            owner = self._object(node.value)
            if owner is None:
                return None
            if isinstance(owner, ModuleType):
                return vars(owner).get(node.attr)
            return inspect.getattr_static(owner if isinstance(owner, type) else type(owner), node.attr, None)
        if not isinstance(node, ast.Name) or node.id in self._bound:
            return None
        if node.id in self._imported:
            return _imported(self._imported[node.id])
        target = self._outer.get(node.id)
        self.has_unknown = self.has_unknown or (target is None and self._outer.get(node.id, self) is not None)
        return target


def _imported(meaning: str | None) -> object:
    """Return the object of an import inside of a function, if it is loaded."""
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
    """Yield the names that imports inside a function bind, with their full names; None if unknown."""
    for node in ast.walk(definition):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (root, root)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, None if node.level else f"{node.module}.{alias.name}"


def _bindings(definition: ast.AST) -> Iterator[str]:
    """Yield the names that a function binds other than by an import, at any depth."""
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
    """Collects findings. Annotations, and functions passed to `side_effect`, are skipped."""

    def __init__(self, names: _Names, side_effects: set[str]) -> None:
        self.findings: set[tuple[int, str]] = set()
        # Functions that are called here or passed on, with the line.
        self.mentioned: list[tuple[int, FunctionType]] = []
        self.patches: set[str] = set()
        self._names = names
        self._side_effects = side_effects

    def visit_Call(self, node: ast.Call) -> None:
        meaning = self._names.meaning(node.func) or ""
        if _is_of_headgate(meaning, "patched", "deprecate_patch"):
            self.patches.update(_texts([*node.args, *(each.value for each in node.keywords)]))
        if not _is_of_headgate(meaning, "side_effect"):
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

    def visit_For(self, node: ast.For) -> None:
        self._check_order(node.iter)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self._check_order(node.iter)
        self.generic_visit(node)

    def _check_order(self, iterated: ast.expr) -> None:
        if _is_text_set(iterated, self._names):
            self.findings.add((iterated.lineno, f"iteration over a set of strings: {_UNORDERED}"))

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


def _is_text_set(node: ast.expr, names: _Names) -> bool:
    """Whether an expression is certainly a set with strings, whose order differs between processes."""
    match node:
        case ast.Set(elts=members):
            return any(_is_text(each) for each in members)
        case ast.SetComp(elt=member):
            return _is_text(member)
        case ast.Call(func=function, args=[argument]) if names.meaning(function) in _SETS:
            members = argument.elts if isinstance(argument, ast.List | ast.Tuple | ast.Set) else []
            return _is_text(argument) or any(_is_text(each) for each in members)
        case _:
            return False


def _is_set(node: ast.AST, names: _Names) -> bool:
    """Whether a piece of code makes a set, or names the type."""
    return isinstance(node, ast.Set | ast.SetComp) or names.meaning(node) in _SETS


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_of_headgate(meaning: str, *names: str) -> bool:
    """Whether a full name is that of one of these functions, such as `headgate.patched`."""
    owner, _, name = meaning.rpartition(".")
    return name in names and owner.partition(".")[0] == "headgate"


def _texts(nodes: Iterable[ast.expr]) -> Iterator[str]:
    """Yield the values of string literals."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _side_effects(names: _Names, definition: ast.AST) -> Iterator[str]:
    """Yield the names of functions that are passed to `side_effect`, where such code is allowed."""
    for node in ast.walk(definition):
        if isinstance(node, ast.Call) and _is_of_headgate(names.meaning(node.func) or "", "side_effect"):
            yield from (argument.id for argument in node.args if isinstance(argument, ast.Name))


def _remedy_of_call(meaning: str, node: ast.Call) -> str | None:
    seeded = meaning == "random.Random" and (node.args or node.keywords)
    if seeded or meaning in _HARMLESS or _is_error(meaning):
        return None
    return next((remedy for module, remedy in _MODULES.items() if meaning.startswith(f"{module}.")), None)


def _is_error(meaning: str) -> bool:
    """Whether a name is that of an error class, which is harmless to instantiate."""
    module_name, _, name = meaning.rpartition(".")
    module = sys.modules.get(module_name)
    target = None if module is None else vars(module).get(name)
    return name.endswith("Error") if target is None else isinstance(target, type) and issubclass(target, BaseException)


def _full_name(target: object, names: Mapping[int, str]) -> str | None:
    """Return the full name of an object: from the tables above, or else by its definition."""
    if isinstance(target, ModuleType):
        return target.__name__
    known = names.get(id(target))
    if known is not None:
        return known
    if isinstance(target, type | FunctionType):
        return f"{target.__module__}.{target.__qualname__}"
    return None


def _known_names() -> dict[int, str]:
    """Return the full names of refused objects that do not have their own module, by identity."""
    known: dict[int, str] = {}
    for module_name in _MODULES.keys() & sys.modules.keys():
        module = vars(sys.modules[module_name])
        # Public names only: a module also has its own imports, such as `math.ceil`.
        members = {name: module[name] for name in module.get("__all__", ()) if name in module}
        known |= {id(each): f"{module_name}.{name}" for name, each in members.items() if isinstance(each, _NATIVE)}
    for full_name in _NAMES:
        module_name, _, name = full_name.partition(".")
        module = vars(sys.modules[module_name]) if module_name in sys.modules else {}
        if name in module:
            known[id(module[name])] = full_name
    return known
