"""Protocol of the layer before a breaker that may shed a feature's calls or use its fallback."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from autoglm_throttle.resilience.feature import Feature
from autoglm_throttle.types import GuardRejection


class Executor(Protocol):
    """Answers the calls of one feature, by a live call or a fallback."""

    @property
    def feature(self) -> Feature:
        """Declaration of the feature."""
        ...

    def call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Answer one call of a plain function."""
        ...

    async def call_async(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:  # noqa: ANN401
        """Answer one call of a coroutine function."""
        ...

    def check_function(self, *, asynchronous: bool) -> None:
        """Raise TypeError if functions of this kind cannot use the fallback."""
        ...

    def would_shed(self) -> GuardRejection | None:
        """Return the rejection of a call that would be shed now, or None. Has no effects."""
        ...

    def reject_if_shed(self) -> GuardRejection | None:
        """Return the rejection of a shed call and count it, or None; for callers without a fallback."""
        ...
