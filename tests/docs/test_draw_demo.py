"""The picture of the demonstration is rebuilt from the terminal output."""

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from autoglm_throttle.types import Priority
from docs import draw_demo
from examples.demo.screen import DemoCounts, ScreenFrame, draw

SVG = "{http://www.w3.org/2000/svg}"


def frame(phase: str, factor: float, limited: int, shed: int) -> list[str]:
    shown = ScreenFrame(
        elapsed_s=1.0,
        length_s=60.0,
        phase=phase,
        offered_rps=9.0,
        open=3,
        state={
            "policy": "adaptive",
            "armed": True,
            "measure": "GPU",
            "utilization_pct": 91.0,
            "power_w": 400.0,
            "tiers": ((85.0, 0.7), (90.0, 0.4), (95.0, 0.0)),
            "table_factor": 0.4,
            "factor": factor,
            "cause": "tier",
            "budget_rps": 196.0,
            "rate_rps": dict.fromkeys(("high", "mid", "low"), 100.0),
            "concurrency": {
                "in_flight": 30,
                "limit": 30.0,
                "service_rps": 170.0,
                "waiting": dict.fromkeys(("high", "mid", "low"), 3),
            },
            "downstream": {},
        },
        recent={priority: DemoCounts(5, limited, shed, 0, 0.1) for priority in Priority},
        span_s=1.0,
    )
    return draw(shown, color=True)


def written(frames: list[list[str]]) -> str:
    """As the live view writes them, with a line before and one after."""
    text = "a title\n"
    for number, lines in enumerate(frames):
        up = f"\x1b[{len(lines)}A" if number else ""
        text += up + "".join(f"\x1b[2K{line}\n" for line in lines)
    return text + "\nphase     priority\n"


def test_every_frame_replaces_the_previous_one() -> None:
    seen = list(draw_demo.screens(written([frame("calm", 1.0, 0, 0), frame("5x", 0.4, 8, 9)])))
    assert len(seen) == 2
    first, last = (draw_demo.plain(screen) for screen in seen)
    assert first.splitlines()[0] == "a title"
    assert "phase calm" in first
    assert "phase 5x" in last
    assert "phase calm" not in last
    assert "\x1b" not in first + last


def test_frame_with_most_rejections_at_reduced_rates_is_chosen() -> None:
    frames = [
        frame("2x", 0.4, 90, 90),
        frame("5x", 0.7, 1, 0),
        frame("5x", 0.4, 3, 4),
        frame("5x", 0.4, 2, 2),
        frame("5x", 0.0, 90, 90),
        frame("recovery", 0.4, 90, 90),
    ]
    chosen = draw_demo.plain(draw_demo.most_rejections(draw_demo.screens(written(frames))))
    assert "3/s       4/s" in chosen


def test_run_without_reduced_rates_has_no_picture() -> None:
    with pytest.raises(ValueError, match="no screen of the phase 5x shows reduced rates"):
        draw_demo.most_rejections(draw_demo.screens(written([frame("5x", 1.0, 8, 9)])))


def test_picture_is_text_in_columns_with_a_title() -> None:
    screen = next(draw_demo.screens(written([frame("5x", 0.4, 3, 4), frame("5x", 0.4, 3, 4)])))
    root = ElementTree.fromstring(draw_demo.svg(screen, "title <of> it"))
    assert root.findtext(f"{SVG}title") == "title <of> it"
    lines = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
    assert lines == draw_demo.plain(screen).splitlines()
    assert [text.get("textLength") for text in root.iter(f"{SVG}text")] == [
        f"{draw_demo.WIDE * len(line):.1f}" for line in lines
    ]
    assert {span.get("class") for span in root.iter(f"{SVG}tspan")} == {"c32", "c33"}


def test_run_on_a_terminal_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = written([frame("5x", 0.4, 3, 4), frame("recovery", 1.0, 0, 0)]) + "2x high 10 6\n"
    (tmp_path / "shown").write_text(shown)
    program = "import sys; assert sys.stdout.isatty(); print(open(sys.argv[1]).read(), end='')"
    monkeypatch.setattr(draw_demo, "COMMAND", (sys.executable, "-c", program, str(tmp_path / "shown")))
    monkeypatch.setattr(draw_demo, "HERE", tmp_path)
    draw_demo.main()
    assert "phase 5x" in (tmp_path / "demo.svg").read_text()
    assert (tmp_path / "demo.txt").read_text().partition("\n\n")[2] == shown.partition("\n\n")[2]


def test_run_with_a_problem_is_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw_demo, "COMMAND", (sys.executable, "-c", "print('why'); exit(1)"))
    with pytest.raises(RuntimeError, match="ended with 1:\nwhy"):
        draw_demo.terminal_output(str(tmp_path))
