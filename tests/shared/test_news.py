"""A text of an error is told with its own trouble, while that lasts, and shows no password."""

from __future__ import annotations

from autoglm_throttle.limiting.shared.news import News
from autoglm_throttle.limiting.shared.store import Trouble


def test_each_call_is_told_and_a_probe_is_only_noted() -> None:
    news = News()
    news.tell(None)  # nobody listens yet
    heard: list[Trouble | None] = []
    news.listen(heard.append)
    for trouble in (Trouble.LOST, None):
        news.tell(trouble)
        news.note(trouble)
    assert heard == [Trouble.LOST, None]


def test_a_text_is_told_with_the_trouble_it_came_with() -> None:
    news = News()
    news.said(Trouble.LOST, ConnectionResetError("by peer"))
    assert news.text == "", "nobody knows yet what that will come to"
    news.tell(Trouble.LOST)
    assert news.text == "ConnectionResetError: by peer"
    assert repr(news) == "News(lost)"
    news.tell(Trouble.TIMEOUT)
    assert news.text == "", "silence says nothing"


def test_an_answer_ends_it_for_good() -> None:
    news = News()
    news.said(Trouble.LOST, "cut")
    news.tell(Trouble.LOST)
    news.note(None)
    assert (news.text, repr(news)) == ("", "News(none)")
    news.tell(Trouble.LOST)
    assert news.text == "", "that of yesterday explains nothing today"


def test_an_error_without_words_is_its_name() -> None:
    news = News()
    assert news.said(Trouble.LOST, EOFError()) == "EOFError"


def test_no_text_shows_a_secret() -> None:
    news = News("hush", None, "")
    news.note(Trouble.LOST)
    assert news.said(Trouble.LOST, "cannot reach h://u:hush@h") == news.text == "cannot reach h://u:***@h"
