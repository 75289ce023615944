"""Last error of the shared store, and the listener that is notified of each call's result."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from autoglm_throttle.store.user_limit_store import StoreErrorKind


class StoreErrorTracker:
    """Tracks the last error of one store, from all its event loops.

    A text is shown only with the error that it belongs to, and only until the next answer: an outage by
    timeouts must not be explained by an older error.

    Args:
        secrets: texts to mask; empty ones are ignored.
    """

    __slots__ = ("_current", "_last_text", "_listener", "_secrets")

    def __init__(self, *secrets: str | None) -> None:
        self._secrets = [secret for secret in secrets if secret]
        self._listener: Callable[[StoreErrorKind | None], None] | None = None
        self._current: StoreErrorKind | None = None
        self._last_text: tuple[StoreErrorKind | None, str] = (None, "")

    def __repr__(self) -> str:
        return f"StoreErrorTracker({self._current or 'none'})"

    @property
    def text(self) -> str:
        """Text of the current error from the server or its client; empty without one."""
        kind, text = self._last_text
        return text if kind is not None and kind is self._current else ""

    def listen(self, listener: Callable[[StoreErrorKind | None], None]) -> None:
        """Set the listener of `notify`."""
        self._listener = listener

    def record(self, kind: StoreErrorKind, error: BaseException) -> str:
        """Store the text of an error, until it is known to be the current one."""
        text = f"{type(error).__name__}: {error}".removesuffix(": ")
        for secret in self._secrets:
            text = text.replace(secret, "***")
        self._last_text = (kind, text)
        return text

    def record_result(self, kind: StoreErrorKind | None) -> None:
        """Record a call's result, such as a probe's, without notifying; None: it was answered."""
        self._current = kind
        if kind is None:
            self._last_text = (None, "")

    def notify(self, kind: StoreErrorKind | None) -> None:
        """Record a call's result, and notify the listener."""
        self.record_result(kind)
        if self._listener is not None:
            self._listener(kind)
