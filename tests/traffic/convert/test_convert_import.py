"""Files of other programs: format detection and validation."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from autoglm_throttle.traffic.convert import FileFormat, detect_format, open_source
from autoglm_throttle.traffic.errors import TrafficError


@pytest.mark.parametrize("ours", [{"id": -1}, {"client": "x" * 500}, {"body_sha256": "zz"}])
def test_custom_fields_of_a_foreign_file_are_validated(tmp_path: Path, ours: dict[str, object]) -> None:
    element = {
        "startedDateTime": "2024-01-01T00:00:00Z",
        "request": {"method": "GET", "url": "/"},
        "_autoglm": ours,
    }
    path = tmp_path / "a.har"
    path.write_text(json.dumps({"log": {"entries": [element]}}))
    source = open_source(path)
    assert list(source.entries()) == []
    assert source.problem_lines()[0].startswith("request 1: ")


@pytest.mark.parametrize(
    ("begin", "form"),
    [
        ('{"v":1,"kind":"autoglm-throttle-traffic"}\n', FileFormat.JSONL),
        ('{"kind":"autoglm-throttle-traffic","v":1,"log":1}\n', FileFormat.JSONL),
        ('\ufeff\n {"log": {"entries": []}}', FileFormat.HAR),
        ('{"log":{"creator":{"name":"' + "x" * 5000, FileFormat.HAR),
        ("1 ab 5 0\nGET / HTTP/1.1\n", FileFormat.GOR),
        ("1 ab 5\r\nGET / HTTP/1.1\n", FileFormat.GOR),
        ('{"url":"http://h/","method":"GET"}', FileFormat.VEGETA),
        ('{"method":"POST","url":"http://h/","body":"' + "A" * 9000, FileFormat.VEGETA),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_format_is_detected_by_its_start(tmp_path: Path, begin: str, form: FileFormat, packed: bool) -> None:
    path = tmp_path / ("a.gz" if packed else "a")
    path.write_bytes(gzip.compress(begin.encode()) if packed else begin.encode())
    assert detect_format(path) is form


@pytest.mark.parametrize("begin", [b"", b"TIMESTAMP,a\n", b"{", b"[" * 5000, b"\x1f\x8b garbage"])
def test_unknown_format_is_rejected(tmp_path: Path, begin: bytes) -> None:
    path = tmp_path / "a"
    path.write_bytes(begin)
    with pytest.raises(TrafficError, match="none of jsonl, vegeta, gor, har"):
        detect_format(path)


def test_unreadable_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(TrafficError, match="cannot be read"):
        detect_format(tmp_path / "nowhere")
    broken = tmp_path / "a.gz"
    broken.write_bytes(b"not packed")
    with pytest.raises(TrafficError, match="cannot be read"):
        detect_format(broken)
    with pytest.raises(TrafficError, match="cannot be read"):
        open_source(tmp_path / "nowhere", FileFormat.GOR)


def test_truncated_gzip_yields_complete_requests(tmp_path: Path) -> None:
    block = b"1 a%d 5 0\nGET / HTTP/1.1\r\n\r\n\n" + "\U0001f435\U0001f648\U0001f649\n".encode()
    path = tmp_path / "a.gor.gz"
    path.write_bytes(gzip.compress(b"".join(block % n for n in range(10_000)))[:-200])
    source = open_source(path)
    assert len(list(source.entries())) > 100
    assert any("packed data ends in the middle" in line for line in source.problem_lines())
