"""What stands in for a body that was not kept."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.record.entry import Entry

FILLED_AT_MOST = 64 << 20
"""Bytes of spaces for one body: as long as an answer may be. A recording states lengths and proves none."""


REFUSED = ("limited", "rejected", "degraded")
"""Decisions after which nobody reads the body."""


@dataclass(frozen=True, slots=True)
class Fill:
    """What stands in for a body that was not kept.

    Raises:
        TrafficError: both ways were asked for.
    """

    body: bytes | None = None
    """The same for all."""
    spaces: bool = False
    """Spaces of the recorded length."""

    def __post_init__(self) -> None:
        if self.body is not None and self.spaces:
            raise TrafficError("missing bodies are filled from a file or with spaces, not both")

    def of(self, entry: Entry) -> bytes | None:
        """The body to send; None where it was not kept and nothing stands in for it.

        Raises:
            TrafficError: the recorded length is more than any body may have.
        """
        if entry.body is not None or not entry.body_len:
            return entry.body or b""
        if not self.spaces:
            return self.body
        if entry.body_len > FILLED_AT_MOST:
            raise TrafficError(f"request {entry.id}: a body of {entry.body_len} bytes is not filled")
        return b" " * entry.body_len


class Missing:
    """Bodies that nothing stands in for, and why they are not there.

    Args:
        importing: whether the file has bodies that the conversion leaves out.
    """

    def __init__(self, *, importing: bool = False) -> None:
        self._importing = importing
        self._methods: Counter[str] = Counter()
        self._whys: Counter[str] = Counter()

    def add(self, entry: Entry) -> None:
        """One more request without its body."""
        self._methods[entry.method] += 1
        self._whys[_why(entry)] += 1

    def end(self) -> None:
        """Say which they are.

        Raises:
            TrafficError: there were some.
        """
        if not self._methods:
            return
        methods, whys = (
            ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
            for counts in (self._methods, self._whys)
        )
        whole = ", --bodies full to write those of the file" if self._importing else ""
        raise TrafficError(
            f"{self._methods.total()} requests have a body that was not kept ({methods}; {whys}):"
            f" give one with --body FILE, or --fill for spaces of the same length{whole}"
        )


def _why(entry: Entry) -> str:
    if entry.body_sha256:
        return "as a hash only"
    if entry.decision in REFUSED:
        return "refused before the body was read"
    return "not recorded or not read to the end"
