"""Targets of vegeta."""

from __future__ import annotations

import base64
import io
import json
import shutil
import subprocess

import pytest

from autoglm_throttle.traffic.convert import vegeta
from autoglm_throttle.traffic.convert.parsed_request import ImportProblems, ParsedRequest
from autoglm_throttle.traffic.record import RecordedRequest

TARGETS = (
    '{"method":"GET","url":"http://goku:9090/path/to/dragon?item=ball"}\n'
    "\n"
    '{"method":"POST","url":"http://goku:9090","header":{"Content-Type":["text/plain"],"X-A":["1","2"]},'
    '"body":"' + base64.b64encode(b"\x00\xff").decode() + '"}'
).encode()


def read(text: bytes) -> tuple[list[ParsedRequest], list[str]]:
    faults = ImportProblems()
    return list(vegeta.read(io.BytesIO(text), faults)), faults.lines()


def test_targets_are_read_with_headers_and_bodies() -> None:
    found, faults = read(TARGETS)
    assert faults == []
    assert [(one.method, one.target, one.body) for one in found] == [
        ("GET", "/path/to/dragon?item=ball", b""),
        ("POST", "/", b"\x00\xff"),
    ]
    assert found[1].headers == [("content-type", "text/plain"), ("x-a", "1"), ("x-a", "2")]
    assert found[1].at_ns is None


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"not json", "line 2: not JSON"),
        (b"[" * 100_000, "line 2: not JSON"),
        (b"[]", "line 2: not a JSON object"),
        (b'{"url":"http://a/"}', "line 2: a target needs method and url"),
        (b'{"method":"GET","url":7}', "line 2: a target needs method and url"),
        (b'{"method":"GET","url":"ftp"}', "line 2: neither an absolute URL nor a path"),
        (b'{"method":"GET","url":"http://a/","body":"%%%"}', "line 2: the body is not base64"),
        (b'{"method":"GET","url":"http://a/","body":"\xc3\xa9"}', "line 2: the body is not base64"),
        (b'{"method":"GET","url":"http://a/","header":["a"]}', "line 2: header must be an object of lists"),
        (
            b'{"method":"GET","url":"http://a/","header":{"a":"b"}}',
            "line 2: header must be an object of lists",
        ),
        (b'{"method":"GET","url":"http://a/","header":{"a":[1]}}', "line 2: the values of a header must be"),
        (b'{"a":"' + b"x" * (1 << 20) + b'"}', "line 2: longer than 1048576 bytes"),
    ],
)
def test_bad_line_is_reported_and_the_others_are_read(line: bytes, why: str) -> None:
    good = b'{"method":"GET","url":"/a"}\n'
    found, faults = read(good + line + b"\n" + good)
    assert len(found) == 2
    assert len(faults) == 1
    assert faults[0].startswith(why)


def test_first_of_many_problems_are_listed() -> None:
    _, faults = read(b"x\n" * 50)
    assert len(faults) == 21
    assert faults[-1] == "and 30 more"


def test_newline_in_a_url_is_escaped() -> None:
    found, _ = read(b'{"method":"GET","url":"http://a/x\\r\\nGET /y\\u00e9#part"}')
    assert [one.target for one in found] == ["/x\r\nGET /y\u00e9"]  # quoted by the redaction


def test_vegeta_reads_the_written_file() -> None:
    entry = RecordedRequest(
        t_s=0, id=0, method="POST", target="/a?b=c", headers=(("content-type", "x"), ("content-length", "2"))
    )
    line = vegeta.write(entry, b"\x00\xff", "http://127.0.0.1:9")
    assert json.loads(line) == {
        "method": "POST",
        "url": "http://127.0.0.1:9/a?b=c",
        "header": {"Content-Type": ["x"]},
        "body": "AP8=",
    }
    program = shutil.which("vegeta")
    if program is None:
        return
    words = [program, "attack", "-format=json", "-rate=1", "-duration=1s", "-timeout=1s"]
    said = subprocess.run(words, input=line, capture_output=True, timeout=120, check=False)
    assert said.returncode == 0, said.stderr
