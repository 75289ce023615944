"""The top of the page: the verdict, the objectives and the main figures."""

from __future__ import annotations

from collections.abc import Iterator

from autoglm_throttle.traffic.report.page import units
from autoglm_throttle.traffic.report.page.markup import Markup, join, tag
from autoglm_throttle.traffic.report.page.tables import Table, shown
from autoglm_throttle.traffic.report.schema import Document, ObjectiveResult

STATUS_LABELS = {
    0: ("good", "Passed"),
    1: ("bad", "Failed"),
    3: ("caution", "Not valid"),
    130: ("caution", "Interrupted"),
}
"""CSS class and label of each exit status."""

MEASURED = ("neutral", "Measured")
"""Label of a run without objectives in which a request succeeded."""


def section(document: Document) -> Markup:
    """Render the verdict, the caveats, the objectives with failed ones first, and the main figures."""
    verdict = document["verdict"]
    css_class, label = STATUS_LABELS[verdict["status"]]
    if verdict["status"] == 0 and not verdict["objectives"]:
        css_class, label = MEASURED
    text = verdict["text"].removeprefix(f"{label.lower()}: ")
    sentence = tag("p", tag("strong", label, class_="label"), text, class_="outcome")
    caveats = (tag("p", caveat, class_="caveats") for caveat in verdict["caveats"] if caveat not in text)
    objectives = _objectives(verdict["objectives"])
    return join(
        tag("section", sentence, *caveats, objectives, class_=f"verdict {css_class}", aria_label="Verdict"),
        tag("dl", *_figures(document), class_="figures"),
    )


def _objectives(objectives: list[ObjectiveResult]) -> Markup:
    if not objectives:
        return Markup()
    order = sorted(objectives, key=lambda one: one["holds"])
    rows = [
        (one["term"], units.value(one["value"], one["unit"]), "holds" if one["holds"] else "FAILED")
        for one in order
    ]
    failed = frozenset(number for number, one in enumerate(order) if not one["holds"])
    return shown(Table("Objectives", ("objective", "measured", "verdict"), rows, failed))


def _figures(document: Document) -> Iterator[Markup]:
    totals = document["totals"]
    sent = totals["planned"] - totals["unsent"]
    served = totals["classes"]["ok"] + totals["classes"]["degraded"]
    rejected = totals["classes"]["limited"] + totals["classes"]["shed"]
    duration_s = document["load"].get("sent_s", document["load"]["duration_s"])
    figures = (
        ("Sent", units.count(sent), f"{units.rate(sent / duration_s if duration_s else None)} on average"),
        ("Answered", units.share(totals["done_ratio"]), f"{units.rate(totals['rps'])} answers"),
        (
            "Served",
            units.share(served / sent if sent else None),
            f"{units.share(totals['goodput']['ratio'])} in time",
        ),
        (
            "Rejected",
            units.share(rejected / sent if sent else None),
            f"{units.count(rejected)} with Retry-After",
        ),
        ("Errors", units.share(totals["error_ratio"]), units.many(_errors(document), "request")),
        (
            "p99 of the served",
            units.seconds(totals["response"]["p99_s"]),
            f"p50 {units.seconds(totals['response']['p50_s'])}",
        ),
    )
    for name, figure, more in figures:
        yield tag("div", tag("dt", name), tag("dd", figure, class_="figure"), tag("dd", more))


def _errors(document: Document) -> int:
    orderly = ("ok", "degraded", "limited", "shed")
    return sum(number for name, number in document["totals"]["classes"].items() if name not in orderly)
