"""What keeps real I/O, threads and clocks out of workflow code: a watch while it runs, and a look at its source.

The watch is an audit hook of the interpreter, so it sees files, sockets, processes and threads whoever opens them.
It does not see clocks, random numbers and the environment, which the source check finds where they are
written plainly. Neither is a sandbox against malice: both are there to catch a mistake early and by name.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from threading import get_ident
from types import BuiltinFunctionType, CellType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, Final, TypeVar

from headgate.errors import WorkflowViolationError

_IN_ACTIVITY: Final = "call it in an activity and await that"
_THREADS: Final = "workflow code is a single thread: use asyncio.gather() over activities"

# By event, else by the part of its name before the first dot.
_REFUSED: Final = {
    "_thread.start_new_thread": _THREADS,
    "builtins.input": "use hg.wait_signal()",
    "os.putenv": "pass settings as input",
    "os.unsetenv": "pass settings as input",
    "time.sleep": "use `await hg.sleep()`",
} | dict.fromkeys(
    (
        *("open", "os", "shutil", "tempfile", "glob", "pathlib", "fcntl", "mmap", "sqlite3"),
        *("subprocess", "pty", "socket", "urllib", "http", "webbrowser"),
        *("ftplib", "imaplib", "nntplib", "poplib", "smtplib", "telnetlib"),
    ),
    _IN_ACTIVITY,
)
# Events whose first argument is a path. Others may hold a command line, an address or a password.
_SHOWN: Final = frozenset({"open", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.scandir"})

# What runs below these modules is not the workflow's doing: imports, what shows an error, what logs, what
# debugs, what cleans up after something that was collected just now, and the rules of a time zone.
_TOLERATED: Final = frozenset(
    {
        *("_frozen_importlib", "_frozen_importlib_external", "importlib", "zipimport"),
        *("linecache", "logging", "pdb", "traceback", "warnings", "weakref", "zoneinfo"),
    }
)

T = TypeVar("T")

_installing: Final = threading.Lock()
_installed = False
# By thread: the labels of the workflow code it is in, the outermost first, and the first thing that code did wrong.
_running: Final[dict[int, tuple[str, ...]]] = {}
_violations: Final[dict[int, WorkflowViolationError]] = {}


def install() -> None:
    """Start to watch this process; from the second call on nothing happens. An audit hook cannot be taken out."""
    global _installed
    with _installing:
        if not _installed:
            sys.addaudithook(_on_event)
            if sys.version_info < (3, 12):
                _announce_threads()
            _installed = True


def enter(label: str) -> None:
    """Mark this thread as running workflow code, which `label` names in errors; forget an earlier violation.

    May be nested; each call needs its `leave`.
    """
    thread = get_ident()
    outer = _running.get(thread)
    if outer is None:
        _violations.pop(thread, None)
        _running[thread] = (label,)
    else:
        _running[thread] = (*outer, label)


def leave() -> None:
    """Take back the last `enter` of this thread."""
    thread = get_ident()
    outer = _running.pop(thread)[:-1]
    if outer:
        _running[thread] = outer


def lifted(work: Callable[[], T]) -> T:
    """Return what `work` returns, letting it do what workflow code must not. For values that are recorded."""
    thread = get_ident()
    labels = _running.pop(thread, None)
    try:
        return work()
    finally:
        if labels is not None:
            _running[thread] = labels


def violation() -> WorkflowViolationError | None:
    """Return the first thing that was refused in this thread since the outermost `enter`, even if it was caught."""
    return _violations.get(get_ident())


def _announce_threads() -> None:
    """Have `threading` raise the event that the interpreter itself raises from Python 3.12 on."""
    start: Callable[..., int] = vars(threading)["_start_new_thread"]

    def announced(function: Callable[..., object], args: tuple[object, ...]) -> int:
        sys.audit("_thread.start_new_thread", function, args, None)
        return start(function, args)

    vars(threading)["_start_new_thread"] = announced


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    # Most events come while no workflow code runs, and most others are of kinds that nobody minds.
    labels = _running.get(get_ident()) if _running else None
    if labels is None:
        return
    remedy = _REFUSED.get(event) or _REFUSED.get(event.partition(".")[0])
    if remedy is None or _is_tolerated(sys._getframe(1), event, arguments):
        return
    shown = f"({arguments[0]!r})" if event in _SHOWN and isinstance(arguments[0], str | bytes) else ""
    refused = WorkflowViolationError(f"{labels[-1]}: {event}{shown} is refused in workflow code; {remedy}")
    _violations.setdefault(get_ident(), refused)
    raise refused


def _is_tolerated(frame: FrameType | None, event: str, arguments: tuple[Any, ...]) -> bool:
    """Whether something is done on behalf of what the workflow cannot help, as far up as it was called from us."""
    if event == "open" and _is_time_zone(arguments):
        return True
    while frame is not None:
        root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if root in _TOLERATED or frame.f_code.co_name == "__del__":
            return True
        if root == "headgate" and frame.f_globals is not globals():
            return False
        frame = frame.f_back
    return False


def _is_time_zone(arguments: tuple[Any, ...]) -> bool:
    """Whether the rules of a time zone are read: the native `ZoneInfo` does that with no frame of its own."""
    path, mode = arguments[:2]
    zones = sys.modules.get("zoneinfo")
    if zones is None or mode not in ("r", "rb") or not isinstance(path, str):
        return False
    return any(path.startswith(f"{folder}/") for folder in zones.TZPATH)


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
    "builtins.open": _IN_ACTIVITY,
    "builtins.input": "use hg.wait_signal()",
    "asyncio.run": "await the coroutine",
    "asyncio.to_thread": _IN_ACTIVITY,
    "asyncio.as_completed": "its order is not the same twice; use asyncio.wait()",
    **dict.fromkeys(("asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell"), _IN_ACTIVITY),
    **dict.fromkeys(("asyncio.open_connection", "asyncio.start_server"), _IN_ACTIVITY),
}
# Of these modules any call counts, but not a mention: an annotation or an `except` does no harm.
_MODULES: Final = {
    **dict.fromkeys(("random", "secrets"), _DRAW),
    **dict.fromkeys(("threading", "_thread", "multiprocessing", "concurrent.futures"), _THREADS),
    **dict.fromkeys(
        ("requests", "httpx", "aiohttp", "urllib3", "urllib.request", "http.client", "boto3"), _IN_ACTIVITY
    ),
    "numpy.random": _DRAW,
    **dict.fromkeys(("socket", "subprocess", "sqlite3", "tempfile", "shutil"), _IN_ACTIVITY),
}
_HARMLESS: Final = frozenset({"secrets.compare_digest"})
# `random.choice` is a method of a hidden object, and `threading.Lock` a built-in function of another module.
_NATIVE: Final = (BuiltinFunctionType, MethodType)
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def check_source(function: Callable[..., object]) -> list[str]:
    """Return what workflow code does that a replay would not repeat, as sentences with the line and the remedy.

    Only the function itself is looked at, with the functions inside it, and only names that surely mean what is
    refused: those bound anywhere in the function are passed over. Without source there is nothing to say.
    """
    function = inspect.unwrap(function)
    found = _definition(function)
    if found is None:
        return []
    names = _Names(function, found)
    checker = _Checker(names, set(_side_effects(names, found)))
    for statement in found.body:
        checker.visit(statement)
    return [f"line {line}: {sentence}" for line, sentence in sorted(checker.findings)]


def _definition(function: Callable[..., object]) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Return the syntax tree of a function, with the line numbers of its file; None: there is no source."""
    try:
        lines, first_line = inspect.getsourcelines(function)
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
    """What the names in a function mean, as far as that is certain."""

    def __init__(self, function: Callable[..., object], definition: ast.AST) -> None:
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

    def meaning(self, node: ast.AST) -> str | None:
        """Return the full name of what `a.b.c` stands for, such as `datetime.datetime.now`; None: not known."""
        if isinstance(node, ast.Attribute):
            owner = self.meaning(node.value)
            return None if owner is None else f"{owner}.{node.attr}"
        if not isinstance(node, ast.Name) or node.id in self._bound:
            return None
        if node.id in self._imported:
            return self._imported[node.id]
        return _full_name(self._outer.get(node.id))


class _Checker(ast.NodeVisitor):
    """Collects what is refused. Annotations are not code that runs, and a side effect is what `side_effect` is for."""

    def __init__(self, names: _Names, side_effects: set[str]) -> None:
        self.findings: set[tuple[int, str]] = set()
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


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        # Not assigned yet.
        return None


def _full_name(found: object) -> str | None:
    """Return the name by which something is known to the tables above, or else by its definition."""
    if isinstance(found, ModuleType):
        return found.__name__
    known = _known_names().get(id(found))
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
