"""An error text is shown with its own error kind, while that lasts, and without password."""

from __future__ import annotations

from autoglm_throttle.store.error_tracker import StoreErrorTracker
from autoglm_throttle.store.user_limit_store import StoreErrorKind


def test_calls_are_notified_and_probes_only_recorded() -> None:
    news = StoreErrorTracker()
    news.notify(None)  # nobody listens yet
    heard: list[StoreErrorKind | None] = []
    news.listen(heard.append)
    for trouble in (StoreErrorKind.LOST, None):
        news.notify(trouble)
        news.record_result(trouble)
    assert heard == [StoreErrorKind.LOST, None]


def test_text_is_shown_with_its_own_error() -> None:
    news = StoreErrorTracker()
    news.record(StoreErrorKind.LOST, ConnectionResetError("by peer"))
    assert news.text == "", "nobody knows yet what that will come to"
    news.notify(StoreErrorKind.LOST)
    assert news.text == "ConnectionResetError: by peer"
    assert repr(news) == "StoreErrorTracker(lost)"
    news.notify(StoreErrorKind.TIMEOUT)
    assert news.text == "", "silence says nothing"


def test_success_clears_the_text() -> None:
    news = StoreErrorTracker()
    news.record(StoreErrorKind.LOST, EOFError("cut"))
    news.notify(StoreErrorKind.LOST)
    news.record_result(None)
    assert (news.text, repr(news)) == ("", "StoreErrorTracker(none)")
    news.notify(StoreErrorKind.LOST)
    assert news.text == "", "that of yesterday explains nothing today"


def test_error_without_text_is_its_name() -> None:
    news = StoreErrorTracker()
    assert news.record(StoreErrorKind.LOST, EOFError()) == "EOFError"


def test_no_text_shows_a_secret() -> None:
    news = StoreErrorTracker("hush", None, "")
    news.record_result(StoreErrorKind.LOST)
    assert (
        news.record(StoreErrorKind.LOST, EOFError("cannot reach h://u:hush@h"))
        == news.text
        == "EOFError: cannot reach h://u:***@h"
    )
