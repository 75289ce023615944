"""Replaces request bodies that were not recorded."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.record.recorded_request import RecordedRequest

FILLED_AT_MOST = 64 << 20
"""Most bytes of spaces for one body, like the limit for answers. A recorded length is not trusted."""


REJECTED_DECISIONS = ("limited", "shed", "degraded")
"""Decisions after which the body was not read."""


@dataclass(frozen=True, slots=True)
class Fill:
    """The replacement for bodies that were not recorded.

    Raises:
        TrafficError: both replacements were requested.
    """

    body: bytes | None = None
    """The same body for all requests."""
    spaces: bool = False
    """Whether to send spaces of the recorded length."""

    def __post_init__(self) -> None:
        if self.body is not None and self.spaces:
            raise TrafficError("missing bodies are filled from a file or with spaces, not both")

    def of(self, entry: RecordedRequest) -> bytes | None:
        """Return the body to send; None if it was not recorded and has no replacement.

        Raises:
            TrafficError: the recorded length exceeds `FILLED_AT_MOST`.
        """
        if entry.body is not None or not entry.body_len:
            return entry.body or b""
        if not self.spaces:
            return self.body
        if entry.body_len > FILLED_AT_MOST:
            raise TrafficError(f"request {entry.id}: a body of {entry.body_len} bytes is not filled")
        return b" " * entry.body_len


class MissingBodies:
    """Counts bodies without a replacement, and the reasons why they are missing.

    Args:
        importing: whether the file has bodies that the conversion leaves out.
    """

    def __init__(self, *, importing: bool = False) -> None:
        self._importing = importing
        self._methods: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()

    def add(self, entry: RecordedRequest) -> None:
        """Count a request without its body."""
        self._methods[entry.method] += 1
        self._reasons[_missing_reason(entry)] += 1

    def raise_if_any(self) -> None:
        """Check that no body is missing.

        Raises:
            TrafficError: some are missing; the message lists methods and reasons.
        """
        if not self._methods:
            return
        methods, reasons = (
            ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
            for counts in (self._methods, self._reasons)
        )
        whole = ", --bodies full to write those of the file" if self._importing else ""
        raise TrafficError(
            f"{self._methods.total()} requests have a body that was not recorded ({methods}; {reasons}):"
            f" give one with --body FILE, or --fill for spaces of the same length{whole}"
        )


def _missing_reason(entry: RecordedRequest) -> str:
    if entry.body_sha256:
        return "as a hash only"
    if entry.decision in REJECTED_DECISIONS:
        return "rejected before the body was read"
    return "not recorded or not read to the end"
