"""The tables of figures are made from what was kept, and from nothing else."""

import pytest

from benchmarks import figures

MACHINE = {
    "date": "2026-01-02",
    "processor": "a processor",
    "cores": 2,
    "python": "3.11.7",
    "versions": {
        "autoglm-throttle": "0.1.0",
        "asgi-ratelimit": "0.10.0",
        "limits": "5.8.0",
        "slowapi": "0.1.10",
    },
}
COSTS = {name: {"us": 5.0 + number, "ours_over_it": 0.5} for number, name in enumerate(figures.PEERS)}
PEERS = {**MACHINE, "added_us": COSTS, "refused_us": COSTS, "memory_mb": {"autoglm_throttle": 22.34}}
SERVE = {
    **MACHINE,
    "date": "2026-01-03",
    "capacity_kept": {"fastapi_ours": 0.912, "asgi_ours": 0.8, "asgi_limits": 0.7},
}


def test_a_row_for_each_library_and_the_machine_below() -> None:
    lines = figures.peers_table(PEERS, SERVE).splitlines()
    assert lines[2] == "| autoglm-throttle 0.1.0 | 5.0 µs | 5.0 µs | 22 MB | 91 % | 80 % |"
    assert lines[4] == (
        "| limits 5.8.0, fixed window | 7.0 µs (ours: 0.50 of it) | 7.0 µs (ours: 0.50 of it) "
        "| - | - | 70 % |"
    )
    assert (
        lines[6] == "| slowapi 0.1.10 | 9.0 µs (ours: 0.50 of it) | 9.0 µs (ours: 0.50 of it) | - | - | - |"
    )
    assert "2026-01-02, a processor, 2 cores, Python 3.11.7" in lines[8]
    assert "2026-01-03" in lines[9]


def test_the_demonstration_is_told_by_its_phases_of_overload() -> None:
    rows = ["phase priority", "calm high 9 9", "2x high 200 90", "2x low 9 9", "5x high 300 60", "all 9 9"]
    kept = "\n".join(["a machine", "", *rows, "", "rate: what it means", "", "What happened.", ""])
    assert figures.high_shares(kept) == {"2x": 45.0, "5x": 20.0}
    told = figures.demo_part(kept)
    assert "```text\nphase priority\n2x high 200 90\n2x low 9 9\n5x high 300 60\n```" in told
    assert "> What happened.\n" in told
    assert "Of the requests of high priority 45 % at 2x and 20 % at 5x were served." in told
    assert "a machine.)" in told


def test_a_part_is_filled_between_its_marks_alone() -> None:
    text = "a\n<!-- one: made -->\nold\n<!-- /one -->\nb\n<!-- two: made -->\n<!-- /two -->\n"
    filled = figures.fill(text, "one", "new\\1")
    assert filled == text.replace("old\n", "\nnew\\1\n\n")
    assert figures.fill(filled, "one", "new\\1") == filled


@pytest.mark.parametrize("text", ["", "<!-- one: x -->\n<!-- /one -->\n" * 2])
def test_a_part_must_be_there_once(text: str) -> None:
    with pytest.raises(ValueError, match="parts are named one"):
        figures.fill(text, "one", "new")
