"""``python -m tests.resilience.conformance > docs/breaker-conformance.md`` writes the page."""

from __future__ import annotations

import sys

from tests.resilience.conformance.page import page

if __name__ == "__main__":
    sys.stdout.write(page())
