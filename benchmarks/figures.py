"""The tables of the README that hold figures, made from what the benchmarks and the demonstration kept.

Run: ``python -m benchmarks.figures`` after ``python -m benchmarks.peers --write``,
``python -m benchmarks.serve --write`` or ``python -m docs.draw_demo``. It measures nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, line

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DEMO = ROOT / "docs" / "demo.txt"

PEERS = {
    "autoglm_throttle": ("autoglm-throttle", "ours", ""),
    "asgi-ratelimit": ("asgi-ratelimit", "ratelimit", ""),
    "limits-fixed": ("limits", "limits", ", fixed window"),
    "limits-moving": ("limits", "", ", moving window"),
    "slowapi": ("slowapi", "", ""),
}
"""Name in ``peers.json`` -> package, name in ``serve.json``, what follows the version."""

OVERLOADED = ("2x", "5x")
"""Phases of the demonstration."""

HEAD = (
    "| | added to an admitted request | a refused request | memory of 100,000 users "
    "| capacity kept: FastAPI app | raw ASGI app |\n|---|---|---|---|---|---|\n"
)


def peers_table(peers: Mapping[str, Any], serve: Mapping[str, Any]) -> str:
    """A row for each library, and under them where and when each benchmark ran."""
    rows = "".join(_row(name, peers, serve) for name in PEERS)
    return (
        f"{HEAD}{rows}\nFirst three columns, `benchmarks/peers.py`: {line(peers)}."
        f"\nLast two columns, server CPU per request under uvicorn, `benchmarks/serve.py`: {line(serve)}.\n"
    )


def _row(name: str, peers: Mapping[str, Any], serve: Mapping[str, Any]) -> str:
    package, served, what = PEERS[name]
    cells = [f"{package} {peers['versions'][package]}{what}"]
    cells += [_micros(peers[kind].get(name), name) for kind in ("added_us", "refused_us")]
    held = peers["memory_mb"].get(name)
    cells.append(f"{held:.0f} MB" if held else "-")
    for app in ("fastapi", "asgi"):
        kept = serve["capacity_kept"].get(f"{app}_{served}")
        cells.append(f"{kept:.0%}".replace("%", " %") if kept else "-")
    return f"| {' | '.join(cells)} |\n"


def _micros(cost: Mapping[str, float] | None, name: str) -> str:
    if cost is None:
        return "-"
    beside = "" if name == "autoglm_throttle" else f" (ours: {cost['ours_over_it']:.2f} of it)"
    return f"{cost['us']:.1f} µs{beside}"


def demo_part(kept: str) -> str:
    """The phases of overload at the end of a demonstration, its sentence, and what the high priority got."""
    head, _, shown = kept.partition("\n\n")
    rows = "\n".join(row for row in shown.splitlines() if row.startswith(("phase ", *OVERLOADED)))
    shares = " and ".join(f"{share:.0f} % at {phase}" for phase, share in high_shares(kept).items())
    sentence = shown.strip().splitlines()[-1]
    return (
        f"```text\n{rows}\n```\n\n"
        f"> {sentence}\n\nOf the requests of high priority {shares} were served.\n"
        f"([The whole table](docs/demo.txt): {head}.)\n"
    )


def high_shares(kept: str) -> dict[str, float]:
    """Phase of overload -> percent of its high priority requests that were served."""
    rows = re.findall(r"^(2x|5x) +high +(\d+) +(\d+)", kept, re.MULTILINE)
    return {phase: 100 * int(admitted) / int(sent) for phase, sent, admitted in rows}


def fill(text: str, name: str, content: str) -> str:
    """Put content between the marks of a part.

    Raises:
        ValueError: the text has no such part, or several.
    """
    pattern = rf"(<!-- {name}: [^>]*-->\n).*?(<!-- /{name} -->)"
    filled, times = re.subn(
        pattern, lambda at: f"{at[1]}\n{content.strip()}\n\n{at[2]}", text, flags=re.DOTALL
    )
    if times != 1:
        raise ValueError(f"{times} parts are named {name}")
    return filled


def parts() -> Iterator[tuple[str, str]]:
    """Names of the parts with figures, and what belongs in them."""
    kept = {name: json.loads((RESULTS / f"{name}.json").read_text()) for name in ("peers", "serve")}
    yield "figures", peers_table(kept["peers"], kept["serve"])
    yield "demo", demo_part(DEMO.read_text(encoding="utf-8"))


def main() -> None:
    """Bring the README up to date."""
    text = README.read_text(encoding="utf-8")
    for name, content in parts():
        text = fill(text, name, content)
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
