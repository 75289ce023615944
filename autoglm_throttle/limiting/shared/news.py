"""What a store's calls have told: who hears of it, and the text of the trouble that there is now."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from autoglm_throttle.limiting.shared.store import Trouble


class News:
    """One store's news, from all its event loops.

    A text is told only with the trouble that it came with, and only until an answer comes: a store that is
    lost to silence must not be explained by the error of yesterday.

    Args:
        secrets: what no text may show; empty ones say nothing.
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
        """What the server or its client said of the present trouble; empty if there is none."""
        trouble, text = self._said
        return text if trouble is not None and trouble is self._present else ""

    def listen(self, listener: Callable[[Trouble | None], None]) -> None:
        """Have each `tell` passed on."""
        self._listener = listener

    def said(self, trouble: Trouble, error: BaseException | str) -> str:
        """Keep the text of an error, until it is known whether it is what the store is in trouble with."""
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}".removesuffix(": ")
        for secret in self._secrets:
            text = text.replace(secret, "***")
        self._said = (trouble, text)
        return text

    def note(self, trouble: Trouble | None) -> None:
        """Take in how a call went, a probe's for instance, and tell nobody; None: it was answered."""
        self._present = trouble
        if trouble is None:
            self._said = (None, "")

    def tell(self, trouble: Trouble | None) -> None:
        """Take in how a call went, and tell it."""
        self.note(trouble)
        if self._listener is not None:
            self._listener(trouble)
