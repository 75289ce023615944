"""``load`` rejects contradictory options and masks secrets."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.cli.options import run_command
from autoglm_throttle.traffic.generator import ClientOptions
from tests.cli.load_tests.conftest import Run
from tests.cli.load_tests.test_load_options import HOST, SHAPE, asked, faults

VALUES = st.text("abcXYZ019%._~:/?@!$'()*+,;-", min_size=1).map("s3cr3t{}".format)


@given(VALUES, VALUES)
def test_query_values_are_masked_in_the_command(first: str, second: str) -> None:
    route = f"GET /b?x={first}&y={second}"
    found = asked(*SHAPE, "--route", f"{route}=2", "--route", f"/c?{second}")
    assert found.planned[0].target == f"/b?x={first}&y={second}"
    assert "s3cr3t" not in found.command
    assert "--route 'GET /b?x=***&y=***=2' --route '/c?***'" in found.command
    alone = asked(*SHAPE, url=f"{HOST}/a?token={first}&{second}")
    assert alone.planned[0].target == f"/a?token={first}&{second}"
    assert alone.command == f"autoglm-throttle load '{HOST}/a?token=***&***' --shape fixed:100:2s"


@pytest.mark.parametrize("route", ["GET /b?x=1", "/b?x=1&y=2", "/b?x=1&y", "/b?x=1=2&y=3"])
def test_query_value_is_not_parsed_as_a_share(route: str) -> None:
    (found,) = faults(*SHAPE, "--route", route)
    assert found.startswith("--route: a path with query values must end with its share")


@pytest.mark.parametrize(
    ("route", "target", "share"),
    [
        ("/b?x=1=2", "/b?x=1", 2.0),
        ("/b?x==3", "/b?x=", 3.0),
        ("/b?flag", "/b?flag", 1.0),
        ("/b=5", "/b", 5.0),
    ],
)
def test_unambiguous_share_is_parsed(route: str, target: str, share: float) -> None:
    found = asked(*SHAPE, "--route", route)
    assert (found.planned[0].target, found.priority_mix.kinds) == (target, (share,))


@pytest.mark.parametrize("field", ["share", "cost"])
def test_number_too_large_for_a_float_is_rejected(field: str, tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text(f'{{"{field}": 1{"0" * 400}}}')
    (found,) = faults(*SHAPE, "--requests", str(tmp_path / "r.jsonl"))
    assert found.endswith(f"line 1: {field} is not a finite number above 0")


def search(slo: str, *words: str, peak: str = "100:200") -> tuple[str, ...]:
    return faults("--find-peak", peak, "--slo", slo, *words)


def test_objectives_that_no_peak_search_can_meet_are_rejected() -> None:
    (segment,) = search("p99@peak<1s,error@1<1%")
    assert segment == "--slo: p99@peak<1s: a trial of --find-peak has one segment: leave @peak out"
    (rate,) = search("rps>=100,goodput.rps>99,rps<1000")
    assert rate.startswith("--slo: rps>=100: fails at 100/s, where the search starts")
    (high,) = search("rps.high>=10,rps.low>=59")
    assert high.startswith("--slo: rps.high>=10: ")
    (none,) = search("rps.mid>0", "--mix", "high=100")
    assert none.startswith("--slo: rps.mid>0: ")
    (much,) = search("p99<1s", peak="1:1000000:51s")
    assert much == "--find-peak: 51000000 requests, but a plan can hold only 50000000"


@pytest.mark.parametrize("other", ["r.x", "./r.x", "link/r.x"])
def test_two_reports_need_two_files(other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("link").symlink_to(tmp_path)
    (found,) = faults(*SHAPE, "--json", "r.x", "--html", other)
    assert found == f"--html: {Path(other)} is the file of --json: use another file"


@pytest.mark.parametrize(
    ("error", "told"),
    [(OSError(28, "No space left"), "[Errno 28] No space left"), (MemoryError(), "out of memory")],
)
def test_errors_of_the_operating_system_exit_with_2(
    error: Exception, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> int:
        raise error

    assert run_command("load", fail) == 2
    assert capsys.readouterr().err == f"autoglm-throttle load: {told}\n"


def test_unexpected_exception_exits_with_2(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr(ClientOptions, "__init__", fail)
    done = run("load", HOST, *SHAPE)
    assert (done.status, done.out) == (2, "")
    assert "KeyError: 'x'" in done.err
    assert done.err.endswith("this is a bug in autoglm-throttle; please report it\n")


def test_broken_pipe_is_passed_on() -> None:
    def left() -> int:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run_command("record", left)
