"""What a feature is to the service, and what is answered in its place."""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal

from autoglm_throttle.model import Criticality, FallbackContext


class Unset(Enum):
    """The type of `UNSET`."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET
"""No value given: None is a value like any other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """What to answer where there is no answer: after a refusal, after a failure, or under load.

    After a refusal or a failure the first of these that has an answer is taken: what was kept (`stale`),
    what is computed (`dynamic`), what was given (`static`). Under load the cheap ones come first.

    Raises:
        ValueError: what is given cannot work; all faults in one message.
    """

    static: Any = UNSET
    """A value given once and for all; each caller gets a deep copy of it."""
    shared_value: bool = False
    """Give every caller the same object, of `static` and of what is kept, instead of deep copies: cheaper,
    and right where nobody changes it."""
    dynamic: Callable[[FallbackContext], Any] | None = None
    """Computes an answer, may be a coroutine function. Only that kind has a time limit, and only in
    asynchronous faces: a plain function is called where the call would have been, and blocks as it does."""
    under_load: bool = False
    """Whether `dynamic` is cheap enough to be called when the service sheds load."""
    stale: bool = False
    """Whether successful answers are kept, to be given when there is no other."""
    key: Callable[..., Hashable] | None = None
    """What tells one answer from another, made of the call's arguments; None: keep nothing of this call.
    Without it all arguments do, by their equality and their types: a method's ``self`` is one of them."""
    max_stale_s: float | None = None
    """Seconds after which a kept answer is of no use; None: as ``DEGRADE_MAX_STALE_S`` says."""
    on_value: bool | None = None
    """Whether a returned value that was judged a failure is replaced, too; None: in faces that know HTTP."""
    coalesce: Literal["load", "always"] = "load"
    """When calls with one key share one live call: while core features are answered from memory, or always.
    Only what is kept is shared, so this says nothing without `stale`."""

    def __post_init__(self) -> None:
        _refuse("Fallback", self._faults())

    def _faults(self) -> Iterator[str]:
        kept = self.stale
        if self.static is UNSET and self.dynamic is None and not kept:
            yield "give one of static, dynamic and stale"
        called: dict[str, object] = {"dynamic": self.dynamic, "key": self.key}
        for name, given in called.items():
            if given is not None and not callable(given):
                yield f"{name} must be callable, is {given!r}"
        if self.under_load and self.dynamic is None:
            yield "under_load needs dynamic"
        if self.shared_value and self.static is UNSET and not kept:
            yield "shared_value needs static or stale"
        if self.coalesce not in ("load", "always"):
            yield f"coalesce must be 'load' or 'always', is {self.coalesce!r}"
        yield from self._faults_of_keeping()
        yield from self._faults_of_copying()

    def _faults_of_keeping(self) -> Iterator[str]:
        needing = {
            "key": self.key is not None,
            "max_stale_s": self.max_stale_s is not None,
            "coalesce": self.coalesce == "always",
        }
        if not self.stale:
            yield from (f"{name} needs stale" for name, given in needing.items() if given)
        limit_s = self.max_stale_s
        if limit_s is not None and not 0.0 < limit_s < math.inf:
            yield f"max_stale_s must be above 0 and finite, is {limit_s!r}"

    def _faults_of_copying(self) -> Iterator[str]:
        if not self.shared_value:
            try:
                copy.deepcopy(self.static)
            except Exception as error:  # noqa: BLE001 - whatever the user's own class raises
                yield f"static cannot be copied ({error!r}): set shared_value if nobody changes it"

    @property
    def asynchronous(self) -> bool:
        """Whether `dynamic` is known to give an awaitable, which a synchronous face cannot wait for."""
        called: Any = self.dynamic
        while isinstance(called, functools.partial):
            called = called.func
        return inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(
            getattr(called, "__call__", None)  # noqa: B004 - the method itself is wanted
        )


@dataclass(frozen=True, slots=True)
class Feature:
    """A part of the service that may be left out, or answered otherwise, when there is too much load.

    Raises:
        ValueError: what is given cannot work; all faults in one message.
    """

    name: str
    """Of its guard, too."""
    criticality: Criticality = Criticality.CORE
    fallback: Fallback | None = None
    shed_above: float | None = None
    """Load, 0..1, above which this feature is shed, in place of ``DEGRADE_SHED_AT``. While it is not shed, it
    is dealt with as a core feature."""

    def __post_init__(self) -> None:
        _refuse(f"Feature {self.name!r}", self._faults())

    def _faults(self) -> Iterator[str]:
        if not self.name:
            yield "name must not be empty"
        above = self.shed_above
        if above is not None and not 0.0 < above <= 1.0:
            yield f"shed_above must be above 0 and at most 1, is {above!r}"
        if above is not None and self.criticality is Criticality.CORE:
            yield "shed_above is for features that are not core: a core feature is never shed"


def _refuse(what: str, faults: Iterator[str]) -> None:
    found = list(faults)
    if found:
        raise ValueError(f"{what}: " + "; ".join(found))
