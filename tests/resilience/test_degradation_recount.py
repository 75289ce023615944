"""The degradation levels compared with a recount of all samples."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.resilience.degradation import DegradationLevels
from autoglm_throttle.settings.groups.breaker import DegradationSettings
from autoglm_throttle.types import DegradationLevel

RULES = st.builds(
    DegradationSettings,
    shed_at=st.sampled_from([0.6, 0.8]),
    stale_at=st.sampled_from([0.82, 0.9]),
    static_at=st.sampled_from([0.93, 0.95]),
    margin=st.sampled_from([0.0, 0.05, 0.15, 0.5]),
    samples=st.integers(1, 4),
    load_stale_s=st.sampled_from([0.5, 3.0]),
)
LOADS = st.one_of(st.none(), st.sampled_from([n / 100 for n in range(50, 100)]), st.floats(0.0, 1.2))
STEPS = st.lists(st.tuples(st.sampled_from([0.0, 0.25, 0.5, 1.0, 3.0, 3.25]), LOADS), min_size=1, max_size=40)
OWN = 0.7


def recounted(
    seen: list[tuple[float, float | None]], rules: DegradationSettings
) -> tuple[DegradationLevel, bool]:
    """The level, and whether the load holds a threshold of 0.7, from the whole list."""
    run: list[float] = []
    last_s = 0.0
    for at_s, load in seen:
        if at_s - last_s > rules.load_stale_s:
            run = []
        if load is not None:
            last_s = at_s
            run.append(load)
    thresholds = {
        DegradationLevel.SHED: rules.shed_at,
        DegradationLevel.STALE: rules.stale_at,
        DegradationLevel.STATIC: rules.static_at,
    }
    return DegradationLevel(stepped(run, dict(thresholds), rules)), bool(
        stepped(run, {DegradationLevel.SHED: OWN}, rules)
    )


def stepped(run: list[float], thresholds: dict[DegradationLevel, float], rules: DegradationSettings) -> int:
    """Rise to the level exceeded by all of the last samples; fall to the level held by any of them."""
    level = 0
    for end in range(1, len(run) + 1):
        window = run[max(0, end - rules.samples) : end]
        up = [at for at in thresholds if len(window) == rules.samples and min(window) > thresholds[at]]
        held = [at for at in thresholds if any(load >= thresholds[at] - rules.margin for load in window)]
        level = min(max(level, max(up, default=0)), max(held, default=0))
    return level


@given(RULES, STEPS)
def test_levels_equal_a_recount(rules: DegradationSettings, steps: list[tuple[float, float | None]]) -> None:
    ladder = DegradationLevels(rules, 0.0)
    ladder.add_threshold(OWN)
    seen: list[tuple[float, float | None]] = []
    now = 0.0
    for step_s, load in steps:
        now += step_s
        seen.append((now, load))
        level = ladder.observe(load, now)
        assert (level, ladder.is_above(OWN)) == recounted(seen, rules)
        assert tuple(ladder.samples) == tuple(ladder.samples)[-rules.samples :]


@given(RULES, STEPS)
def test_looking_changes_nothing(rules: DegradationSettings, steps: list[tuple[float, float | None]]) -> None:
    looked_at, left_alone = DegradationLevels(rules, 0.0), DegradationLevels(rules, 0.0)
    now = 0.0
    for step_s, load in steps:
        now += step_s
        looked_at.is_above(rules.shed_at)
        assert looked_at.observe(load, now) is left_alone.observe(load, now)
    assert (looked_at.load, looked_at.samples) == (left_alone.load, left_alone.samples)


@given(RULES, STEPS, st.integers(-8, 8).map(lambda power: 4.0**power))
def test_a_constant_added_to_all_times_changes_nothing(
    rules: DegradationSettings, steps: list[tuple[float, float | None]], offset_s: float
) -> None:
    early, late = DegradationLevels(rules, 0.0), DegradationLevels(rules, offset_s * 0.25 + 1024.0)
    now = 0.0
    for step_s, load in steps:
        now += step_s
        assert early.observe(load, now) is late.observe(load, now + offset_s * 0.25 + 1024.0)


@given(RULES, st.floats(0.0, 1.2), STEPS)
def test_a_constant_load_changes_the_level_at_most_once(
    rules: DegradationSettings, load: float, before: list[tuple[float, float | None]]
) -> None:
    ladder = DegradationLevels(rules, 0.0)
    now = 0.0
    for step_s, other in before:
        now += step_s
        ladder.observe(other, now)
    levels = []
    for _ in range(2 * rules.samples + 2):
        now += rules.load_stale_s / 2
        levels.append(ladder.observe(load, now))
    # Of what was before, samples leave the window one by one: the level may fall on the way, and rise once.
    settled = levels[rules.samples :]
    assert len({*settled}) == 1
    fresh = DegradationLevels(rules, 0.0)
    alone = [fresh.observe(load, n * rules.load_stale_s / 2) for n in range(2 * rules.samples + 2)]
    assert (
        sum(one is not other for one, other in zip([DegradationLevel.FULL, *alone], alone, strict=False)) <= 1
    )


@given(RULES, st.sampled_from(list(DegradationLevel)), st.lists(st.floats(0.0, 1.0), min_size=1, max_size=30))
def test_samples_inside_the_band_change_nothing(
    rules: DegradationSettings, level: DegradationLevel, shares: list[float]
) -> None:
    """Return the band of a level: above its release, at most its next threshold."""
    tops = {
        DegradationLevel.FULL: rules.shed_at,
        DegradationLevel.SHED: rules.stale_at,
        DegradationLevel.STALE: rules.static_at,
    }
    floors = {
        DegradationLevel.SHED: rules.shed_at,
        DegradationLevel.STALE: rules.stale_at,
        DegradationLevel.STATIC: rules.static_at,
    }
    top = tops.get(level, 2.0)
    floor = floors[level] - rules.margin if level in floors else 0.0
    ladder = DegradationLevels(rules, 0.0)
    step_s = rules.load_stale_s
    now = 0.0
    for _ in range(rules.samples):
        now += step_s
        ladder.observe(top, now)
    assert ladder.level is level
    for share in shares:
        now += step_s
        inside = min(top, max(floor, floor + share * (top - floor)))
        assert ladder.observe(inside, now) is level
