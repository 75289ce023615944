"""Arguments of a dynamic fallback."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class FallbackContext:
    """The context that a dynamic fallback receives."""

    name: str
    """Name of the guard."""
    cause: str
    """The cause: a `BreakerCause`, ``error``, or ``load``."""
    error: BaseException | None
    """The exception, which may be a rejection; None under load."""
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
