"""Owners of locks and threads are rebuilt in a forked child, and the parts of the parent stay referenced."""

from __future__ import annotations

import gc
import json
import os
import threading
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from autoglm_throttle._runtime.fork import keep_parent_part, rebuild_after_fork

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


class Part:
    """Something with a finalizer that must not run in a child."""


class Owner:
    """Rebuilt in each child; remembers in which order."""

    def __init__(self, name: str, rebuilt: list[str]) -> None:
        self.name = name
        self.rebuilt = rebuilt
        self.lock = threading.Lock()

    def rebuild(self) -> None:
        self.lock = threading.Lock()
        self.rebuilt.append(self.name)

    def fail(self) -> None:
        raise KeyError(self.name)


def from_child(report: Callable[[], object]) -> Any:
    """Return the JSON value that a function returns in a forked child."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            os.write(write, json.dumps(report()).encode())
            status = 0
        except BaseException:  # noqa: BLE001 - a child must not go on with the parent's tests
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    return json.loads(text)


def test_owners_are_rebuilt_in_order_in_the_child_alone() -> None:
    rebuilt: list[str] = []
    owners = [Owner(name, rebuilt) for name in "abc"]
    for owner in owners:
        rebuild_after_fork(owner, Owner.rebuild)
    assert from_child(lambda: rebuilt) == ["a", "b", "c"]
    assert rebuilt == []


def test_failure_of_one_owner_does_not_affect_others() -> None:
    rebuilt: list[str] = []
    first, second, third = (Owner(name, rebuilt) for name in "abc")
    rebuild_after_fork(first, Owner.rebuild)
    rebuild_after_fork(second, Owner.fail)
    rebuild_after_fork(third, Owner.rebuild)
    assert from_child(lambda: rebuilt) == ["a", "c"]


def test_collected_owner_is_not_rebuilt() -> None:
    rebuilt: list[str] = []
    kept, dropped = Owner("kept", rebuilt), Owner("dropped", rebuilt)
    rebuild_after_fork(dropped, Owner.rebuild)
    rebuild_after_fork(kept, Owner.rebuild)
    reference = weakref.ref(dropped)
    del dropped
    gc.collect()
    assert reference() is None
    assert from_child(lambda: rebuilt) == ["kept"]


def test_owner_registered_again_is_rebuilt_once() -> None:
    rebuilt: list[str] = []
    owner = Owner("a", rebuilt)
    rebuild_after_fork(owner, Owner.fail)
    rebuild_after_fork(owner, Owner.rebuild)
    assert from_child(lambda: rebuilt) == ["a"]


def test_grandchild_is_rebuilt_again() -> None:
    rebuilt: list[str] = []
    owner = Owner("a", rebuilt)
    rebuild_after_fork(owner, Owner.rebuild)
    assert from_child(lambda: from_child(lambda: rebuilt)) == ["a", "a"]


def test_lock_held_over_the_fork_is_free_in_the_child() -> None:
    owner = Owner("a", [])
    rebuild_after_fork(owner, Owner.rebuild)
    with owner.lock:
        assert from_child(lambda: owner.lock.acquire(blocking=False)) is True


@pytest.mark.slow
def test_parts_of_the_parent_stay_referenced_in_the_child() -> None:
    class Composed:
        """Owns a part."""

        def __init__(self) -> None:
            self.part = Part()

        def rebuild(self) -> None:
            keep_parent_part(self.part)
            self.part = Part()

    owner = Composed()
    rebuild_after_fork(owner, Composed.rebuild)
    inherited, owners = weakref.ref(owner.part), weakref.ref(owner)

    def lives() -> bool:
        gc.collect()
        (owner,) = filter(None, [owners()])
        return inherited() is not None and inherited() is not owner.part

    assert from_child(lives) is True
    assert inherited() is owner.part
    del owner
    gc.collect()
    assert inherited() is None, "the parent keeps nothing"
