"""What a fallback is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class FallbackContext:
    """What a dynamic fallback is told."""

    name: str
    """Of the guard."""
    cause: str
    """Why there is no answer: a `Cause`, ``error``, or ``load``."""
    error: BaseException | None
    """What was raised, a refusal included; None under load."""
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
