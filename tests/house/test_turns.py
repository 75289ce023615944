"""Who is to be alone is alone, and is not kept waiting by those who come after."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.house import turns

PATIENCE_S = 10.0
SOON_S = 0.05
"""What must not happen is waited for so long."""


class Visitor(threading.Thread):
    """Goes into the room, and stays until it is told to leave."""

    def __init__(self, *, alone: bool) -> None:
        super().__init__(daemon=True)
        self.alone = alone
        self.inside, self.leave = threading.Event(), threading.Event()
        self.start()

    def run(self) -> None:
        with turns.turn(self.alone):
            self.inside.set()
            self.leave.wait(PATIENCE_S)

    def gone(self) -> None:
        self.leave.set()
        self.join(PATIENCE_S)
        assert not self.is_alive()


@pytest.fixture(autouse=True)
def _own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the run itself are held by this very test."""
    for name in ("DOOR", "ROOM"):
        (tmp_path / name).touch()
        monkeypatch.setattr(turns, name, tmp_path / name)


def test_many_are_in_the_room_at_once() -> None:
    visitors = [Visitor(alone=False) for _ in range(3)]
    assert all(visitor.inside.wait(PATIENCE_S) for visitor in visitors)
    for visitor in visitors:
        visitor.gone()


def test_who_is_alone_comes_after_those_before_and_before_those_after() -> None:
    before = Visitor(alone=False)
    assert before.inside.wait(PATIENCE_S)
    alone = Visitor(alone=True)
    assert not alone.inside.wait(SOON_S)
    after = Visitor(alone=False)
    assert not after.inside.wait(SOON_S)
    before.gone()
    assert alone.inside.wait(PATIENCE_S)
    assert not after.inside.wait(SOON_S)
    alone.gone()
    assert after.inside.wait(PATIENCE_S)
    after.gone()


def test_a_failing_test_lets_the_others_in() -> None:
    with pytest.raises(ZeroDivisionError), turns.turn(alone=True):
        raise ZeroDivisionError
    visitor = Visitor(alone=True)
    assert visitor.inside.wait(PATIENCE_S)
    visitor.gone()
