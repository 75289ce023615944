"""The report as one HTML page: no script, no external resources, light and dark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autoglm_throttle.traffic.report.page import details, latencies, replayed, requests, verdict, watched
from autoglm_throttle.traffic.report.page.markup import Markup, join, tag
from autoglm_throttle.traffic.report.page.plot import figure
from autoglm_throttle.traffic.report.page.style import STYLE
from autoglm_throttle.traffic.report.page.tables import shown
from autoglm_throttle.traffic.report.page.timeline import Timeline
from autoglm_throttle.traffic.report.schema import Document

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Content security policy: the page may load only its own style."""


def render(document: Document, sentences: Sequence[str] = ()) -> str:
    """Render the page of a report; the result depends only on the arguments.

    Args:
        document: the report.
        sentences: shown below the verdict.
    """
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", document["title"]),
        tag("style", Markup(STYLE)),
    )
    body = tag("body", tag("main", *_body(document, sentences)))
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _body(document: Document, sentences: Sequence[str]) -> Iterator[Markup]:
    load = document["load"]
    loop = "closed loop: users wait for their answers" if load["loop"] == "closed" else "open loop"
    shape = tag("p", f"{load['shape']}; arrivals {load['arrivals']}; {loop}")
    yield tag("header", tag("h1", document["title"]), shape)
    yield verdict.section(document)
    yield from (tag("p", sentence, class_="sentence") for sentence in sentences)
    if document["totals"]["planned"]:
        yield from _plots(document)
    yield from replayed.section(document)
    yield tag("h2", "In numbers")
    yield from (shown(table) for table in details.tables(document))
    yield tag("h2", "How it was measured")
    yield details.run_details(document)


def _plots(document: Document) -> Iterator[Markup]:
    line = Timeline.of(document)
    if line.note:
        yield tag("p", line.note, class_="note")
    yield figure(requests.offered(document, line))
    yield _side_by_side([figure(plot) for plot in requests.by_priority(document, line)], "three")
    yield figure(latencies.over_time(document, line))
    pairs = [
        latencies.by_priority(document, line),
        latencies.distribution(document),
        *watched.plots(document, line),
        requests.in_flight(document, line),
        latencies.lag(document, line),
    ]
    yield _side_by_side([figure(plot) for plot in pairs], "two")


def _side_by_side(figures: list[Markup], layout: str) -> Markup:
    return tag("div", join(*figures), class_=f"grid {layout}")
