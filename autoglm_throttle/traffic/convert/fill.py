"""What stands in for a body that was not kept."""

from __future__ import annotations

from dataclasses import dataclass

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.record.entry import Entry

FILLED_AT_MOST = 64 << 20
"""Bytes of spaces for one body: as long as an answer may be. A recording states lengths and proves none."""


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


def missing(count: int) -> TrafficError:
    """What to say when bodies are missing."""
    return TrafficError(
        f"{count} requests have a body that was not kept: give one with --body FILE,"
        f" or --fill for spaces of the same length"
    )
