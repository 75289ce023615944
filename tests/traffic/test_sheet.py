"""The sheet of a run: each line filled in once, and no service can make it grow without end."""

from __future__ import annotations

from math import isnan

import pytest

from autoglm_throttle.traffic.ending import Ending
from autoglm_throttle.traffic.sheet import MOST_REASONS, OTHERS, Sheet


def test_a_request_ends_once() -> None:
    sheet = Sheet(2)
    sheet.close(0, Ending.OK, 0.5)
    sheet.leave_out(1)
    for index in (0, 1):
        with pytest.raises(RuntimeError, match=f"request {index} ended twice"):
            sheet.close(index, Ending.TIMEOUT, 1.0)
        with pytest.raises(RuntimeError, match=f"request {index} ended twice"):
            sheet.leave_out(index)
    assert sheet.balanced


def test_a_sheet_grows_line_by_line() -> None:
    sheet = Sheet()
    assert [sheet.add(), sheet.add()] == [0, 1]
    assert len(sheet) == 2
    assert not sheet.balanced
    assert not sheet.is_closed(1)
    assert isnan(sheet.first_byte_s[1])


def test_refusals_share_their_reasons_and_keep_their_promise() -> None:
    sheet = Sheet(3)
    for index, promised_s in enumerate((1.5, None, 2.0)):
        sheet.refused(index, "queue:slow", promised_s)
    assert sheet.stated == ["", "queue:slow"]
    assert list(sheet.reasons) == [1, 1, 1]
    assert sheet.promised_s[0] == 1.5
    assert isnan(sheet.promised_s[1])


def test_a_service_with_a_reason_for_each_request_does_not_fill_the_sheet() -> None:
    sheet = Sheet(MOST_REASONS + 50)
    for index in range(len(sheet)):
        sheet.refused(index, f"request {index}", None)
    assert len(sheet.stated) == MOST_REASONS + 1
    assert sheet.stated[sheet.reasons[-1]] == sheet.stated[sheet.reasons[-2]] == OTHERS
    assert sheet.stated[sheet.reasons[0]] == "request 0"
