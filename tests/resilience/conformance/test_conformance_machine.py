"""Each row of the table that the machine alone can show."""

from __future__ import annotations

import pytest

from tests.resilience.conformance.lines import Line, lines
from tests.resilience.conformance.machine import Machine
from tests.resilience.conformance.spoken_rules import rules


@pytest.mark.parametrize("line", lines("machine"), ids=str)
def test_a_row_of_the_machine(line: Line) -> None:
    machine = Machine(rules(line.rules))
    answers = [machine.does(event) for event in line.sequence()]
    assert [answer for answer in answers if answer is not None] == line.expected()
