"""Assertions on responses: admitted by the throttle, or rejected by one of its limits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from autoglm_throttle.asgi.dialects import STATUS, reason_of
from autoglm_throttle.types import LIMITED, LimitedReason, Reason, ShedReason

LIMITED_STATUS = frozenset(STATUS[reason] for reason in LIMITED)
SHED_STATUS = frozenset(STATUS[reason] for reason in Reason if reason in STATUS and reason not in LIMITED)


def assert_admitted(response: object) -> None:
    """Assert that the throttle admitted the request, independent of the app's response.

    Args:
        response: a response of httpx, of Starlette's ``TestClient`` or any other object with
            ``status_code`` or ``status``, the ASGI messages sent, or just the status.

    Raises:
        AssertionError: it was rejected; the text names the limit.
        TypeError: no status can be found in ``response``.
    """
    status, body = _read(response)
    if _is_rejected(status, body):
        raise AssertionError(f"expected the request to be admitted, got {_text(status, body)}")


def assert_rejected(
    response: object, reason: Reason | LimitedReason | ShedReason | None = None, *, detail: str | None = None
) -> None:
    """Assert that the throttle rejected the request: 429, 413 or 503.

    A response with one of these statuses that the app itself wrote does not pass.

    Args:
        response: as for `assert_admitted`.
        reason: the reason, such as ``user`` or ``gpu``; None: any.
        detail: the finer reason, such as ``user:user-60s`` or ``queue:timeout``; None: any.

    Raises:
        AssertionError: it was admitted, or rejected for another reason.
        TypeError: no status can be found in ``response``.
    """
    _assert_status(response, LIMITED_STATUS | SHED_STATUS, "rejected (429, 413, 503)", reason, detail)


def assert_limited(
    response: object, reason: Reason | LimitedReason | None = None, *, detail: str | None = None
) -> None:
    """Assert that the caller's own limit rejected the request: 429, or 413 if it can never fit.

    Args:
        response: as for `assert_admitted`.
        reason: ``rate``, ``user`` or ``too_large``; None: any of them.
        detail: as for `assert_rejected`.

    Raises:
        AssertionError: it was admitted, or rejected for another reason.
        TypeError: no status can be found in ``response``.
    """
    _assert_status(response, LIMITED_STATUS, "limited (429, 413)", reason, detail)


def assert_shed(
    response: object, reason: Reason | ShedReason | None = None, *, detail: str | None = None
) -> None:
    """Assert that the service shed the request for lack of capacity: 503.

    Args:
        response: as for `assert_admitted`.
        reason: ``gpu``, ``queue``, ``breaker`` or ``store``; None: any of them.
        detail: as for `assert_rejected`.

    Raises:
        AssertionError: it was admitted, or rejected for another reason.
        TypeError: no status can be found in ``response``.
    """
    _assert_status(response, SHED_STATUS, "shed (503)", reason, detail)


def _assert_status(
    response: object, statuses: frozenset[int], expected: str, reason: str | None, detail: str | None
) -> None:
    status, body = _read(response)
    text = _text(status, body)
    if status not in statuses or not _is_rejected(status, body):
        raise AssertionError(f"expected the request to be {expected}, got {text}")
    full = reason_of(_document(body))
    for kind, wanted, actual in (("reason", reason, full.partition(":")[0]), ("detail", detail, full)):
        if wanted is not None and wanted != actual:
            raise AssertionError(f"expected the {kind} {wanted}, got {full or 'none'}: {text}")


def _is_rejected(status: int, body: bytes | None) -> bool:
    """Whether the throttle wrote the response; an app may answer 503 for reasons of its own."""
    is_ours = body is None or reason_of(_document(body)) != ""
    return status in LIMITED_STATUS | SHED_STATUS and is_ours


def _document(body: bytes | None) -> Mapping[str, Any]:
    try:
        document = json.loads(body or b"")
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _text(status: int, body: bytes | None) -> str:
    document = _document(body)
    error = document.get("error")
    text = error.get("message") if isinstance(error, dict) else document.get("detail")
    text = text or (body or b"")[:200].decode("utf-8", "replace")
    kind = "from the throttle" if _is_rejected(status, body) else "from the app"
    return f"{status} {kind}" + (f": {text}" if text else "")


def _read(response: object) -> tuple[int, bytes | None]:
    """Return status and body of a response from any client library; no body if only the status is known."""
    if isinstance(response, int):
        return response, None
    if isinstance(response, Sequence) and not isinstance(response, (str, bytes)):
        start = next((one for one in response if one["type"].endswith("http.response.start")), None)
        if start is None:
            raise TypeError("no http.response.start is among the messages")
        parts = [one.get("body", b"") for one in response if one["type"].endswith("http.response.body")]
        return start["status"], b"".join(parts)
    for name in ("status_code", "status"):
        status = getattr(response, name, None)
        if isinstance(status, int):
            body = getattr(response, "content", getattr(response, "body", None))
            return status, body if isinstance(body, bytes) else None
    raise TypeError(f"no status can be found in {response!r}")
