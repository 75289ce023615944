"""The metric of a recorder of traffic."""

from __future__ import annotations

from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from autoglm_throttle.observe import metrics_app
from autoglm_throttle.observe.metric import PREFIX
from autoglm_throttle.testing import throttle_for_tests
from autoglm_throttle.traffic.record import Recorder, RecorderSettings
from tests.observe.scraping import scraped

NAME = PREFIX + "recorder_records"


async def test_written_and_dropped_records_are_exported(tmp_path: Path) -> None:
    recorder = Recorder(RecorderSettings(path=tmp_path / "traffic.jsonl"))
    recorder.start()
    try:
        writer = recorder.writer()
        assert writer is not None
        writer.written, writer.dropped = 7, 2
        app = httpx.ASGITransport(metrics_app(throttle_for_tests(), recorder))
        async with httpx.AsyncClient(transport=app, base_url="http://service") as client:
            text = (await client.get("/")).text
    finally:
        recorder.close()
    (family,) = (one for one in text_string_to_metric_families(text) if one.name == NAME)
    reported = {sample.labels["result"]: sample.value for sample in family.samples}
    assert reported == {"written": 7, "dropped": 2}


def test_without_a_recorder_there_is_no_series() -> None:
    assert scraped(throttle_for_tests())[NAME].samples == []
