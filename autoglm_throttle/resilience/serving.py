"""What stands before a breaker where a feature may be shed, or answered from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from autoglm_throttle.model import Refusal


class Serving(Protocol):
    """Answers the calls of one feature, in part by making them."""

    def call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Answer one call of a plain function."""
        ...

    async def call_async(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:  # noqa: ANN401
        """Answer one call of a coroutine function."""
        ...

    def fit(self, *, asynchronous: bool) -> None:
        """Raise TypeError if functions of this kind cannot be answered."""
        ...

    def would_shed(self) -> Refusal | None:
        """The refusal of a call that would be shed now; free of effects."""
        ...

    def forget(self) -> None:
        """Begin anew in a fork."""
        ...
