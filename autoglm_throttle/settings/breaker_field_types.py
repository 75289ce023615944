"""Field types of breakers: the conditions that open them, and the steps in which they close."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autoglm_throttle.settings.field_types import NOTHING, ChoiceType, FieldType, FieldTypeError, Number
from autoglm_throttle.settings.problems import repr_for_user
from autoglm_throttle.settings.quantity import plain
from autoglm_throttle.types import TripRule


class Trips(FieldType[frozenset[TripRule]]):
    """The conditions that open a breaker; any of them does."""

    allowed: str = "a list, separated by commas, of " + ", ".join(TripRule)
    example = "consecutive,failure_rate"
    _word = ChoiceType(TripRule)

    def parse(self, raw: object) -> frozenset[TripRule]:
        """Parse words separated by commas, or several words or members; at least one."""
        parts = _parts(raw)
        if not parts or parts == [NOTHING]:
            raise FieldTypeError("a breaker that is never to open has the mode disabled or metrics_only")
        trips = set()
        for part in parts:
            try:
                trips.add(self._word.parse(part))
            except ValueError:
                raise FieldTypeError(f"{repr_for_user(part)}: not one of them") from None
        return frozenset(trips)

    def text(self, value: frozenset[TripRule]) -> str:
        """Format the words in the order of the page."""
        return ",".join(trip for trip in TripRule if trip in value)


class RampType(FieldType[tuple[float, ...]]):
    """Shares of the calls that are let through, step by step, before all are."""

    allowed = "a list, separated by commas, of rising shares between 0 and 1"
    example = "10%,50%"
    _share = Number(0, 1, "share", above=True)

    def parse(self, raw: object) -> tuple[float, ...]:
        """Parse shares separated by commas, or several numbers; the word ``none`` is the empty list."""
        parts = _parts(raw)
        if parts == [NOTHING]:
            return ()
        shares: list[float] = []
        for part in parts:
            try:
                share = self._share.parse(part)
            except ValueError as error:
                raise FieldTypeError(
                    f"{repr_for_user(part)}: {str(error) or 'not between 0 and 1'}"
                ) from None
            if share == 1:
                raise FieldTypeError("omit the last step: after the ramp all calls are let through")
            if shares and share <= shares[-1]:
                raise FieldTypeError(f"{plain(share)} does not rise above {plain(shares[-1])}")
            shares.append(share)
        return tuple(shares)

    def text(self, value: tuple[float, ...]) -> str:
        """Format the shares separated by commas, or ``none``."""
        return ",".join(map(plain, value)) or NOTHING


def _parts(raw: object) -> list[object]:
    if isinstance(raw, str):
        return [part.strip().lower() for part in raw.split(",")]
    if not isinstance(raw, Iterable) or isinstance(raw, (bytes, Mapping)):
        raise FieldTypeError
    return list(raw)
