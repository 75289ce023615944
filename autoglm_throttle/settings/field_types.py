"""Field types: the kinds of values, each with its allowed range, an example, and its notation.

A field type parses text as well as ready values, so that every source of a setting has the same rules and
messages. pydantic checks types, ranges and enums.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from autoglm_throttle.settings.problems import MASK, ConfigError, escaped, repr_for_user
from autoglm_throttle.types import Priority

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

PARTS_AT_MOST: Final = 100_000  # elements of a list: a variable may hold a megabyte of commas
NOTHING: Final = "none"  # the word for an empty list, because an empty variable means "not set"
_DIGITS: Final = 20  # of a whole number; the largest allowed value has eleven
TRUE_WORDS: Final = ("true", "1", "yes", "on")
_NUMBER: Final = r"([+-]?(?:[0-9]{1,400}(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?)\s*(\S*)"

# Unit of a setting -> unit in the text -> (times, over). Fractions, because 57 * 0.01 is not 0.57.
UNITS: Final[Mapping[str, Mapping[str, tuple[int, int]]]] = {
    "s": {
        "us": (1, 10**6), "ms": (1, 1000), "s": (1, 1),
        "m": (60, 1), "min": (60, 1), "h": (3600, 1), "d": (86_400, 1),
    },
    "requests/s": {"/s": (1, 1), "/m": (1, 60), "/min": (1, 60), "/h": (1, 3600), "rps": (1, 1)},
    "bytes": {
        "b": (1, 1), "kb": (10**3, 1), "mb": (10**6, 1), "gb": (10**9, 1),
        "kib": (2**10, 1), "mib": (2**20, 1), "gib": (2**30, 1),
    },
    "%": {"%": (1, 1)},
    "share": {"%": (1, 100)},
}  # fmt: skip


class FieldTypeError(ValueError):
    """A value that its field type does not allow; the text may name an allowed one."""


@dataclass(eq=False, repr=False)  # less generated code: 90 of them are made at import
class FieldType:
    """A kind of value: the metadata of an annotation, ``Annotated[float, number(0, 1, "share")]``."""

    allowed: str  # completes "must be ...": the range or the choices
    example: str
    parse: Callable[[Any], Any]  # or raises a ValueError; its text may name an allowed value
    bounds: Mapping[str, Any] | None = None  # for pydantic's schema; None: `parse` returns the final value
    unit: str = ""
    text: Callable[[Any], str] = str  # formats a value; `parse` reads it back
    public: Callable[[Any], str] | None = None  # formats a value without its secrets; None: it has none
    hidden: bool = False  # whether no message quotes a wrong value: it may be a secret in the wrong place

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Build the schema of pydantic: ``parse``, then pydantic's own check of type and range."""
        parse: Any = {"type": "no-info", "function": self.checked}
        if self.bounds is None:
            return {"type": "function-plain", "function": parse}
        schema: Any = {**handler(source), **self.bounds}
        return {"type": "function-before", "function": parse, "schema": schema}

    def checked(self, raw: object) -> Any:  # noqa: ANN401 - the value has any type
        """Parse a value; any exception of a foreign object becomes a ValueError."""
        try:
            return self.parse(raw)
        except ConfigError:
            raise
        except ValueError as error:
            # pydantic takes no lone surrogates, which the environment may hold.
            raise FieldTypeError(escaped(str(error))) from None
        except Exception:  # noqa: BLE001 - an object in code may have any fault
            raise FieldTypeError from None

    def public_text(self, value: object) -> str:
        """Format a value without its secrets; empty for "not set"."""
        return "" if value is None else (self.public or self.text)(value)

    def describe_error(self, raw: object, reason: str) -> tuple[str, str]:
        """Return message and hint for a value that is not allowed."""
        given = "" if self.hidden else f", not {repr_for_user(raw)}"
        return f"must be {self.allowed}{given}", reason or f"for example {self.example}"


def plain(value: float) -> str:
    """Format a number as the shortest text that reads back as the same number: ``100``, ``0.1``."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


def parse_quantity(text: str, unit: str = "") -> float:
    """Parse a finite number with an optional unit of those of ``unit``: ``0.25``, ``250ms``, ``3 m``."""
    match = re.fullmatch(_NUMBER, text.strip())
    if match is None:
        raise ValueError("not a number")
    spellings = {"": (1, 1), **UNITS.get(unit, {})}
    if match[2].lower() not in spellings:
        known = ", ".join(UNITS.get(unit, ()))
        raise FieldTypeError(f"its unit is not known, only {known}" if known else "a plain number, no unit")
    times, over = spellings[match[2].lower()]
    value = float(match[1]) * times / over
    if not math.isfinite(value):
        raise FieldTypeError("not a finite number")
    return value


def number(low: float, high: float, unit: str = "", *, above: bool = False) -> FieldType:
    """Build the type of finite numbers within a range; with ``above``, ``low`` itself is not allowed."""
    span = f"above {plain(low)} up to {plain(high)}" if above else f"from {plain(low)} to {plain(high)}"
    allowed, example = f"a number {span} {unit}".rstrip(), plain(min(high, max(low, 1.0)))
    if unit == "share":
        allowed, example = f"a share {span}", "0.1 or 10%"
    bounds = {"gt" if above else "ge": low, "le": high, "allow_inf_nan": False}
    return FieldType(allowed, example, partial(_number, unit), bounds, unit, plain)


def _number(unit: str, raw: object) -> float:
    if isinstance(raw, bool) or not isinstance(raw, (int, float, str)):
        raise FieldTypeError
    try:
        value = parse_quantity(raw, unit) if isinstance(raw, str) else float(raw)
    except OverflowError:
        raise FieldTypeError("not a finite number") from None
    if unit == "share" and 1 < value <= 100 and "%" not in str(raw):
        raise FieldTypeError(f"for {plain(value)} percent write {plain(value)}%")
    return value


def whole(low: int, high: int, unit: str = "") -> FieldType:
    """Build the type of whole numbers within a range; in ``bytes`` also texts such as ``256KiB``."""
    allowed = f"a whole number from {low} to {high} {unit}".rstrip()
    bounds = {"ge": low, "le": high, "strict": True}
    return FieldType(allowed, str(low), partial(_whole, unit), bounds, unit)


def _whole(unit: str, raw: object) -> object:
    if not isinstance(raw, str):
        if isinstance(raw, bool) or not isinstance(raw, int):
            raise FieldTypeError
        return int(raw)
    digits = raw.strip().removeprefix("+")
    if digits.isascii() and digits.replace("_", "").isdigit() and len(digits) <= _DIGITS:
        return int(digits)
    value = parse_quantity(raw, unit) if unit == "bytes" else math.nan
    if not value.is_integer():
        raise FieldTypeError
    return int(value)


def choice(kind: type[Enum], **renamed: Enum) -> FieldType:
    """Build the type of one word of an enum, in any case; the error of a renamed word names the new one."""

    def parse(raw: object) -> object:
        if isinstance(raw, kind):
            return raw
        if not isinstance(raw, str):
            raise FieldTypeError
        word = raw.strip().lower()
        if word in renamed:
            raise FieldTypeError(f"{word} is now {renamed[word].value}")
        return word

    words = [str(member.value) for member in kind]
    return FieldType(f"one of {', '.join(words)}", words[0], parse, {}, text=lambda value: str(value.value))


def listed(item: FieldType) -> FieldType:
    """Build the type of a list of texts of one field type; repeated ones count once."""

    def parse(raw: object) -> tuple[str, ...]:
        values: dict[str, None] = {}
        reasons: list[str] = []
        for part in list_of(raw):
            try:
                values[item.parse(part)] = None
            except ValueError as error:
                reasons.append(f"{repr_for_user(part)}: {str(error) or 'not allowed'}")
        if reasons:
            raise FieldTypeError("" if item.hidden else "; ".join(reasons))
        return tuple(values)

    allowed = f"a list, separated by commas, of {item.allowed}"
    return replace(item, allowed=allowed, parse=parse, text=lambda value: ",".join(value) or NOTHING)


def parts_of(raw: object) -> list[object]:
    """Split a text at its commas, or copy a sequence or a set."""
    if isinstance(raw, str):
        raw = [part.strip() for part in raw.split(",", PARTS_AT_MOST)]
    if not isinstance(raw, (list, tuple, set, frozenset)):
        raise FieldTypeError
    if len(raw) > PARTS_AT_MOST:
        raise FieldTypeError(f"at most {PARTS_AT_MOST} elements")
    return list(raw)


def list_of(raw: object) -> list[object]:
    """Split a list as ``parts_of``; the word ``none`` alone is the empty list."""
    parts = parts_of(raw)
    return [] if len(parts) == 1 and text_of(parts[0]).lower() == NOTHING else parts


def text_of(raw: object) -> str:
    """Return a text without the blanks around it; empty for any other value."""
    return raw.strip() if isinstance(raw, str) else ""


def word(pattern: str, allowed: str, example: str, *, lower: bool = False, reason: str = "") -> FieldType:
    """Build the type of texts that match a bounded pattern; ``reason`` is the hint for other texts."""

    def parse(raw: object) -> str:
        stripped = text_of(raw)
        text = stripped.lower() if lower else stripped
        # `re` keeps the compiled pattern; a start with defaults never needs it.
        if not re.fullmatch(pattern, text):
            raise FieldTypeError(reason)
        return text

    return FieldType(allowed, example, parse)


def _priority(raw: object) -> Priority:
    # A bare number is rejected: as a text 1 is high, as a `Priority` it is mid.
    if isinstance(raw, Priority):
        return raw
    if not isinstance(raw, str) or not Priority.knows(raw):
        raise FieldTypeError
    return Priority.parse(raw)


def _flag(raw: object) -> object:
    word = text_of(raw).lower()
    if not isinstance(raw, bool) and word not in {*TRUE_WORDS, "false", "0", "no", "off"}:
        raise FieldTypeError
    return word or raw


# A boolean: ``true false``, ``1 0``, ``yes no`` or ``on off`` in any case.
FLAG: Final = FieldType("true or false", "true", _flag, {}, text=lambda value: "true" if value else "false")

# A priority by name or by one of ``1 2 3``. An unknown one is an error, unlike in a client's header.
PRIORITY: Final = FieldType("one of high, mid, low", "mid", _priority, text=lambda value: str(value.label))

SHARE: Final = number(0, 1, "share")
LOAD: Final = number(0.01, 1, "share")  # as seen by the controller: 1 is the full capacity of the service
OBJECTIVE: Final = number(0.001, 86_400, "s")
AGE: Final = number(0.001, 31_536_000, "s")  # of a cached response: up to a year, as in HTTP caches


def secret(
    allowed: str, example: str, parse: Callable[[Any], Any], public: Callable[[str], str] | None = None
) -> FieldType:
    """Build the type of a secret, which no message quotes; without ``public`` it is shown as asterisks."""

    def shown(value: object) -> str:
        return public(secret_text(value)) if public else MASK

    return FieldType(allowed, example, parse, text=secret_text, public=shown, hidden=True)


def secret_text(raw: Any) -> str:  # noqa: ANN401 - raw values have any type; SecretStr is slow to import
    """Return the text of a secret, given as such or as a text."""
    text = raw.get_secret_value() if hasattr(raw, "get_secret_value") else raw
    if not isinstance(text, str):
        raise FieldTypeError
    return text
