"""Generates the API reference: a page for each public module, from its docstrings.

The site is built with these pages; they are not stored. Signatures and the docstrings below attributes come
from the sources: no running program can read these docstrings.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final

MODULES: Final = (
    "autoglm_throttle",
    "autoglm_throttle.types",
    "autoglm_throttle.asgi",
    "autoglm_throttle.fastapi",
    "autoglm_throttle.batcher",
    "autoglm_throttle.gateway",
    "autoglm_throttle.resilience.httpx",
    "autoglm_throttle.observe",
    "autoglm_throttle.testing",
    "autoglm_throttle.testing.simulated_llm",
    "autoglm_throttle.traffic.plan",
    "autoglm_throttle.traffic.request_source",
    "autoglm_throttle.traffic.record",
    "autoglm_throttle.traffic.inproc",
)
"""The modules that users import from."""

LINE: Final = 88
"""Characters of a signature on one line."""

SHOWN: Final = 200
"""Characters of a constant that is shown."""

PACKAGE: Final = Path(__file__).parents[2] / "autoglm_throttle"

_SECTION: Final = re.compile(r"^(Args|Returns|Raises|Yields|Attributes):$")
_ASSIGNMENT: Final = re.compile(r"^([A-Za-z]\w*)(?:: [^=\n]+)? = ", re.MULTILINE)
_ITEM: Final = re.compile(r"^(\w[\w.]*|\*+\w+): ")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def public_names(module: ModuleType) -> list[str]:
    """Return the public names of a module: those it exports, else those it defines and documents."""
    exported = getattr(module, "__all__", None)
    if exported is not None:
        return sorted(exported, key=str.lower)
    return sorted(name for name, value in vars(module).items() if _is_own(value, name, module))


def _is_own(value: object, name: str, module: ModuleType) -> bool:
    home = getattr(value, "__module__", "")
    if name.startswith("_") or not (inspect.isclass(value) or inspect.isfunction(value)):
        return not name.startswith("_") and bool(_meaning(name))
    return home == module.__name__ or _is_package(module, home)


def _is_package(module: ModuleType, home: str) -> bool:
    return hasattr(module, "__path__") and home.startswith(f"{module.__name__}.")


def text_of(docstring: str) -> str:
    """Turn a docstring into Markdown: code in single marks, sections as lists."""
    lines: list[str] = []
    in_section = False
    for line in inspect.cleandoc(docstring).splitlines():
        if found := _SECTION.match(line):
            lines += [f"**{found[1]}**", ""]
            in_section = True
        elif in_section and line.startswith("    "):
            lines.append(_section_line(line))
        else:
            in_section = in_section and not line
            lines.append(line)
    return "\n".join(lines).replace("``", "`") + "\n"


def _section_line(line: str) -> str:
    inner = line[4:]
    item = _ITEM.match(inner)
    if item:
        return f"- `{item[1]}`: {inner[item.end() :]}"
    return inner


def signature(node: Function) -> str:
    """Render the signature of a function, over several lines if it is long."""
    lead = "async def " if isinstance(node, ast.AsyncFunctionDef) else "def "
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    parameters = _parameters(node.args)
    line = f"{lead}{node.name}({', '.join(parameters)}){result}"
    if len(line) <= LINE:
        return line
    listed = "".join(f"    {parameter},\n" for parameter in parameters)
    return f"{lead}{node.name}(\n{listed}){result}"


def _parameters(given: ast.arguments) -> list[str]:
    """Render the parameters, without ``self`` and ``cls``."""
    plain = [*given.posonlyargs, *given.args]
    blanks: list[ast.expr | None] = [None] * (len(plain) - len(given.defaults))
    found = [_parameter(*each) for each in zip(plain, blanks + list(given.defaults), strict=True)]
    if plain and plain[0].arg in {"self", "cls"}:
        del found[0]
    if given.vararg:
        found.append(f"*{_parameter(given.vararg, None)}")
    elif given.kwonlyargs:
        found.append("*")
    found += [_parameter(*each) for each in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return found + ([f"**{_parameter(given.kwarg, None)}"] if given.kwarg else [])


def _parameter(given: ast.arg, default: ast.expr | None) -> str:
    typed = f"{given.arg}: {ast.unparse(given.annotation)}" if given.annotation else given.arg
    if default is None:
        return typed
    return f"{typed} = {ast.unparse(default)}" if given.annotation else f"{typed}={ast.unparse(default)}"


def _code(text: str) -> str:
    return f"```python\n{text}\n```\n\n"


def _source(value: type | FunctionType) -> Any:  # noqa: ANN401 - the node of a class or of a function
    return ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]


def _function(name: str, node: Function, level: int) -> str:
    heading = f"{'#' * level} `{name}`\n\n"
    return heading + _code(signature(node)) + text_of(ast.get_docstring(node) or "") + "\n"


def _classes(kind: type) -> Iterator[ast.ClassDef]:
    """Yield the sources of a class and of its bases in this package, the class first."""
    for one in kind.__mro__:
        if one.__module__.startswith("autoglm_throttle"):
            yield _source(one)


def _class(name: str, kind: type) -> str:
    text = f"## `{name}`\n\n"
    nodes = list(_classes(kind))
    made = next((one for node in nodes for one in _functions(node) if one.name == "__init__"), None)
    if made is not None:
        made.name, made.returns = name, None
        text += _code(signature(made).replace("def ", "", 1))
    text += text_of(inspect.getdoc(kind) or "") + "\n"
    attributes = {each[0]: each for node in reversed(nodes) for each in _attributes(node)}
    if attributes:
        text += "".join(["**Attributes**\n\n", *(_attribute(*each) for each in attributes.values()), "\n"])
    methods = {one.name: one for node in reversed(nodes) for one in _functions(node) if _is_documented(one)}
    return text + "".join(
        _function(f"{name}.{method}", node, 3) for method, node in methods.items() if method not in attributes
    )


def _functions(node: ast.ClassDef) -> Iterator[Function]:
    return (one for one in node.body if isinstance(one, Function))


def _is_documented(node: Function) -> bool:
    return not node.name.startswith("_") and bool(ast.get_docstring(node))


def _is_property(node: Function) -> bool:
    return any("property" in ast.unparse(one) for one in node.decorator_list)


def _attributes(node: ast.ClassDef) -> Iterator[tuple[str, str, str]]:
    """Yield the public attributes of a class: name, declaration and docstring."""
    made = next((one for one in _functions(node) if one.name == "__init__"), None)
    yield from _documented(node.body)
    # An attribute that `__init__` sets is public if it has a docstring.
    yield from (each for each in _documented(made.body if made else []) if each[2])
    for one in _functions(node):
        if _is_property(one) and _is_documented(one):
            result = f": {ast.unparse(one.returns)}" if one.returns else ""
            yield one.name, f"{one.name}{result}", " ".join((ast.get_docstring(one) or "").split())


def _declared(node: ast.stmt) -> tuple[str, str] | None:
    """Return the name and the declaration of an annotated attribute, or of a member of an enum."""
    if isinstance(node, ast.AnnAssign):
        name, typed = ast.unparse(node.target), ast.unparse(_plain(node.annotation))
        if name.startswith("self."):
            name = name.removeprefix("self.")
            return name, f"{name}: {typed}"
        default = f" = {ast.unparse(node.value)}" if node.value else ""
        return None if typed.startswith("ClassVar") else (name, f"{name}: {typed}{default}")
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and len(node.targets) == 1:
        return node.targets[0].id, ast.unparse(node)
    return None


def _plain(annotation: ast.expr) -> ast.expr:
    """Return a type without the checks that ``Annotated`` adds."""
    if isinstance(annotation, ast.BinOp):
        return ast.BinOp(_plain(annotation.left), annotation.op, annotation.right)
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Annotated":
        return annotation.slice.elts[0] if isinstance(annotation.slice, ast.Tuple) else annotation.slice
    return annotation


def _string(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return " ".join(str(node.value.value).split())
    return ""


def _attribute(_: str, declaration: str, meaning: str) -> str:
    return f"- `{declaration}`" + (f": {meaning.replace('``', '`')}\n" if meaning else "\n")


def _entry(name: str, value: object) -> str:
    if inspect.isclass(value):
        return _class(name, value)
    if inspect.isfunction(value):
        return _function(name, _source(value), 2)
    shown = _code(f"{name} = {value!r}") if len(repr(value)) <= SHOWN else ""
    return f"## `{name}`\n\n{shown}{_meaning(name).replace('``', '`')}\n\n"


@cache
def _assigned() -> dict[str, list[str]]:
    """Return the sources of the modules that assign a name, by name."""
    found: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text("utf-8")
        for name in _ASSIGNMENT.findall(text):
            found.setdefault(name, []).append(text)
    return found


@cache
def _meaning(name: str) -> str:
    """Return the docstring below a constant or a type alias, in the module that defines it."""
    found = (_documented(ast.parse(text).body) for text in _assigned().get(name, ()))
    return next((meaning for each in found for one, _, meaning in each if one == name and meaning), "")


def _documented(body: Sequence[ast.stmt]) -> Iterator[tuple[str, str, str]]:
    """Yield name, declaration and docstring of each assignment."""
    for here, below in zip_longest(body, body[1:]):
        declared = _declared(here)
        if declared and not declared[0].startswith("_"):
            yield (*declared, _string(below))


def module_page(name: str) -> str:
    """Return the page of a module, in Markdown."""
    module = import_module(name)
    entries = (_entry(each, getattr(module, each)) for each in public_names(module))
    return f"# {name}\n\n{text_of(module.__doc__ or '')}\n{''.join(entries)}"


def index_page(names: Iterable[str] = MODULES) -> str:
    """Return the page that lists the modules."""
    rows = "".join(
        f"| [`{name}`]({name}.md) | {(import_module(name).__doc__ or '').splitlines()[0]} |\n"
        for name in names
    )
    return f"# API reference\n\nWhich names may I import?\n\n| module | contents |\n|---|---|\n{rows}"
