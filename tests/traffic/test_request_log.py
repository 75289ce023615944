"""The request log: each entry is written once, and its size is bounded for any service."""

from __future__ import annotations

from math import isnan

import pytest

from autoglm_throttle.traffic.request_log import MOST_REASONS, OTHER_REASONS, RequestLog, RequestResult


def test_a_request_ends_once() -> None:
    sheet = RequestLog(2)
    sheet.close(0, RequestResult.OK, 0.5)
    sheet.skip(1)
    for index in (0, 1):
        with pytest.raises(RuntimeError, match=f"request {index} ended twice"):
            sheet.close(index, RequestResult.TIMEOUT, 1.0)
        with pytest.raises(RuntimeError, match=f"request {index} ended twice"):
            sheet.skip(index)
    assert sheet.balanced


def test_request_log_grows_by_one_request() -> None:
    sheet = RequestLog()
    assert [sheet.add(), sheet.add()] == [0, 1]
    assert len(sheet) == 2
    assert not sheet.balanced
    assert not sheet.is_closed(1)
    assert isnan(sheet.first_byte_s[1])


def test_rejections_share_reasons_and_keep_retry_after() -> None:
    sheet = RequestLog(3)
    for index, promised_s in enumerate((1.5, None, 2.0)):
        sheet.record_rejection(index, "queue:slow", promised_s)
    assert sheet.reason_texts == ["", "queue:slow"]
    assert list(sheet.reasons) == [1, 1, 1]
    assert sheet.promised_s[0] == 1.5
    assert isnan(sheet.promised_s[1])


def test_distinct_rejection_reasons_are_bounded() -> None:
    sheet = RequestLog(MOST_REASONS + 50)
    for index in range(len(sheet)):
        sheet.record_rejection(index, f"request {index}", None)
    assert len(sheet.reason_texts) == MOST_REASONS + 1
    assert sheet.reason_texts[sheet.reasons[-1]] == sheet.reason_texts[sheet.reasons[-2]] == OTHER_REASONS
    assert sheet.reason_texts[sheet.reasons[0]] == "request 0"
