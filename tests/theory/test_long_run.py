"""The long-run noise as the limit of the exact one, and by counting how a rollout is used."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from theory.calibrate.updates_fit import long_run_updates
from theory.long_run import long_run_cost, long_run_variance
from theory.noise import effective_variance
from theory.sampling import replay_design
from theory.staleness import Exponential, OffsetPowerLaw, PowerLaw, Tabulated

PROFILES = [
    1.0,
    2.5,
    OffsetPowerLaw(0.2, 0.25, 0.5),
    Exponential(1.0, 0.05, cap=3.0),
    Tabulated((3.0, 1.0, 2.0, 0.5)),
    Tabulated((1.0,)),
]


@st.composite
def counts(draw):
    fresh = draw(st.integers(1, 20))
    whole = st.integers(1, 20).map(lambda rows: rows * fresh)
    size = draw(whole | st.integers(fresh, 400))
    return draw(st.integers(1, size)), fresh, size, draw(st.booleans())


def sigma_of(profile, ages):
    return np.sqrt(profile(ages)) if callable(profile) else np.full(len(ages), profile**0.5)


def uses_variance(batch, fresh, size, replace, profile):
    """V of a long run, where a rollout's noise counts by the sum of its uses times sigma(age).

    Of the R rollouts of one update, N mod R stay one update longer. Uses at one update: B draws of
    chance 1/N each with replacement, one of chance B/N without. E (sum)^2 = variance + mean^2.
    """
    mean = batch / size
    variance = mean * (1 - 1 / size) if replace else mean * (1 - mean)
    total = 0.0
    for each in range(fresh):
        sigma = sigma_of(profile, np.arange(size // fresh + (each < size % fresh)))
        total += variance * (sigma**2).sum() + (mean * sigma.sum()) ** 2
    return total / batch**2 / sigma_of(profile, np.arange(1))[0] ** 2


@given(counts(), st.sampled_from(PROFILES))
def test_long_run_is_the_limit_of_the_exact_noise(counted, profile):
    design = replay_design(*counted)
    fresh_variance = sigma_of(profile, np.arange(1))[0] ** 2
    limit = effective_variance(design, 1e-9, profile) / fresh_variance
    assert long_run_variance(design, profile) == pytest.approx(limit, rel=2e-6)


@given(counts(), st.sampled_from(PROFILES))
def test_long_run_counts_how_often_a_rollout_is_used(counted, profile):
    expected = uses_variance(*counted, profile)
    found = long_run_variance(replay_design(*counted), profile)
    assert found == pytest.approx(expected, rel=1e-12)


@given(st.integers(1, 40), st.integers(1, 40))
def test_one_batch_without_replacement_is_as_noisy_as_its_fresh_rollouts(fresh, uses):
    design = replay_design(fresh * uses, fresh, fresh * uses)
    assert long_run_variance(design) == pytest.approx(1 / fresh, rel=1e-14)


@given(st.integers(2, 40), st.integers(3, 400))
def test_uneven_uses_of_one_batch_are_noisier(fresh, batch):
    """With floor and ceil of B/R uses, the sum of squared uses of R rollouts over B^2."""
    assume(batch > fresh and batch % fresh)
    more = batch % fresh
    squares = more * (batch // fresh + 1) ** 2 + (fresh - more) * (batch // fresh) ** 2
    found = long_run_variance(replay_design(batch, fresh, batch))
    assert found == pytest.approx(squares / batch**2, rel=1e-12)
    assert found > 1 / fresh


@given(counts(), st.sampled_from(PROFILES))
def test_only_fresh_rollouts_lower_the_noise(counted, profile):
    """V >= sbar1^2/R, with sigma averaged over the N stored, one by one."""
    _, fresh, size, _ = counted
    stored = sigma_of(profile, np.arange(size) // fresh)
    fresh_variance = sigma_of(profile, np.arange(1))[0] ** 2
    found = long_run_variance(replay_design(*counted), profile)
    assert found >= stored.mean() ** 2 / fresh / fresh_variance * (1 - 1e-12)


@given(counts())
def test_replacement_adds_the_pairs_that_fall_on_one_rollout(counted):
    batch, fresh, size, _ = counted
    without, again = long_run_variance(replay_design(batch, fresh, size, [False, True]))
    assert again - without == pytest.approx((1 - 1 / batch) / size, rel=1e-9, abs=1e-15)


@given(counts(), st.floats(0.01, 100))
def test_the_unit_of_the_profile_does_not_matter(counted, unit):
    profile = OffsetPowerLaw(0.2, 0.25, 0.5)
    found = long_run_variance(replay_design(*counted), lambda ages: unit * profile(ages))
    assert found == pytest.approx(long_run_variance(replay_design(*counted), profile), rel=1e-12)


def test_unreached_ages_of_an_exploding_profile_do_not_count():
    steep = Exponential(1.0, 300.0)
    assert long_run_variance(replay_design(8, 4, 8), steep) > 1
    design = replay_design(8, [8, 4], 8)
    assert long_run_variance(design, steep)[0] == 1 / 8


@given(counts(), st.floats(0.01, 100), st.floats(0, 1000), st.floats(0, 500), st.floats(1, 1e4))
def test_cost_by_hand(counted, mu, scale, fixed, least):
    design = replay_design(*counted)
    batch, fresh, size, _ = counted
    updates = least * (1 + scale * uses_variance(*counted, 1.0))
    cost = updates * (fixed + batch + mu * fresh)
    per_least = long_run_cost(design, mu, scale, fixed_cost=fixed)
    assert per_least == pytest.approx(cost / least, rel=1e-12)
    filled = long_run_cost(design, mu, scale, fixed_cost=fixed, min_updates=least)
    assert filled * least == pytest.approx(cost + mu * (size - fresh), rel=1e-12)
    assert long_run_updates(least, scale, long_run_variance(design)) == pytest.approx(updates)


def test_shapes():
    design = replay_design(64, [[64], [16]], [64, 128, 256])
    assert np.shape(long_run_variance(design, PROFILES[2])) == (2, 3)
    assert np.shape(long_run_cost(design, 5.0, [1.0, 2.0, 3.0])) == (2, 3)
    assert isinstance(long_run_variance(replay_design(64, 16, 64)), float)


DESIGN = replay_design(64, 16, 64)
BAD = [
    (lambda: long_run_variance(DESIGN, PowerLaw(0.2)), "PowerLaw(alpha=0.2, tau=1.0)"),
    (lambda: long_run_variance(DESIGN, 0.0), "profile = 0.0"),
    (lambda: long_run_variance(DESIGN, -1.0), "profile = -1.0"),
    (lambda: long_run_cost(DESIGN, 0.0, 1.0), "gen_train_ratio = 0"),
    (lambda: long_run_cost(DESIGN, 5.0, -1.0), "noise_scale = -1"),
    (lambda: long_run_cost(DESIGN, 5.0, 1.0, fixed_cost=-2.0), "fixed_cost = -2"),
    (lambda: long_run_cost(DESIGN, 5.0, 1.0, min_updates=0.0), "min_updates = 0.0"),
]


@pytest.mark.parametrize(("call", "text"), BAD, ids=[text for _, text in BAD])
def test_bad_values_are_named(call, text):
    with pytest.raises(ValueError, match="is not allowed") as error:
        call()
    assert text in str(error.value)
