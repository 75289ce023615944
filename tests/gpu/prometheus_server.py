"""The documented query interface of a Prometheus server, over given numbers."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterable
from urllib.parse import parse_qs, urlsplit

from autoglm_throttle.gpu.scrape.exposition import Series
from tests.gpu.metrics_server import page

LOOK_BACK_S = 300.0
"""Seconds for which a server returns a series that has ended."""

_TERM = re.compile(r"timestamp\(([\w:]*)\{(.*?)\}\)")
_MATCHER = re.compile(r'(\w+)(=~|!=|=)"([^"]*)"')

Labels = dict[str, str]


class PrometheusServer:
    """Knows series with the time of their scrape; serves as an answer of ``BadServer``."""

    def __init__(self) -> None:
        self.now = 1_763_759_000.0
        self.series: list[Series] = []
        self.queries: list[str] = []

    def scraped(self, series: Iterable[Series], *, age_s: float = 0.0, **labels: str) -> None:
        """Ingest the samples of an exporter with an age, with the labels of its target."""
        for one in series:
            self.series.append(Series(one.name, {**one.labels, **labels}, one.value, self.now - age_s))

    def __call__(self, connection: socket.socket, request: str) -> None:
        target = urlsplit(request.split(" ")[1])
        (query,) = parse_qs(target.query)["query"]
        self.queries.append(query)
        assert target.path.endswith("/api/v1/query")
        try:
            result = self._times(query) if query.startswith("timestamp") else self._values(query)
        except SyntaxError as error:
            body = {"status": "error", "errorType": "bad_data", "error": str(error)}
            page(json.dumps(body).encode(), status="400 Bad Request")(connection, request)
            return
        answer = {"status": "success", "data": {"resultType": "vector", "result": result}}
        page(json.dumps(answer).encode(), "Content-Type: application/json")(connection, request)

    def _values(self, query: str) -> list[dict[str, object]]:
        return [
            self._point({"__name__": one.name, **one.labels}, one.value) for one in self._chosen(query[1:-1])
        ]

    def _times(self, query: str) -> list[dict[str, object]]:
        """``or`` keeps of each set of labels the first; one term must not give a set twice."""
        found: dict[str, tuple[Labels, float]] = {}
        for name, matchers in _TERM.findall(query):
            term: dict[str, tuple[Labels, float]] = {}
            for one in self._chosen(matchers):
                if one.name == name:
                    key = json.dumps(one.labels, sort_keys=True)
                    assert key not in term, "vector cannot contain metrics with the same labelset"
                    term[key] = (dict(one.labels), one.at_s or 0.0)
            found = term | found
        assert _TERM.sub("", query).replace(" or ", "") == ""
        return [self._point(labels, at_s) for labels, at_s in found.values()]

    def _chosen(self, matchers: str) -> list[Series]:
        rest = _MATCHER.sub("", matchers).replace(",", "").strip()
        if rest:
            raise SyntaxError(f"unexpected {rest!r} in label matching")
        return [one for one in self.series if self._alive(one) and _matches(one, _MATCHER.findall(matchers))]

    def _alive(self, one: Series) -> bool:
        return self.now - (one.at_s or 0.0) <= LOOK_BACK_S

    def _point(self, labels: Labels, value: float) -> dict[str, object]:
        return {"metric": labels, "value": [self.now, f"{value:.17g}"]}


def _matches(one: Series, matchers: list[tuple[str, str, str]]) -> bool:
    labels = {"__name__": one.name, **one.labels}
    for name, sign, text in matchers:
        value = labels.get(name, "")
        same = re.fullmatch(text, value) is not None if sign == "=~" else value == text
        if same == (sign == "!="):
            return False
    return True
