"""``python -m tests.settings.message_table``: compare the messages for wrong settings with the recorded ones.

The table has a row for each case of ``wrong_values.json`` whose problems differ. With ``--record`` the
present problems of unexplained cases are stored as ``new``; ``--why`` stores the reason, ``--only`` selects.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence

from tests.settings.wrong_values import ProblemText, WrongValue, equal, load_cases, replay, save_cases

INPUT_CHARACTERS = 160


def differing(cases: Sequence[WrongValue]) -> list[tuple[WrongValue, list[ProblemText]]]:
    """Find the cases that are reported in another way than recorded, each with its present problems."""
    pairs = ((case, replay(case)) for case in cases)
    return [(case, now) for case, now in pairs if not equal(now, case.problems)]


def table(cases: Sequence[WrongValue]) -> str:
    """Format the differing cases as a Markdown table, and the number of equal ones."""
    rows = ["| input | old message | new message | why different |", "|---|---|---|---|"]
    found = differing(cases)
    for case, now in found:
        old = [problem for problem in case.problems if problem not in now]
        new = [problem for problem in now if problem not in case.problems]
        cells = (_short(case.text), _joined(old), _joined(new), case.why or "not explained")
        rows.append(f"| {' | '.join(map(_cell, cells))} |")
    rows += ["", f"{len(cases) - len(found)} of {len(cases)} wrong values have equal messages."]
    return "\n".join(rows)


def record(cases: Sequence[WrongValue], why: str, only: str) -> int:
    """Store the present problems of each case that is not as expected; return the number of such cases.

    Args:
        cases: all of them; they are changed.
        why: the reason; empty: to be written by hand.
        only: pattern found in the call or in the present problems of a case to store.
    """
    count = 0
    for case in cases:
        now = replay(case)
        if equal(now, case.expected) or not re.search(only, f"{case.text}\n{_joined(now)}"):
            continue
        case.new = [] if equal(now, case.problems) else now
        case.why = why if case.new else ""
        count += 1
    return count


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, or record the differences."""
    parser = argparse.ArgumentParser(description="Compare the messages for wrong settings.")
    parser.add_argument("--record", action="store_true", help="store the present problems as new ones")
    parser.add_argument("--why", default="", help="reason for the recorded differences")
    parser.add_argument("--only", default="", help="pattern of the cases to record")
    args = parser.parse_args(argv)
    cases = load_cases()
    if args.record:
        count = record(cases, args.why, args.only)
        save_cases(cases)
        sys.stdout.write(f"{count} cases recorded\n")
    else:
        sys.stdout.write(f"{table(cases)}\n")
    return 0


def _joined(problems: Sequence[ProblemText]) -> str:
    lines = (f"{place}: {message}" + (f" ({hint})" if hint else "") for place, message, hint in problems)
    return "\n".join(lines) or "none"


def _short(text: str) -> str:
    return text if len(text) <= INPUT_CHARACTERS else f"{text[: INPUT_CHARACTERS - 3]}..."


def _cell(text: str) -> str:
    text = text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", "<br>")
    # Values with surrogates could not be written.
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


if __name__ == "__main__":
    sys.exit(main())
