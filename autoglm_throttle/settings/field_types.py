"""Field types: parse the values of settings from text or code, and format them.

A field type parses text (environment, files) as well as ready values (code, TOML), so that
every source of a setting has the same rules and messages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Generic, TypeVar

from autoglm_throttle.settings.masking import MASK
from autoglm_throttle.settings.problems import ConfigError, Problem, repr_for_user
from autoglm_throttle.settings.quantity import parse_quantity, plain
from autoglm_throttle.types import Priority

T = TypeVar("T")
E = TypeVar("E", bound=Enum)

NOTHING = "none"
"""The word for an empty list, because an empty variable means "not set"."""


class FieldTypeError(ValueError):
    """A value that its field type does not allow; the text may name an allowed one."""


class FieldType(ABC, Generic[T]):
    """One kind of value."""

    allowed: str
    """Completes "must be ...": the range or the choices."""
    example: str
    """An allowed value."""
    unit: str = ""
    secret: bool = False
    """Whether a value, or a part of it, must never be shown."""

    @abstractmethod
    def parse(self, raw: object) -> T:
        """Parse a value.

        Raises:
            ValueError: it is not allowed; the text may name an allowed value. Usually a ``FieldTypeError``.
        """

    def text(self, value: T) -> str:
        """Format a value; ``parse`` reads the text back."""
        return str(value)

    def public(self, value: T) -> str:
        """Format a value without its secrets."""
        return MASK if self.secret else self.text(value)

    def repr_value(self, value: T) -> object:
        """Return the value for a ``repr``. A secret masks itself."""
        return value

    def describe_error(self, raw: object, reason: ValueError) -> tuple[str, str]:
        """Return message and hint for a value that ``parse`` rejected."""
        message = f"must be {self.allowed}"
        if not self.secret:
            message += f", not {repr_for_user(raw)}"
        return message, str(reason) or f"for example {self.example}"


class Number(FieldType[float]):
    """A finite number within a range, with or without a unit.

    Args:
        low: smallest value allowed, or the bound itself if ``above``.
        high: largest value allowed.
        unit: a unit of ``parse_quantity``, or any other word for numbers without units in their text.
        above: ``low`` itself is not allowed.
    """

    def __init__(self, low: float, high: float, unit: str = "", *, above: bool = False) -> None:
        self.low = low
        self.high = high
        self.unit = unit
        self.above = above
        span = f"{'above' if above else 'from'} {plain(low)} {'up ' if above else ''}to {plain(high)}"
        kind = "a share" if unit == "share" else "a number"
        self.allowed: str = f"{kind} {span}" + (f" {unit}" if unit not in {"", "share"} else "")
        self.example: str = "0.1 or 10%" if unit == "share" else plain(high if low <= 0 else max(low, 1.0))

    def parse(self, raw: object) -> float:
        """Parse a number; text may carry a unit."""
        if isinstance(raw, str):
            value = parse_quantity(raw, self.unit)
        elif isinstance(raw, (int, float)):
            value = parse_quantity(str(raw))
        else:
            raise FieldTypeError
        if not self.low <= value <= self.high or (self.above and value == self.low):
            # Above 1 without a sign, a percentage was probably intended.
            meant_percent = self.unit == "share" and 1 < value <= 100 and "%" not in str(raw)
            raise FieldTypeError(f"for {plain(value)} percent write {plain(value)}%" if meant_percent else "")
        return value

    def text(self, value: float) -> str:
        """Format the plain number, in the unit of the setting."""
        return plain(float(value))


class Whole(FieldType[int]):
    """A whole number within a range."""

    def __init__(self, low: int, high: int, unit: str = "") -> None:
        self.low = low
        self.high = high
        self.unit = unit
        self.allowed: str = f"a whole number from {low} to {high}" + (f" {unit}" if unit else "")
        self.example: str = str(low)

    def parse(self, raw: object) -> int:
        """Parse a whole number; ``3.0`` is not allowed."""
        if isinstance(raw, str):
            digits = raw.strip().removeprefix("+")
            if not (digits.isascii() and digits.replace("_", "").isdigit()) or len(digits) > 20:
                raise FieldTypeError
            value = int(digits)
        # bool is a subclass of int.
        elif isinstance(raw, int) and not isinstance(raw, bool):
            value = raw
        else:
            raise FieldTypeError
        if not self.low <= value <= self.high:
            raise FieldTypeError
        return value


class Size(Whole):
    """A number of bytes, with or without a unit such as ``256KiB``."""

    def __init__(self, low: int, high: int) -> None:
        super().__init__(low, high, "bytes")

    def parse(self, raw: object) -> int:
        """Parse a whole number of bytes."""
        if isinstance(raw, str):
            value = parse_quantity(raw, self.unit)
            raw = int(value) if value.is_integer() else raw
        return super().parse(raw)


class Flag(FieldType[bool]):
    """A boolean."""

    allowed = "true or false"
    example = "true"
    _WORDS: Mapping[str, bool] = dict.fromkeys(("true", "1", "yes", "on"), True) | dict.fromkeys(
        ("false", "0", "no", "off"), False
    )

    def parse(self, raw: object) -> bool:
        """Parse ``true false``, ``1 0``, ``yes no`` or ``on off`` in any case."""
        word = str(raw).strip().lower()
        if not isinstance(raw, (bool, str)) or word not in self._WORDS:
            raise FieldTypeError
        return self._WORDS[word]

    def text(self, value: bool) -> str:
        """Format ``true`` or ``false``."""
        return "true" if value else "false"


class ChoiceType(FieldType[E]):
    """One word of a closed set, in any case.

    Args:
        kind: the enum of the allowed words.
        renamed: old word -> new word. An old word is an error whose hint names the new one.
    """

    def __init__(self, kind: type[E], *, renamed: Mapping[str, E] | None = None) -> None:
        self._kind = kind
        self._renamed = renamed or {}
        self._words = {str(member.value): member for member in kind}
        self.allowed: str = "one of " + ", ".join(self._words)
        self.example: str = next(iter(self._words))

    def parse(self, raw: object) -> E:
        """Parse a word or accept a member."""
        if isinstance(raw, self._kind):
            return raw
        word = raw.strip().lower() if isinstance(raw, str) else ""
        if word in self._renamed:
            raise FieldTypeError(f"{word} is now {self._renamed[word].value}")
        if word not in self._words:
            raise FieldTypeError
        return self._words[word]

    def text(self, value: E) -> str:
        """Format the word."""
        return str(value.value)


class PriorityType(FieldType[Priority]):
    """A priority by name. An unknown one is an error here, unlike in a client's header."""

    allowed = "one of high, mid, low"
    example = "mid"

    def parse(self, raw: object) -> Priority:
        """Parse a name or one of the texts ``1 2 3``.

        A bare number is rejected: as a text 1 is high, as a ``Priority`` it is mid.
        """
        if isinstance(raw, Priority):
            return raw
        if not isinstance(raw, str) or not Priority.knows(raw):
            raise FieldTypeError
        return Priority.parse(raw)

    def text(self, value: Priority) -> str:
        """Format the name."""
        return value.label


class Listed(FieldType[tuple[str, ...]]):
    """A list of texts of one field type; repeated ones count once.

    Args:
        item: the field type of one element; its ``allowed`` completes "a list of".
    """

    def __init__(self, item: FieldType[str]) -> None:
        self._item = item
        self.allowed: str = f"a list, separated by commas, of {item.allowed}"
        self.example: str = item.example

    def parse(self, raw: object) -> tuple[str, ...]:
        """Parse text separated by commas, or a sequence; the word ``none`` is the empty list."""
        if isinstance(raw, str):
            parts: list[object] = [part.strip() for part in raw.split(",")]
            if parts == [NOTHING]:
                return ()
        elif isinstance(raw, Iterable) and not isinstance(raw, (bytes, Mapping)):
            parts = list(raw)
        else:
            raise FieldTypeError
        values: dict[str, None] = {}
        reasons: list[str] = []
        for part in parts:
            try:
                values[self._item.parse(part)] = None
            except ValueError as error:
                reasons.append(f"{repr_for_user(part)}: {str(error) or 'not allowed'}")
        if reasons:
            raise FieldTypeError("; ".join(reasons))
        return tuple(values)

    def text(self, value: tuple[str, ...]) -> str:
        """Format the elements separated by commas, or ``none``."""
        return ",".join(value) or NOTHING


class WithNone(FieldType[T | None]):
    """Another field type, or None in code for "not set"."""

    def __init__(self, field_type: FieldType[T]) -> None:
        self._field_type = field_type
        self.allowed: str = field_type.allowed
        self.example: str = field_type.example
        self.unit: str = field_type.unit
        self.secret: bool = field_type.secret

    def parse(self, raw: object) -> T | None:
        """Parse a value of the other field type; None stays None."""
        return None if raw is None else self._field_type.parse(raw)

    def text(self, value: T | None) -> str:
        """Format its text; empty for None, like an empty variable."""
        return "" if value is None else self._field_type.text(value)

    def public(self, value: T | None) -> str:
        """Format it without secrets; empty for None."""
        return "" if value is None else self._field_type.public(value)


def read_all(
    field_types: Mapping[str, FieldType[Any]], raw_values: Mapping[str, object]
) -> tuple[dict[str, Any], list[Problem]]:
    """Parse many values at once.

    Args:
        field_types: name -> field type of every known value.
        raw_values: name -> given value; names without a field type are ignored.

    Returns:
        The valid values, and a problem under its name for each invalid one, ordered as ``field_types``.
    """
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, field_type in field_types.items():
        if name not in raw_values:
            continue
        try:
            values[name] = field_type.parse(raw_values[name])
        except ConfigError as error:
            problems += [
                Problem(name + inner.variable, inner.message, inner.hint) for inner in error.problems
            ]
        except ValueError as error:
            problems.append(Problem(name, *field_type.describe_error(raw_values[name], error)))
    return values, problems
