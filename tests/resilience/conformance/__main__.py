"""``python -m tests.resilience.conformance > tests/resilience/conformance/README.md`` writes the page."""

from __future__ import annotations

import sys

from tests.resilience.conformance.page import page

if __name__ == "__main__":
    sys.stdout.write(page())
