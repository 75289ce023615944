"""Python values that no setting allows, some with methods that raise."""

from __future__ import annotations

import collections
import datetime
import re
import types
import uuid
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import SecretStr

from autoglm_throttle.settings import BreakerSettings, GuardPolicy, PlanPolicy, RoutePolicy, Settings
from autoglm_throttle.types import Priority, UserLimit

DEPTH = 3000
"""Levels of nesting: above the recursion limit of the interpreter."""


class RaisedByValueError(Exception):
    """Raised by the methods below; no setting expects it."""


class Other(Enum):
    """An enum of no setting, with the text of one."""

    ADAPTIVE = "adaptive"


def raising(*methods: str, base: type = object, error: type[Exception] = RaisedByValueError) -> Any:
    """Create a value whose special methods raise."""

    def fail(*_: object) -> Any:
        raise error("raised by the value")

    made = type("Raising", (base,), dict.fromkeys(methods, fail))
    return made("1") if base is not object else made()


class RaisingMapping(Mapping[str, object]):
    """A mapping with a key but no values."""

    def __init__(self, *, in_iter: bool) -> None:
        self._in_iter = in_iter

    def __getitem__(self, key: str) -> object:
        raise RaisedByValueError(key)

    def __iter__(self) -> Iterator[str]:
        if self._in_iter:
            raise RaisedByValueError
        return iter(("pattern", "failures", "user_limit", "gpu_memory_ratio"))

    def __len__(self) -> int:
        return 4


class NumberLike:
    """A number of another library: no int and no float, but with their conversions."""

    def __float__(self) -> float:
        return 0.5

    def __int__(self) -> int:
        return 1

    def __index__(self) -> int:
        return 1


class ArrayLike:
    """An array: its comparisons are arrays, which have no truth value."""

    def __eq__(self, other: object) -> ArrayLike:  # type: ignore[override]  # as arrays of numpy do
        return self

    __hash__ = None  # type: ignore[assignment]  # as arrays of numpy

    def __bool__(self) -> bool:
        raise ValueError("the truth value of an array is ambiguous")

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[object]:
        return iter((NumberLike(), NumberLike()))


def _generator(*, fails: bool) -> Iterator[object]:
    yield "queue"
    if fails:
        raise RaisedByValueError
    yield 5


def _own_list() -> list[object]:
    made: list[object] = ["a"]
    made.append(made)
    return made


def _own_dict() -> dict[str, object]:
    made: dict[str, object] = {"pattern": "/a"}
    made["user_limit"] = made
    return made


def _deep(wrap: Callable[[object], object]) -> object:
    made: object = 1
    for _ in range(DEPTH):
        made = wrap(made)
    return made


TEXTS: tuple[str, ...] = (
    *("", " ", "\0", "\n", "\x1b[31m", "\udcff", "\ud83d\ude00", "\u202eevil", "\u0661\u0662", "x" * 100_000),
    *(
        "9" * 5000,
        "1e400",
        "-1e-400",
        "nan",
        "inf",
        "-0",
        "0x10",
        "1_0",
        "%s%n",
        "{0}",
        "${HOME}",
        "none",
        "off",
    ),
    *(
        ",",
        ":",
        ";",
        "/",
        "=",
        "a,b",
        "GPU-1f,0",
        "fake:a,nvml",
        "85:0.7,",
        "1979-05-27",
        "true",
        "null",
        "[]",
    ),
    *(
        "redis://h:0x",
        "redis://[::1",
        "vllm:http://[",
        "::ffff:0:0/90",
        "10.0.0.0/33",
        "header:\u00e9",
        "a.b:c",
    ),
)

PLAIN: tuple[object, ...] = (
    *(None, True, False, 0, 1, -1, 2**63, 10**400, -(10**5000), 10**5000, 0.0, -0.0, 0.5, 1e308, 5e-324, 1j),
    *(float("nan"), float("inf"), Decimal("NaN"), Decimal("1e999999"), Fraction(1, 3), ..., Other.ADAPTIVE),
    *(b"auto", b"\xff", bytearray(b"1"), memoryview(b"1"), Path("a"), PurePosixPath("a"), SecretStr("short")),
    *(
        (),
        [],
        {},
        set(),
        frozenset({"queue"}),
        range(3),
        [[]],
        [None],
        [1, "a", 2.5],
        ((1, 2), (3, 4)),
        [(85,)],
    ),
    *(
        {1: 2},
        {None: "a"},
        {(1, 2): 3},
        {b"x": 1},
        {float("nan"): 1},
        {"": ""},
        {"\udcff": 1},
        {"pattern": 5},
    ),
    *(
        int,
        object,
        len,
        types,
        re.compile("a"),
        ValueError("a"),
        datetime.date(1979, 5, 27),
        uuid.UUID(int=1),
    ),
    *(datetime.datetime(1979, 5, 27), datetime.time(7), datetime.timedelta(1), Priority.HIGH, slice(1)),
    *(types.MappingProxyType({"pattern": "/a"}), collections.ChainMap({}), collections.defaultdict(int)),
    *(UserLimit("a", 10**30, -1), [UserLimit("a", 1, 1)] * 9, [UserLimit("a", "5", None)]),  # type: ignore[arg-type]  # wrong on purpose
    *(RoutePolicy("/a"), [PlanPolicy("a"), PlanPolicy("a")], GuardPolicy("a", failures=1), Settings()),
    *({"a": BreakerSettings(failures=1)}, {"b": PlanPolicy("a")}, NumberLike(), ArrayLike(), [ArrayLike()]),
)

MADE: Mapping[str, Callable[[], object]] = {
    "raising str": lambda: raising("__str__"),
    "raising repr": lambda: raising("__repr__"),
    "raising str and repr with ValueError": lambda: raising("__str__", "__repr__", error=ValueError),
    "raising repr with RecursionError": lambda: raising("__repr__", error=RecursionError),
    "raising iter": lambda: raising("__iter__"),
    "raising next": lambda: raising("__iter__", "__next__", error=TypeError),
    "raising eq": lambda: raising("__eq__", "__ne__"),
    "raising hash": lambda: raising("__hash__"),
    "raising bool and len": lambda: raising("__bool__", "__len__"),
    "raising float": lambda: raising("__float__", "__int__", "__index__"),
    "raising fspath": lambda: raising("__fspath__"),
    "text with raising str": lambda: raising("__str__", "__repr__", base=str),
    "int with raising str": lambda: raising("__str__", "__repr__", base=int),
    "float with raising str": lambda: raising("__str__", "__repr__", base=float),
    "list of raising repr": lambda: [raising("__repr__")],
    "tuple of raising eq": lambda: (raising("__eq__"), raising("__eq__")),
    "key with raising str": lambda: {raising("__str__", "__repr__"): 1},
    "table with raising repr": lambda: {"pattern": raising("__repr__"), "failures": raising("__repr__")},
    "mapping with raising iter": lambda: RaisingMapping(in_iter=True),
    "mapping with raising getitem": lambda: RaisingMapping(in_iter=False),
    "list of mappings with raising getitem": lambda: [RaisingMapping(in_iter=False)],
    "table of mappings with raising iter": lambda: {"a": RaisingMapping(in_iter=True)},
    "generator": lambda: _generator(fails=False),
    "generator that raises": lambda: _generator(fails=True),
    "map of huge numbers": lambda: map(pow, (10,) * 2, (5000,) * 2),
    "list of huge numbers": lambda: [10**5000],
    "own list": _own_list,
    "own dict": _own_dict,
    "list of own dict": lambda: [_own_dict()],
    "deep list": lambda: _deep(lambda part: [part]),
    "deep tuple": lambda: _deep(lambda part: (part,)),
    "deep dict": lambda: _deep(lambda part: {"a": part}),
    "deep table": lambda: {"a": {"failures": _deep(lambda part: [part])}},
    "coroutine function": lambda: _generator,
}
"""Name of a value -> its constructor: a value that is used up, or that cannot be printed."""


def hostile_values() -> dict[str, Callable[[], object]]:
    """Return all values by a printable name."""
    named = {f"text {text[:20]!a}": (lambda text=text: text) for text in TEXTS}
    named |= {_label(value): (lambda value=value: value) for value in PLAIN}
    return {**named, **MADE}


def _label(value: object) -> str:
    # The text of a very large int is an error. Addresses differ in each process; names must not.
    text = hex(value)[:20] if isinstance(value, int) else re.sub(r" at 0x[0-9a-f]+", "", ascii(value))[:30]
    return f"{type(value).__name__} {text}"
