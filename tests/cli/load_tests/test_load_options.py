"""Options of ``load``: parsing and error texts."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.cli import load
from autoglm_throttle.cli.options import is_loopback, split_url
from autoglm_throttle.cli.run import Search
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.plan import Arrivals, LoadShape, TraceShape, Users
from autoglm_throttle.traffic.report import LIMITS_S
from autoglm_throttle.traffic.request_source import PlannedRequest
from autoglm_throttle.types import Priority

URL = "http://127.0.0.1:8000/v1/predict"
HOST = "http://127.0.0.1:8000"
SHAPE = ("--shape", "fixed:100:2s")


def asked(*words: str, url: str = URL) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    load.add_arguments(parser)
    args = parser.parse_args([url, *words])
    load.read_arguments(args, url)
    return args


def faults(*words: str, url: str = URL) -> tuple[str, ...]:
    with pytest.raises(TrafficError) as caught:
        asked(*words, url=url)
    return tuple(str(caught.value).split("\n"))


def test_defaults_of_all_options() -> None:
    found = asked(*SHAPE)
    assert isinstance(found.offer, LoadShape)
    assert (found.offer.requests, found.arrivals, found.seed) == (200, Arrivals.UNIFORM, 0)
    assert found.planned == (PlannedRequest(target="/v1/predict"),)
    mix = found.priority_mix
    assert (mix.clients, mix.skew, mix.kinds) == (1, 0.0, (1.0,))
    target, options = found.target, found.client
    assert (target.host, target.port, target.base, target.scheme) == ("127.0.0.1", 8000, "", "http")
    assert (target.priority_header, target.identity_header, target.cost_header) == ("x-priority", None, None)
    assert (options.connections, options.max_inflight, options.timeout_s, options.drain_s) == (
        256,
        20_000,
        30,
        30,
    )
    assert found.within == LIMITS_S
    judging = found
    assert (judging.quiet, judging.dry_run, judging.format, found.probes) == (False, False, False, ())
    assert found.slo.terms == ()
    assert found.command == f"autoglm-throttle load {URL} --shape fixed:100:2s"


def test_all_options_are_parsed(tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b"\x00raw")
    found = asked(
        *("--shape", "spike:1:2:3s:4s", "--arrivals", "gamma:0.5", "--mix", "high=50,low=50"),
        *("--clients", "7", "--skew", "1.5", "--seed", "-3", "--method", "PUT"),
        *("--body-file", str(tmp_path / "body"), "--header", "Authorization: Bearer x:y"),
        *("--priority-header", "x-p", "--identity-header", "x-api-key", "--cost-header", "x-cost"),
        *(
            "--connections",
            "9",
            "--max-inflight",
            "10",
            "--timeout",
            "1.5",
            "--drain",
            "500ms",
        ),
        *("--slo", "p99<500ms,error<0.5%", "--within", "high=200ms,low=5"),
        *("--title", "t", "--json", str(tmp_path / "a.json"), "--html", str(tmp_path / "a.html")),
        *("--format", "json", "--quiet", "--dry-run", "--yes", "--watch", str(os.getpid())),
        *("--metrics", "http://127.0.0.1:9", "--insecure", "--server-name", "x"),
        url="https://gpu.example/v1/x?a=b",
    )
    assert (str(found.arrivals), found.priority_mix.mix) == (
        "gamma:0.5",
        {Priority.HIGH: 50, Priority.LOW: 50},
    )
    assert (found.priority_mix.clients, found.priority_mix.skew, found.seed) == (7, 1.5, -3)
    request = PlannedRequest(method="PUT", target="/v1/x?a=b", body=b"\x00raw")
    assert found.planned == (request,)
    target, options = found.target, found.client
    assert target.headers == (("authorization", "Bearer x:y"),)
    assert (target.scheme, target.host, target.port) == ("https", "gpu.example", 443)
    assert target.tls.verify is False
    assert (target.priority_header, target.identity_header, target.cost_header) == (
        "x-p",
        "x-api-key",
        "x-cost",
    )
    assert target.tls.server_name == "x"
    assert (options.connections, options.max_inflight, options.timeout_s, options.drain_s) == (
        9,
        10,
        1.5,
        0.5,
    )
    assert found.within == {Priority.HIGH: 0.2, Priority.MID: 1.0, Priority.LOW: 5.0}
    assert [term.text for term in found.slo.terms] == ["p99<500ms", "error<0.5%"]
    assert (found.json, found.html) == (
        tmp_path / "a.json",
        tmp_path / "a.html",
    )
    assert (found.format, found.quiet, found.dry_run) == (
        True,
        True,
        True,
    )
    assert (found.title, [look.name for look in found.probes]) == (
        "t",
        [f"process {os.getpid()}", "metrics of 127.0.0.1:9"],
    )


def test_other_load_shapes_are_parsed() -> None:
    assert isinstance(asked("--shape", "users:5:2s").offer, Users)
    traced = asked("--shape", "trace:x.csv", "--speed", "60")
    assert (traced.offer, traced.speed, traced.rate) == (TraceShape("x.csv"), 60.0, None)
    assert asked("--shape", "trace:x.csv", "--rate", "5000").rate == 5000.0
    search = asked("--find-peak", "100:5000", "--slo", "p99<1s")
    assert search.offer == Search(100.0, 5000.0, 10.0)
    assert asked("--find-peak", "1:2:500ms", "--slo", "p99<1s").offer == Search(1.0, 2.0, 0.5)
    assert asked(*SHAPE, "--within", "300ms").within == dict.fromkeys(Priority, 0.3)


ALL_WRONG = (
    *("--shape", "step:1", "--arrivals", "x", "--mix", "high=1", "--clients", "0", "--skew", "-1"),
    *("--seed", "x", "--speed", "0", "--rate", "x", "--find-peak", "5:1", "--method", "a b"),
    *("--body-file", "/nowhere/at/all", "--header", "nonsense", "--header", "Host: x"),
    *(
        "--connections",
        "0",
        "--max-inflight",
        "1.5",
        "--timeout",
        "0",
        "--drain",
        "inf",
    ),
    *("--slo", "p98>", "--within", "top=1", "--json", "/nowhere/a", "--html", "/", "--format", "xml"),
    *("--watch", "0", "--metrics", "x", "--ca-file", "/nowhere/ca"),
)


def test_all_wrong_options_are_listed_together() -> None:
    found = faults(*ALL_WRONG, url="https://127.0.0.1/x")
    options = [fault.partition(":")[0] for fault in found]
    wrong = [word for word in ALL_WRONG if word.startswith("--")]
    # A method is told with the route it makes.
    assert set(options) >= {word for word in wrong if word != "--method"} | {"--route"}
    assert options.count("--header") == 2


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ((), "--shape: is required, such as fixed:100:10s"),
        ((*SHAPE, "--find-peak", "1:2", "--slo", "p99<1s"), "--find-peak: creates its own shapes"),
        (("--find-peak", "1:2"), "--find-peak: needs --slo"),
        (("--find-peak", "1", "--slo", "p99<1s"), "--find-peak: '1' is not LOW:HIGH"),
        ((*SHAPE, "--speed", "2"), "--speed: applies only to trace:PATH"),
        ((*SHAPE, "--rate", "2"), "--rate: applies only to trace:PATH"),
        (("--shape", "trace:x", "--rate", "2", "--speed", "2"), "--rate: sets the speed"),
        (
            ("--shape", "users:5:2s", "--arrivals", "poisson"),
            "--arrivals: users start after their previous response",
        ),
        (
            (*SHAPE, "--body", "x", "--body-file", "/dev/null"),
            "--body-file: use either --body or --body-file",
        ),
        ((*SHAPE, "--requests", "/nowhere"), "--requests: /nowhere: No such file"),
        ((*SHAPE, "--route", "x=1"), "--route: 'x=1' is not METHOD PATH=SHARE"),
        ((*SHAPE, "--route", "POST /x=0"), "--route: '0' must be a finite number above 0"),
        ((*SHAPE, "--route", "POST /x y=1"), "--route: 'POST /x y=1' is not METHOD"),
        ((*SHAPE, "--within", "high=0"), "--within: '0' must be a finite duration above 0"),
        ((*SHAPE, "--watch", "999999999"), "--watch: there is no process 999999999"),
        ((*SHAPE, "--clients", "65537"), "--clients: clients must be 1..65536"),
    ],
)
def test_each_wrong_option_yields_one_problem(words: tuple[str, ...], fault: str) -> None:
    (found,) = faults(*words)
    assert found.startswith(fault)


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("http://gpu.example/x", "gpu.example is not this machine: add --yes"),
        ("ftp://127.0.0.1", "must begin with http:// or https://"),
        ("127.0.0.1:8000", "must begin with http:// or https://"),
        ("http://me:secret@127.0.0.1/", "must not hold a user or a password"),
        ("http://127.0.0.1:70000/x", "no URL"),
        ("http://[::1/x", "no URL"),
        ("http://127.0.0.1/x#y", "must end with its path"),
    ],
)
def test_urls_that_cannot_be_loaded(url: str, fault: str) -> None:
    found = faults(*SHAPE, url=url)
    assert any(one.startswith("URL: ") and fault in one for one in found)
    assert "secret" not in " ".join(found)


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("LOCALHOST.", True),
        ("localhost.example", False),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("", False),
        ("2130706433", False),
    ],
)
def test_loopback_hosts_are_recognized(host: str, here: bool) -> None:
    assert is_loopback(host) is here


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        (HOST, (HOST, "/")),
        (f"{HOST}/", (HOST, "/")),
        (f"{HOST}/a/b?c=d", (HOST, "/a/b?c=d")),
        (f"{HOST}?c=d", (HOST, "/?c=d")),
    ],
)
def test_url_is_split_into_base_and_target(url: str, parts: tuple[str, str]) -> None:
    assert split_url(url) == parts


def test_routes_are_relative_to_the_url() -> None:
    found = asked(
        *SHAPE,
        *("--route", "POST /a=70", "--route", "GET /b?c=d=30", "--route", "/c"),
        url=f"{HOST}/base/",
    )
    assert found.target.base == "/base"
    assert found.priority_mix.kinds == (70.0, 30.0, 1.0)
    assert found.planned == (
        PlannedRequest(target="/a"),
        PlannedRequest(method="GET", target="/b?c=d", headers=(), body=b""),
        PlannedRequest(target="/c"),
    )


def test_body_is_sent_with_any_single_method() -> None:
    (request,) = asked(*SHAPE, "--method", "DELETE", "--body", '{"a": "ü"}').planned
    assert request.body == '{"a": "ü"}'.encode()
    assert request.headers == (("content-type", "application/json"),)


LINES = """\
{"method": "GET", "target": "/a", "share": 3, "name": "first"}

{"target": "/b", "body": {"tokens": 5}, "headers": {"X-A": "b", "content-type": "a/b"}, "cost": 2.5}
{"body": "text"}
"""
TOML = """\
[[requests]]
method = "GET"
target = "/a"
share = 3
name = "first"

[[requests]]
target = "/b"
body = {tokens = 5}
headers = {X-A = "b", content-type = "a/b"}
cost = 2.5

[[requests]]
body = "text"
"""


@pytest.mark.parametrize(("name", "content"), [("r.jsonl", LINES), ("r.toml", TOML)])
def test_requests_of_a_file(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    found = asked(*SHAPE, "--requests", str(tmp_path / name), url=f"{HOST}/base")
    assert found.target.base == "/base"
    assert found.priority_mix.kinds == (3.0, 1.0, 1.0)
    fields = (("x-a", "b"), ("content-type", "a/b"))
    assert found.planned == (
        PlannedRequest(method="GET", target="/a", headers=(), body=b"", name="first"),
        PlannedRequest(target="/b", headers=fields, body=b'{"tokens": 5}', cost=2.5),
        PlannedRequest(target="/", body=b"text"),
    )


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("r.jsonl", "", ["contains no requests"]),
        (
            "r.jsonl",
            'x\n[]\n{"a": 1}',
            ["line 1: not an object", "line 2: not an object", "line 3: unknown a"],
        ),
        ("r.jsonl", '{"share": 0}\n{"cost": true}\n{"share": "1"}', ["share is not", "line 2: cost is not"]),
        (
            "r.jsonl",
            '{"method": 1}\n{"target": "x"}',
            ["method is not a string", "does not begin with a slash"],
        ),
        (
            "r.jsonl",
            '{"headers": []}\n{"headers": {"a": 1}}',
            ["line 1: headers is not", "line 2: headers is not"],
        ),
        ("r.jsonl", '{"target": "/a b"}\n{"headers": {"a": "\\n"}}', ["without blanks", "value of a"]),
        ("r.jsonl", "[" * 100_000, ["line 1: not an object"]),
        ("r.toml", "x", ["not TOML"]),
        ("r.toml", "x = 1", ["must contain only [[requests]]"]),
        ("r.toml", "[[requests]]\ncost = -1", ["request 1: cost is not"]),
    ],
)
def test_faults_of_a_file_of_requests(name: str, content: str, told: list[str], tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    (found,) = faults(*SHAPE, "--requests", str(tmp_path / name))
    assert found.startswith("--requests: ")
    for text in told:
        assert text in found


def test_request_options_conflict_with_a_requests_file(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text(LINES)
    others = ("--method", "GET", "--body", "x", "--body-file", "x", "--route", "/x=1")
    found = faults(*SHAPE, "--requests", str(tmp_path / "r.jsonl"), *others)
    assert len(found) == 4
    assert "--requests: defines the whole request: leave --body-file out" in found


@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=8, max_size=20))
def test_stored_command_contains_no_secret(secret: str) -> None:
    secret = f"s3cr3t{secret}"
    found = asked(
        *SHAPE,
        *(f"--header=authorization: {secret}", f"--header=x-key:{secret}", f"--body={secret}"),
        "--metrics=http://me:s3cr3t-of-mine@127.0.0.1:1/metrics",
    )
    assert "s3cr3t" not in found.command
    assert "--header 'authorization: ***' --header 'x-key: ***'" in found.command


def test_a_body_goes_out_only_with_methods_that_take_one() -> None:
    routes = ("--route", "POST /a", "--route", "GET /b", "--body", "x")
    assert [request.body for request in asked(*SHAPE, *routes, url=HOST).planned] == [
        b"x",
        b"",
    ]
    told = ("--body: no route sends a body: omit it, or define it with --requests",)
    assert faults(*SHAPE, "--route", "GET /b", "--body", "x", url=HOST) == told


@pytest.mark.parametrize("text", ["", " "])
def test_empty_objective_is_rejected(text: str) -> None:
    (fault,) = faults(*SHAPE, "--slo", text)
    assert fault.startswith("--slo: contains no objective")


@pytest.mark.parametrize("url", ["127.0.0.1:8001/generate", "localhost:8001", "localhost"])
def test_a_url_without_its_scheme(url: str) -> None:
    assert faults(*SHAPE, url=url) == (
        f"URL: {url!r} must begin with http:// or https://: did you mean http://{url}?",
    )
