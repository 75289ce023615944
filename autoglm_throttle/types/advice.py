"""Resource advice for admitted requests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ResourceAdvice:
    """Advice for the app, a router or the engine behind it; nothing here enforces it.

    It is computed when the request is admitted and does not change while it runs.
    """

    precision: str
    """Label from ``precisions`` of the variant that should serve the request; empty: no label."""
    compute_priority: int
    """0 for high, 5 for mid, 9 for low: lower is earlier, as in vLLM. For SGLang pass 9 minus this."""
    memory_bytes: int | None
    """Bytes left under the cap of the fullest device at admission, this request included, >= 0;
    None: not known, as with an engine that reports its cache as a share.
    """
