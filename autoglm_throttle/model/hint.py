"""What resource quotas tell the app about an admitted request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hint:
    """Advice for the app, a router or the engine behind it; nothing here enforces it.

    It was worked out when the request was admitted and does not change while it runs.
    """

    precision: str
    """Label from ``PRECISIONS`` of the variant that should serve the request; empty: no label."""
    compute_priority: int
    """0 for high, 5 for mid, 9 for low: lower is earlier, as vLLM has it. For SGLang pass 9 minus this."""
    memory_bytes: int | None
    """Bytes of the fullest device that its cap left when the request was admitted, itself included, >= 0;
    None: not known, as with an engine, whose cache is told as a share."""
