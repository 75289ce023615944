"""Last error of the shared store, and the listener that is notified of each call's result."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from autoglm_throttle.limiting.shared.store import Trouble


class News:
    """Tracks the last error of one store, from all its event loops.

    A text is shown only with the error that it belongs to, and only until the next answer: an outage by
    timeouts must not be explained by an older error.

    Args:
        secrets: texts to mask; empty ones are ignored.
    """

    __slots__ = ("_listener", "_present", "_said", "_secrets")

    def __init__(self, *secrets: str | None) -> None:
        self._secrets = [secret for secret in secrets if secret]
        self._listener: Callable[[Trouble | None], None] | None = None
        self._present: Trouble | None = None
        self._said: tuple[Trouble | None, str] = (None, "")

    def __repr__(self) -> str:
        return f"News({self._present or 'none'})"

    @property
    def text(self) -> str:
        """Text of the current error from the server or its client; empty without one."""
        trouble, text = self._said
        return text if trouble is not None and trouble is self._present else ""

    def listen(self, listener: Callable[[Trouble | None], None]) -> None:
        """Set the listener of `notify`."""
        self._listener = listener

    def said(self, trouble: Trouble, error: BaseException | str) -> str:
        """Store the text of an error, until it is known to be the current one."""
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}".removesuffix(": ")
        for secret in self._secrets:
            text = text.replace(secret, "***")
        self._said = (trouble, text)
        return text

    def note(self, trouble: Trouble | None) -> None:
        """Record a call's result, such as a probe's, without notifying; None: it was answered."""
        self._present = trouble
        if trouble is None:
            self._said = (None, "")

    def tell(self, trouble: Trouble | None) -> None:
        """Record a call's result, and notify the listener."""
        self.note(trouble)
        if self._listener is not None:
            self._listener(trouble)
