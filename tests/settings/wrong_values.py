"""Wrong values of settings, and the problems that the settings report for each.

They stand in ``wrong_values.json``, one call a line: the call (`from_env`, `Settings` or a policy), its
arguments, environment and files. A value that JSON cannot hold is ``{"python": "float('nan')"}``.
``problems`` are the recorded ones. ``new`` replaces them where they differ on purpose; ``why`` is the reason.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autoglm_throttle.settings import (
    PREFIX,
    BreakerSettings,
    ConfigError,
    GuardPolicy,
    PlanPolicy,
    RoutePolicy,
    Settings,
)
from autoglm_throttle.settings.route_policy import ResourcePolicy
from autoglm_throttle.types import UserLimit

FILE = Path(__file__).with_suffix(".json")

ProblemText = tuple[str, str, str]
"""Place, message and hint of one problem."""

CALLS: Mapping[str, Callable[..., object]] = {
    "from_env": Settings.from_env,
    "Settings": Settings,
    "RoutePolicy": RoutePolicy,
    "PlanPolicy": PlanPolicy,
    "GuardPolicy": GuardPolicy,
    "BreakerSettings": BreakerSettings,
    "ResourcePolicy": ResourcePolicy,
}

MAKERS: Mapping[str, Callable[..., object]] = {
    **{kind.__name__: kind for kind in (float, set, frozenset, object, Path, UserLimit)},
    **{name: call for name, call in CALLS.items() if name not in {"from_env", "Settings"}},
}
"""Calls that the text of a Python value may hold."""

ALLOWED = re.compile(r"must be (.+?)(?:, not '.*)?", re.DOTALL)
"""The range or the choices in a message."""


@dataclass
class WrongValue:
    """One call with wrong values, and its problems."""

    entry: str
    problems: list[ProblemText]
    arguments: dict[str, Any] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)
    env_file: str | None = None
    files: dict[str, Any] = field(default_factory=dict)
    new: list[ProblemText] = field(default_factory=list)
    why: str = ""

    @property
    def expected(self) -> list[ProblemText]:
        """The problems that the call must have now."""
        return self.new or self.problems

    @property
    def text(self) -> str:
        """Format the call in one line."""
        parts = [*(f"{name.removeprefix(PREFIX)}={value}" for name, value in self.environ.items())]
        parts += [f"{name}={json.dumps(value)}" for name, value in self.arguments.items()]
        parts += [f"--env-file {self.env_file}"] if self.env_file else []
        parts += [f"{name}: {json.dumps(content)}" for name, content in self.files.items()]
        return f"{self.entry}({', '.join(parts)})"

    def document(self) -> dict[str, Any]:
        """Return the case as it is stored: without empty parts, `new` and `why` always there."""
        given = {name: value for name, value in vars(self).items() if value or name in {"new", "why"}}
        last = {name: given.pop(name) for name in ("problems", "new", "why")}
        return given | last


def load_cases() -> list[WrongValue]:
    """Read the cases in the order of the file."""
    cases = [WrongValue(**case) for case in json.loads(FILE.read_text("utf-8"))]
    for case in cases:
        case.problems, case.new = _as_tuples(case.problems), _as_tuples(case.new)
    return cases


def save_cases(cases: list[WrongValue]) -> None:
    """Write the cases, one a line."""
    lines = ",\n".join(json.dumps(case.document()) for case in cases)
    FILE.write_text(f"[\n{lines}\n]\n", "utf-8")


def replay(case: WrongValue) -> list[ProblemText]:
    """Make the call in a folder with its files.

    Returns:
        Its problems; none if it raises nothing. Another exception is one problem with its name as the place.
    """
    arguments: dict[str, Any] = {name: decoded(value) for name, value in case.arguments.items()}
    if case.entry == "from_env":
        arguments |= {"environ": case.environ, "env_file": case.env_file}
    with folder_of(case.files):
        try:
            CALLS[case.entry](**arguments)
        except ConfigError as error:
            return [(problem.variable, problem.message, problem.hint) for problem in error.problems]
        except Exception as error:  # noqa: BLE001 - the table shows it beside the recorded problems
            return [(type(error).__name__, str(error), "")]
    return []


@contextlib.contextmanager
def folder_of(files: Mapping[str, Any]) -> Iterator[None]:
    """Work in a new folder with the files, so that messages hold their names alone."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name, content in files.items():
            data = decoded(content)
            if data == {"folder": True}:
                Path(name).mkdir()
            else:
                Path(name).write_bytes(data.encode() if isinstance(data, str) else data)
        yield


def decoded(value: Any) -> Any:
    """Return the Python value of a stored one."""
    if isinstance(value, list):
        return [decoded(part) for part in value]
    if isinstance(value, dict):
        if value.keys() == {"python"}:
            return _evaluated(ast.parse(value["python"], mode="eval").body)
        return {name: decoded(part) for name, part in value.items()}
    return value


def equal(one: list[ProblemText], other: list[ProblemText]) -> bool:
    """Whether two lists of problems are the same but for the reasons of the TOML parser."""
    return [_without_parser(part) for part in one] == [_without_parser(part) for part in other]


def normal_place(place: str) -> str:
    """Reduce a place to the name of the setting or key: without prefix, case and blanks."""
    return "".join(place.lower().replace(PREFIX.lower(), "").split())


def allowed_in(message: str) -> str:
    """Return the range or the choices that a message states; empty if it states none."""
    match = ALLOWED.fullmatch(message)
    return match[1] if match else ""


def _evaluated(node: ast.expr) -> Any:
    """Evaluate literals, repetition, and calls of `MAKERS`; nothing else."""
    match node:
        case ast.Call(func=ast.Name(id=name), args=args, keywords=named) if name in MAKERS:
            given = {word.arg or "": _evaluated(word.value) for word in named}
            return MAKERS[name](*map(_evaluated, args), **given)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _evaluated(left) * _evaluated(right)
        case ast.List(elts=parts):
            return [_evaluated(part) for part in parts]
        case ast.Tuple(elts=parts):
            return tuple(_evaluated(part) for part in parts)
        case ast.Dict(keys=keys, values=values):
            pairs = ((key, value) for key, value in zip(keys, values, strict=True) if key is not None)
            return {_evaluated(key): _evaluated(value) for key, value in pairs}
    return ast.literal_eval(node)


def _without_parser(problem: ProblemText) -> ProblemText:
    # Each Python version has its own words for wrong TOML.
    place, message, hint = problem
    return place, re.sub(r"not TOML: .*", "not TOML", message), hint


def _as_tuples(problems: list[Any]) -> list[ProblemText]:
    return [(place, message, hint) for place, message, hint in problems]
