"""Features of a service, and their fallbacks: answers if a call was rejected, has failed or is not made."""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, Final, Literal

from autoglm_throttle.types import Criticality, FallbackContext, FallbackKind

LOAD: Final = "load"  # Cause of a fallback used because of the degradation level
ERROR: Final = "error"  # Cause of a fallback used after a failure
REFRESH: Final = "refresh"  # Cause of a cached answer while another caller's live call fetches a newer one
DegradedAnswer = tuple[FallbackKind, str]  # Kind of fallback, and its cause

# Degraded answers of the current request; None if they are not collected. Worker threads share the list.
degraded_answers: ContextVar[list[DegradedAnswer] | None] = ContextVar(
    "autoglm_throttle_degraded_answers", default=None
)

# Computes the answer of a fallback; may be a coroutine function.
Dynamic = Callable[[FallbackContext], Any]

# Callback for each degraded answer: guard, kind of fallback, cause.
DegradedCallback = Callable[[str, FallbackKind, str], None]

# Returns the cached value of this call, or `UNSET`; its argument is the cause.
CacheLookup = Callable[[str], object]

# Raises for a value that the caller cannot use; never called with `UNSET`.
ValueCheck = Callable[[object, FallbackKind], None]


class Unset(Enum):
    """The type of `UNSET`."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET  # No value given: None is a valid value


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """Fallbacks of a feature: after a rejection, after a failure, or under load.

    After a rejection or a failure the first available answer is used: cached (`stale`), computed (`dynamic`),
    fixed (`static`). Under load the cheap ones come first.

    Raises:
        ValueError: invalid combination; all problems in one message.
    """

    static: Any = UNSET
    """Fixed value; each caller gets a deep copy."""
    shared_value: bool = False
    """Return the same object to all callers, for `static` and cached values, instead of deep copies.

    Cheaper, and correct if callers do not change it.
    """
    dynamic: Dynamic | None = None
    """Computes an answer; may be a coroutine function.

    Only a coroutine function has a time limit, and it works with asynchronous callers only. A plain function
    runs in place of the call and blocks as it would.
    """
    under_load: bool = False
    """Whether `dynamic` is cheap enough to be called while the service sheds load."""
    stale: bool = False
    """Whether successful results are cached, and used as a fallback."""
    key: Callable[..., Hashable] | None = None
    """Cache key, computed from the call's arguments; None as its result: do not cache.

    By default all arguments form the key, by equality and type; a method's ``self`` is one of them.
    """
    max_stale_s: float | None = None
    """Maximum age of a cached result in seconds; None: ``degrade_max_stale_s``."""
    on_value: bool | None = None
    """Whether a returned value classified as failure is replaced too; None: only for HTTP callers."""
    coalesce: Literal["load", "always"] = "load"
    """Single-flight mode: share a live call of one key only at level ``stale`` or above, or always.

    Only cached results are shared, so this needs `stale`.
    """

    def __post_init__(self) -> None:
        _raise_faults("Fallback", self._faults())

    def _faults(self) -> Iterator[str]:
        if self.static is UNSET and self.dynamic is None and not self.stale:
            yield "give one of static, dynamic and stale"
        called: dict[str, object] = {"dynamic": self.dynamic, "key": self.key}
        for name, given in called.items():
            if given is not None and not callable(given):
                yield f"{name} must be callable, is {given!r}"
        if callable(self.dynamic) and not _accepts_context(self.dynamic):
            yield "dynamic must accept one argument, the FallbackContext"
        if self.under_load and self.dynamic is None:
            yield "under_load needs dynamic"
        if self.shared_value and self.static is UNSET and not self.stale:
            yield "shared_value needs static or stale"
        if self.coalesce not in ("load", "always"):
            yield f"coalesce must be 'load' or 'always', is {self.coalesce!r}"
        yield from self._cache_faults()
        yield from self._copy_faults()

    def _cache_faults(self) -> Iterator[str]:
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

    def _copy_faults(self) -> Iterator[str]:
        if not self.shared_value:
            try:
                copy.deepcopy(self.static)
            except Exception as error:  # noqa: BLE001 - a user's class may raise anything
                yield f"static cannot be copied ({error!r}): set shared_value if callers do not change it"

    @property
    def asynchronous(self) -> bool:
        """Whether `dynamic` is a coroutine function, which a synchronous caller cannot await."""
        return is_function(inspect.iscoroutinefunction, self.dynamic)


@dataclass(frozen=True, slots=True)
class Feature:
    """A part of the service that can be shed or answered by fallbacks under load."""

    name: str  # Name of the feature and of its guard
    criticality: Criticality = Criticality.CORE
    fallback: Fallback | None = None
    # Load, 0..1, above which this feature is shed, instead of ``DEGRADE_SHED_AT``. While it is not shed, it
    # is treated as a core feature.
    shed_above: float | None = None

    def __post_init__(self) -> None:
        _raise_faults(f"Feature {self.name!r}", self._faults())

    def _faults(self) -> Iterator[str]:
        if not self.name:
            yield "name must not be empty"
        above = self.shed_above
        if above is not None and not 0.0 < above <= 1.0:
            yield f"shed_above must be above 0 and at most 1, is {above!r}"
        if above is not None and self.criticality is Criticality.CORE:
            yield "shed_above is for features that are not core: a core feature is never shed"


def _accepts_context(fn: Callable[..., object]) -> bool:
    try:
        inspect.signature(fn).bind(None)
    except TypeError:
        return False
    except ValueError:  # some functions written in C have no signature
        return True
    return True


def is_function(kind: Callable[[object], bool], fn: object) -> bool:
    """Whether a function, a partial of one, or an object with a ``__call__`` is of a kind of ``inspect``."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return kind(fn) or kind(getattr(type(fn), "__call__", None))  # noqa: B004 - inspected only


def _raise_faults(subject: str, faults: Iterator[str]) -> None:
    texts = list(faults)
    if texts:
        raise ValueError(f"{subject}: " + "; ".join(texts))


class DegradationAction(StrEnum):
    """Action for a call under the current load."""

    SERVE = "serve"  # Make the call, if the breaker admits it
    STALE = "stale"  # Answer from the stale cache
    STATIC = "static"  # Answer without the call, by any fallback
    SHED = "shed"  # Answer without the call; reject if no fallback answers


_UNDER_LOAD: Final = (FallbackKind.DYNAMIC, FallbackKind.STATIC, FallbackKind.STALE)

# Order of the fallbacks per action. After a rejection or failure: a recent value, a computed one, a static
# one. Under load: the dynamic fallback if declared cheap, then the cheapest.
_ORDER: Final[Mapping[DegradationAction, tuple[FallbackKind, ...]]] = {
    DegradationAction.SERVE: (FallbackKind.STALE, FallbackKind.DYNAMIC, FallbackKind.STATIC),
    DegradationAction.STALE: (FallbackKind.STALE,),
    DegradationAction.STATIC: _UNDER_LOAD,
    DegradationAction.SHED: _UNDER_LOAD,
}


@dataclass(frozen=True, slots=True)
class FallbackAnswer:
    """A degraded answer."""

    value: Any
    kind: FallbackKind
    cause: str

    def unwrap(self) -> Any:  # noqa: ANN401
        """Return the value."""
        return self.value


def available_kinds(fallback: Fallback, action: DegradationAction) -> tuple[FallbackKind, ...]:
    """Return the kinds of fallback that may answer under an action, in their order."""
    may_compute = action is DegradationAction.SERVE or fallback.under_load
    available = {
        FallbackKind.STALE: fallback.stale,
        FallbackKind.DYNAMIC: fallback.dynamic is not None and may_compute,
        FallbackKind.STATIC: fallback.static is not UNSET,
    }
    return tuple(kind for kind in _ORDER[action] if available[kind])
