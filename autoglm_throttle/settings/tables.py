"""Field type of named tables: ``[plans.<name>]`` and ``[guards.<name>]``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from autoglm_throttle.settings.field_types import FieldType, FieldTypeError
from autoglm_throttle.settings.problems import ConfigError, Problem, quoted_key


class _Named(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=_Named)
H = TypeVar("H", bound=Mapping[str, Any])


class Tables(FieldType[H], Generic[N, H]):
    """Tables by name, or the same made in code.

    Args:
        kind: the type built from one table.
        read: builds it from a name and a table.
        collect: builds the collection of all of them.
        allowed: completes "must be ...".
        example: the head of a table.
    """

    def __init__(
        self,
        kind: type[N],
        read: Callable[[str, object], N],
        collect: Callable[[Iterable[N]], H],
        allowed: str,
        example: str,
    ) -> None:
        self._kind = kind
        self._read = read
        self._collect = collect
        self.allowed = allowed
        self.example = example

    def parse(self, raw: object) -> H:
        """Accept objects made in code, a mapping of names to them, or TOML tables."""
        made: list[N] = []
        problems: list[Problem] = []
        for name, part in named_tables(raw, self._kind):
            try:
                one = part if isinstance(part, self._kind) else self._read(name, part)
            except ConfigError as error:
                problems += [
                    Problem(f".{quoted_key(name)}{p.variable}", p.message, p.hint) for p in error.problems
                ]
                continue
            if one.name != name:
                problems.append(Problem(f".{quoted_key(name)}", f"holds that of {one.name}"))
            made.append(one)
        if problems:
            raise ConfigError(problems)
        return self._collect(made)


def named_tables(raw: object, kind: type[_Named]) -> list[tuple[str, object]]:
    """Return the names with their values.

    Raises:
        FieldTypeError: neither a mapping with text keys nor a list of objects with names.
    """
    if isinstance(raw, Mapping):
        if all(isinstance(name, str) for name in raw):
            return list(raw.items())
    elif isinstance(raw, (tuple, list)) and all(isinstance(one, kind) for one in raw):
        return [(one.name, one) for one in raw]
    raise FieldTypeError
