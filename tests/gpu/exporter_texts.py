"""Texts in the shape of the real exporters and engines, written for the tests."""

from __future__ import annotations

from pathlib import Path

from autoglm_throttle.gpu.scrape.exposition import Series, parse

TEXTS = Path(__file__).parent / "texts"


def text(name: str) -> str:
    return (TEXTS / f"{name}.txt").read_text(encoding="utf-8")


def series(name: str) -> list[Series]:
    return parse(text(name), openmetrics="openmetrics" in name)
