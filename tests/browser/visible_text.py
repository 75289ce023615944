"""Visible text of a page: read by JavaScript in the browser and checked here."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from tests.browser.chromium import Chromium

TEXTS = """
(() => {
  const known = new Map();
  const ground = (element) => {
    if (!element) return 'no background';
    if (!known.has(element)) {
      const color = getComputedStyle(element).backgroundColor;
      known.set(element, color !== 'rgba(0, 0, 0, 0)' ? color : ground(element.parentElement));
    }
    return known.get(element);
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim(), element = walker.currentNode.parentElement;
    if (!text || !element.checkVisibility() || element.tagName === 'title') continue;
    const style = getComputedStyle(element), svg = element.ownerSVGElement;
    found.push([text, svg ? style.fill : style.color, ground(element)]);
  }
  return found;
})()
"""

SHAPES = """
(() => {
  const found = [];
  for (const path of document.querySelectorAll('path')) {
    const style = getComputedStyle(path), area = path.classList.contains('area');
    const sheet = getComputedStyle(path.closest('figure')).backgroundColor;
    found.push([path.getAttribute('class'), area ? style.fill : style.stroke, sheet]);
  }
  for (const key of document.querySelectorAll('.key')) {
    const style = getComputedStyle(key), line = key.classList.contains('line');
    const sheet = getComputedStyle(key.closest('figure')).backgroundColor;
    found.push([key.className, line ? style.borderTopColor : style.backgroundColor, sheet]);
  }
  return found;
})()
"""

COLLISIONS = """
(() => {
  const found = [];
  for (const plot of document.querySelectorAll('svg.plot')) {
    const figure = plot.closest('figure').getBoundingClientRect();
    const boxes = [...plot.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
    const seen = boxes.filter(([, box]) => box.width > 0);
    for (const [text, box] of seen) {
      if (box.left < figure.left || box.right > figure.right) found.push(`${text} leaves its figure`);
    }
    seen.forEach(([text, a], number) => {
      for (const [other, b] of seen.slice(number + 1)) {
        if (a.left < b.right && b.left < a.right && a.top < b.bottom - 2 && b.top < a.bottom - 2)
          found.push(`${plot.getAttribute('aria-label')}: ${text} on ${other}`);
      }
    });
  }
  return found;
})()
"""

WIDTHS = "[document.documentElement.scrollWidth, window.innerWidth]"
OPEN_ALL = "document.querySelectorAll('details').forEach(one => { one.open = true })"

TEXT_CONTRAST, SHAPE_CONTRAST = 4.5, 3.0
"""WCAG 2.2, 1.4.3 and 1.4.11, level AA."""


@dataclass(frozen=True, slots=True)
class Pair:
    """An element and its background."""

    what: str
    contrast: float


@lru_cache
def luminance(color: str) -> float:
    """Relative luminance of a computed colour, by the definition of WCAG."""
    numbers = re.fullmatch(r"rgb\((\d+), (\d+), (\d+)\)", color)
    assert numbers, f"{color!r} is not an opaque colour"
    shares = [int(number) / 255.0 for number in numbers.groups()]
    red, green, blue = (s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Contrast ratio, 1..21."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def pairs(browser: Chromium, script: str) -> list[Pair]:
    """Everything that a script finds, with its contrast."""
    found: Iterable[tuple[str, str, str]] = browser.value(script)
    return [Pair(what, contrast(color, ground)) for what, color, ground in found]


def faults(browser: Chromium, url: str) -> list[str]:
    """Everything that is wrong with an open page.

    It must have said nothing to the console and asked for nothing but itself; texts and shapes stand out,
    no text lies on another, and the page is no wider than the window.
    """
    browser.value(OPEN_ALL)
    texts, shapes = pairs(browser, TEXTS), pairs(browser, SHAPES)
    found = [f"asked for {asked}" for asked in browser.asked if asked != url]
    if len(texts) < 100 or len(shapes) < 10:
        found.append(f"only {len(texts)} texts and {len(shapes)} shapes were found")
    found += [f"too faint: {pair}" for pair in texts if pair.contrast < TEXT_CONTRAST]
    found += [f"too faint: {pair}" for pair in shapes if pair.contrast < SHAPE_CONTRAST]
    found += browser.value(COLLISIONS)
    page, window = browser.value(WIDTHS)
    if page > window:
        found.append(f"{page} px wide in a window of {window} px")
    return found + browser.said
