"""Designs from a noise model against a search of every whole design in plain loops."""

import math
import re
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from theory import optimal_design
from theory.plan import buffer_bytes
from theory.pricing import best_step_size, replay_cost
from theory.quadratic import initial_loss, power_law_quadratic, quadratic
from theory.sampling import replay_design
from theory.staleness import OffsetPowerLaw, PowerLaw, Tabulated

STALE = OffsetPowerLaw(1.0, 0.3, 0.5)
FALLING = Tabulated((4.0, 1.0))
TABLE = {(1, 1): 3.0, (2, 1): 4.0, (1, 2): 7.0, (5, 1): 5.5, (2, 4): 6.0, (6, 2): 5.34, (1, 7): 9.0}

ratios = st.floats(-1, 2).map(lambda power: 10.0**power)
noises = st.floats(-2.5, 1).map(lambda power: 10.0**power)
fixed_costs = st.sampled_from([0.0, 3.0, 200.0])
lengths = st.sampled_from([None, 20.0, 500.0])


@st.composite
def batches(draw, most=48):
    group = draw(st.integers(1, 4))
    return group * draw(st.integers(1, most // group)), group


# The search, by hand: V by how often a rollout is used, costs by P1 and both sides' times.


def noise_of_uses(batch, fresh, size, profile):
    """V of a long run without replacement: of R rollouts, N mod R stay one update longer."""
    share, total = batch / size, 0.0
    for count, stay in ((size % fresh, size // fresh + 1), (fresh - size % fresh, size // fresh)):
        sigma = [1.0] * stay if profile is None else np.sqrt(profile(np.arange(stay))).tolist()
        squares = share * (1 - share) * sum(each**2 for each in sigma)
        total += count * (squares + (share * sum(sigma)) ** 2)
    return total / batch**2 / (1.0 if profile is None else float(profile(np.zeros(1))[0]))


class Search:
    """Every whole design of a job as {(split, B, R, N): cost over on-policy at its batch}."""

    def __init__(self, mu, beta, batch, group=1, fixed=0.0, length=None, large=False, profile=None):
        self.mu, self.scale, self.batch, self.group = mu, beta * batch, batch, group
        self.fixed, self.length, self.large, self.profile = fixed, length, large, profile
        self.known = {}

    def updates(self, batch, fresh, size):
        counts = batch, fresh, size
        if counts not in self.known:
            more = 1 + self.scale * noise_of_uses(*counts, self.profile)
            least = 1 if self.length is None else self.length / (1 + self.scale / self.batch)
            self.known[counts] = more * least
        return self.known[counts]

    def on_policy(self, batch):
        return self.updates(batch, batch, batch) * (self.fixed + batch + self.mu * batch)

    def smaller(self):
        """Ratios of the smaller on-policy batches in whole groups."""
        whole = [p for p in (2, 4, 8) if self.batch % p == 0 and self.batch // p % self.group == 0]
        own = self.on_policy(self.batch)
        return {self.batch // p: self.on_policy(self.batch // p) / own for p in whole}

    def designs(self, batch, step):
        sizes = [batch * times for times in ((2, 4, 8, 16) if self.large else (1,))]
        return [(batch, fresh, size) for fresh in range(step, batch, step) for size in sizes]

    def ratios(self):
        found = {}
        for batch, fresh, size in self.designs(self.batch, self.group):
            cost = self.fixed + batch + self.mu * fresh
            total = self.updates(batch, fresh, size) * cost
            if self.length is not None:
                total += self.mu * (size - fresh)
            found[None, batch, fresh, size] = total / self.on_policy(self.batch)
        return found

    def gpu_ratios(self, gpus, by_split, shares):
        found = {}
        for trainers in range(1, gpus):
            split, step = (gpus - trainers, trainers), math.lcm(self.group, trainers)
            batch = round(Fraction(self.batch, step)) * step
            if 10 * abs(batch - self.batch) > self.batch:
                continue
            mu = by_split(split)
            for counts in self.designs(batch, step):
                _, fresh, size = counts
                training = (batch / shares.get(trainers, 1) + self.fixed) / trainers
                generating = mu * fresh / split[0]
                time = self.updates(*counts) * max(training, generating)
                if self.length is not None:
                    time += mu * (size - fresh) / split[0]
                found[split, *counts] = gpus * time / self.on_policy(self.batch)
        return found

    def call(self, **more):
        return optimal_design(
            self.mu,
            1,
            batch_size=self.batch,
            noise_scale=self.scale,
            num_generations=self.group,
            fixed_cost=self.fixed,
            reference_updates=self.length,
            buffer="large" if self.large else "batch",
            profile=self.profile,
            **more,
        )


def verdict_of(ratios, smaller):
    best = min(ratios.values(), default=math.inf)
    if best >= 1:
        return "on_policy"
    return (
        "replay"
        if best < min(smaller.values(), default=math.inf)
        else ("replay_only_if_batch_fixed")
    )


def tied(ratios, smaller):
    """Whether rounding of the last digits decides the verdict."""
    best = min(ratios.values(), default=math.inf)
    return any(abs(best - limit) < 1e-12 for limit in (1.0, *smaller.values()))


def assert_best_of(design, ratios, smaller, batch):
    best = min(ratios.values(), default=math.inf)
    assert design.verdict == verdict_of(ratios, smaller)
    counts = design.batch_size, design.rollouts_per_update, design.buffer_size
    if design.verdict == "on_policy":
        assert counts == (batch,) * 3
        assert (design.split, design.cost_ratio) == (None, 1.0)
    else:
        assert design.cost_ratio == pytest.approx(best, rel=1e-9)
        assert ratios[design.split, *counts] == pytest.approx(best, rel=1e-9)
    assert design.replay_ratio == counts[0] / counts[1]
    assert design.staleness_horizon == counts[2] / counts[1]
    assert not design.with_replacement
    reached = {size: ratio for size, ratio in smaller.items() if math.isfinite(ratio)}
    alternatives = {each.batch_size: each.cost_ratio for each in design.alternatives}
    assert alternatives == pytest.approx(reached, rel=1e-9)
    assert list(alternatives.values()) == sorted(alternatives.values())


@settings(max_examples=150)
@given(
    ratios,
    noises,
    batches(),
    fixed_costs,
    lengths,
    st.booleans(),
    st.sampled_from([None, None, STALE, FALLING]),
)
def test_design_is_the_best_of_all(mu, beta, counts, fixed, length, large, profile):
    search = Search(mu, beta, *counts, fixed, length, large, profile)
    design, found = search.call(), search.ratios()
    assume(not tied(found, search.smaller()))
    assert_best_of(design, found, search.smaller(), search.batch)
    assert (design.model, design.split, design.update_time) == ("reuse_law", None, None)


@settings(max_examples=100)
@given(
    ratios,
    noises,
    batches(),
    fixed_costs,
    lengths,
    st.booleans(),
    st.integers(2, 8),
    st.dictionaries(st.integers(1, 7), st.floats(0.2, 1), max_size=3),
)
def test_design_on_gpus_is_the_best_of_all_splits(
    mu, beta, counts, fixed, length, large, gpus, shares
):
    search = Search(mu, beta, *counts, fixed, length, large)
    design = search.call(gpus=gpus, train_efficiency=shares)
    found = search.gpu_ratios(gpus, lambda split: mu, shares)
    assume(not tied(found, search.smaller()))
    assert_best_of(design, found, search.smaller(), search.batch)
    step = math.lcm(search.group, design.split[1] if design.split else 1)
    assert all(
        each % step == 0
        for each in (design.batch_size, design.rollouts_per_update, design.buffer_size)
    )
    assert abs(design.batch_size - search.batch) <= search.batch / 10
    own = search.fixed + search.batch * (1 + mu)
    assert design.on_policy_update_time == pytest.approx(own / gpus)
    if design.split is not None:
        training = (design.batch_size / shares.get(design.split[1], 1) + fixed) / design.split[1]
        generating = mu * design.rollouts_per_update / design.split[0]
        assert design.update_time == pytest.approx(max(training, generating))
    else:
        assert design.update_time == design.on_policy_update_time


@settings(max_examples=40)
@given(noises, batches(), fixed_costs, lengths, st.sampled_from([2, 3, 6, 8]))
def test_each_split_has_its_own_measured_ratio(beta, counts, fixed, length, gpus):
    measured = {split: mu for split, mu in TABLE.items() if sum(split) == gpus}
    search = Search(5.28, beta, *counts, fixed, length)
    wanted = [(w, gpus - w) for w in range(1, gpus)]
    known = {split: measured.get(split, 5.0 + 0.7 * split[1]) for split in wanted}
    design = search.call(gpus=gpus, gen_train_by_split=known)
    found = search.gpu_ratios(gpus, known.get, {})
    assume(not tied(found, search.smaller()))
    assert_best_of(design, found, search.smaller(), search.batch)


def test_a_split_that_moves_the_batch_too_far_is_left_out():
    """B 20 moves to 21 for 3 or 7 trainers, to 18 for 6, not at all for 1, 2, 4 and 5."""
    moved = {1: 20, 2: 20, 3: 21, 4: 20, 5: 20, 6: 18, 7: 21}
    for trainers, batch in moved.items():
        only = {(8 - t, t): 5.0 if t == trainers else 1e6 for t in range(1, 8)}
        design = optimal_design(
            50, 1, batch_size=20, noise_to_batch=0.01, gpus=8, gen_train_by_split=only
        )
        assert (design.split, design.batch_size) == ((8 - trainers, trainers), batch)
    found = optimal_design(50, 1, batch_size=20, noise_to_batch=0.01, gpus=8, num_generations=4)
    assert found.split[1] in (1, 2, 4, 5)


# Verdicts.


def test_equal_costs_are_on_policy():
    """B 2, R 1, Bnoise 2, mu 2: 3 (2 + 2) = 2 (2 + 4), in whole numbers."""
    equal = optimal_design(2, 1, batch_size=2, noise_scale=2.0)
    assert (equal.verdict, equal.cost_ratio) == ("on_policy", 1.0)
    above = optimal_design(2.001, 1, batch_size=2, noise_scale=2.0)
    assert above.verdict == "replay_only_if_batch_fixed"
    assert above.alternatives[0].batch_size == 1


@pytest.mark.parametrize(
    ("mu", "beta", "fixed", "verdict"),
    [
        (5.28, 0.07, 0.0, "replay_only_if_batch_fixed"),
        (5.28, 0.5, 0.0, "replay_only_if_batch_fixed"),
        (5.28, 3.0, 0.0, "on_policy"),
        (100.0, 0.01, 0.0, "replay"),
        (100.0, 0.05, 1024.0, "replay_only_if_batch_fixed"),
        (100.0, 0.05, 16384.0, "replay"),
        (5.28, 0.5, 1e4, "on_policy"),
    ],
)
def test_verdicts_at_a_batch_of_64(mu, beta, fixed, verdict):
    search = Search(mu, beta, 64, 1, fixed)
    assert verdict_of(search.ratios(), search.smaller()) == verdict
    assert search.call().verdict == verdict


@given(ratios, noises, st.integers(1, 48))
def test_a_smaller_batch_costs_less_than_reuse_with_as_many_fresh_rollouts(mu, beta, batch):
    """L4: so the verdict is "replay" only where R is none of the batches compared with."""
    design = optimal_design(mu, 1, batch_size=batch, noise_to_batch=beta)
    if design.verdict == "replay":
        fresh = design.rollouts_per_update
        assert fresh not in [each.batch_size for each in design.alternatives]


@pytest.mark.parametrize("options", [{}, {"gpus": 3}, {"buffer": "large"}, {"num_generations": 4}])
def test_no_replay_fits_a_batch_of_one_step(options):
    batch = options.get("num_generations", 1)
    design = optimal_design(50, 1, batch_size=batch, noise_scale=0.01, **options)
    assert (design.verdict, design.cost_ratio) == ("on_policy", 1.0)
    assert any("no replay design fits" in reason for reason in design.why)
    if "gpus" not in options:
        assert design.break_even_gen_train_ratio == math.inf
        assert design.break_even_noise_to_batch == 0.0


def replays(design):
    return design.verdict != "on_policy"


@settings(max_examples=60)
@given(
    ratios,
    noises,
    batches(),
    fixed_costs,
    lengths,
    st.booleans(),
    st.sampled_from([None, STALE]),
)
def test_verdict_changes_at_both_break_evens(mu, beta, counts, fixed, length, large, profile):
    search = Search(mu, beta, *counts, fixed, length, large, profile)
    design = search.call()
    even = design.break_even_gen_train_ratio
    if math.isfinite(even):
        for factor in (1 - 1e-7, 1 + 1e-7):
            near = Search(even * factor, beta, *counts, fixed, length, large, profile)
            assert replays(near.call()) == (factor > 1)
    else:
        assert not replays(Search(1e7, beta, *counts, fixed, length, large, profile).call())
    even = design.break_even_noise_to_batch
    for factor in (1 - 1e-7, 1 + 1e-7) if even else (1.0,):
        near = Search(mu, even * factor or 1e-12, *counts, fixed, length, large, profile)
        assert replays(near.call()) == (factor < 1)


def test_break_even_of_two_uses():
    """B 2, R 1: (1 + 2 beta) (1 + mu/2) = (1 + beta) (1 + mu) at mu = 2 beta."""
    design = optimal_design(5.0, 1, batch_size=2, noise_to_batch=0.5)
    assert design.break_even_gen_train_ratio == pytest.approx(1.0, rel=1e-12)
    assert design.break_even_noise_to_batch == pytest.approx(2.5, rel=1e-12)


def test_noise_that_falls_with_age_can_leave_no_break_even():
    design = optimal_design(50, 1, batch_size=8, noise_to_batch=1.0, profile=FALLING)
    assert design.break_even_noise_to_batch == math.inf
    for beta in (1e-3, 1e6):
        found = optimal_design(50, 1, batch_size=8, noise_to_batch=beta, profile=FALLING)
        assert replays(found)


def test_break_evens_are_left_out_where_they_are_not_known():
    on_gpus = optimal_design(5.28, 1, batch_size=64, noise_to_batch=0.5, gpus=8)
    assert on_gpus.break_even_gen_train_ratio is on_gpus.break_even_noise_to_batch is None
    exact = optimal_design(5.28, 1, batch_size=8, spectrum=power_law_quadratic(4, 1.0, 0.3))
    assert exact.break_even_noise_to_batch is None


# Ranges.


def ratio_at(mu, scale, design):
    """Cost ratio of one design of B 64 at other inputs, by hand."""
    counts = design.batch_size, design.rollouts_per_update, design.buffer_size
    return Search(mu, scale / 64, 64).ratios()[None, *counts]


@settings(max_examples=30)
@given(st.floats(4, 60), st.floats(0.5, 60), st.floats(1.01, 2), st.floats(1.01, 2))
def test_interval_holds_the_ratio_and_widens(mu, scale, narrow, wider):
    def planned(factor):
        ranges = {
            "gen_train_range": (mu / factor, mu * factor),
            "noise_scale_range": (scale / factor, scale * factor),
        }
        return optimal_design(mu, 1, batch_size=64, noise_scale=scale, **ranges)

    some, more = planned(narrow), planned(narrow * wider)
    assume(some.verdict != "on_policy")
    assert some.cost_ratio_low < some.cost_ratio < some.cost_ratio_high
    assert more.cost_ratio == some.cost_ratio
    assert more.cost_ratio_low < some.cost_ratio_low
    assert more.cost_ratio_high > some.cost_ratio_high


@pytest.mark.parametrize("options", [{}, {"gpus": 8}, {"reference_updates": 200.0}])
def test_a_range_without_width_is_the_value(options):
    design = optimal_design(
        5.28,
        1,
        batch_size=64,
        noise_scale=16.0,
        gen_train_range=(5.28, 5.28),
        noise_scale_range=(16.0, 16.0),
        **options,
    )
    assert design.verdict != "on_policy"
    assert design.cost_ratio_low == pytest.approx(design.cost_ratio, rel=1e-9)
    assert design.cost_ratio_high == pytest.approx(design.cost_ratio, rel=1e-9)
    assert design.deciding_inputs == ()


@pytest.mark.parametrize("name", ["gen_train_range", "noise_scale_range"])
@pytest.mark.parametrize("factor", [1.1, 1.5, 3.0])
def test_interval_of_one_input_is_the_ratio_at_its_ends(name, factor):
    """The ratio is monotone in each input; 4000 draws find an end to 2 % of the width."""
    mu, scale = 5.28, 16.0
    value = mu if name == "gen_train_range" else scale
    ends = (value / factor, value * factor)
    design = optimal_design(mu, 1, batch_size=64, noise_scale=scale, **{name: ends})
    known = sorted(
        ratio_at(end, scale, design) if name == "gen_train_range" else ratio_at(mu, end, design)
        for end in ends
    )
    width = known[1] - known[0]
    assert design.cost_ratio_low == pytest.approx(known[0], abs=0.05 * width)
    assert design.cost_ratio_high == pytest.approx(known[1], abs=0.05 * width)


@settings(max_examples=40)
@given(ratios, noises, st.floats(1.01, 10), st.floats(1.01, 10), st.sampled_from([None, 4]))
def test_deciding_inputs_change_the_verdict_within_their_range(mu, beta, wide_mu, wide, gpus):
    scale = 32 * beta
    ranges = {
        "gen_train_range": (mu / wide_mu, mu * wide_mu),
        "noise_scale_range": (scale / wide, scale * wide),
    }
    options = {"batch_size": 32, "gpus": gpus}
    design = optimal_design(mu, 1, noise_scale=scale, **options, **ranges)
    costs = [
        optimal_design(end, 1, noise_scale=scale, **options) for end in ranges["gen_train_range"]
    ]
    noisy = [
        optimal_design(mu, 1, noise_scale=end, **options) for end in ranges["noise_scale_range"]
    ]
    expected = tuple(
        name
        for name, ends in (("gen_train_ratio", costs), ("noise_scale", noisy))
        if any(end.verdict != design.verdict for end in ends)
    )
    assert design.deciding_inputs == expected


def test_no_range_no_interval():
    design = optimal_design(5.28, 1, batch_size=64, noise_to_batch=0.5)
    assert (design.cost_ratio_low, design.cost_ratio_high) == (None, None)
    assert design.deciding_inputs == ()


# Exact dynamics.

MODES = power_law_quadratic(8, 1.0, 1.5)
TARGET = 0.05


def exact_ratios(mu, batch, group=1, fixed=0.0, sizes=(1,), rate=None, profile=1.0):
    """Cost ratio of every (R, N), one design and one call at a time."""
    aim = TARGET * initial_loss(MODES)

    def cost(batch, fresh, size):
        design, options = replay_design(batch, fresh, size), {"fixed_cost": fixed}
        if rate is None:
            return float(best_step_size(MODES, design, aim, mu, profile=profile, **options).cost)
        return float(replay_cost(MODES, rate, design, aim, mu, profile=profile, **options))

    own = cost(batch, batch, batch)
    pairs = [(r, n * batch) for r in range(group, batch, group) for n in sizes]
    found = {(None, batch, *pair): cost(batch, *pair) / own for pair in pairs}
    whole = [p for p in (2, 4, 8) if batch % (p * group) == 0]
    return found, {batch // p: cost(*[batch // p] * 3) / own for p in whole}


@pytest.mark.parametrize("rate", [None, 0.1])
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(
    ("mu", "batch", "group", "fixed", "profile"),
    [
        (5.28, 12, 1, 0.0, None),
        (40.0, 16, 4, 30.0, STALE),
        (0.3, 8, 2, 0.0, None),
        (5.28, 12, 2, 0.0, FALLING),
        (40.0, 24, 1, 100.0, None),
    ],
)
def test_exact_design_is_the_best_of_all(rate, large, mu, batch, group, fixed, profile):
    design = optimal_design(
        mu,
        1,
        batch_size=batch,
        num_generations=group,
        fixed_cost=fixed,
        spectrum=MODES,
        target=TARGET,
        learning_rate=rate,
        buffer="large" if large else "batch",
        profile=profile,
    )
    sizes = (2, 4, 8, 16) if large else (1,)
    law = 1.0 if profile is None else profile
    found, smaller = exact_ratios(mu, batch, group, fixed, sizes, rate, law)
    assert_best_of(design, found, smaller, batch)
    assert design.model == "exact"
    if rate is not None:
        assert design.learning_rate == rate


def test_exact_learning_rate_is_that_of_the_best_step():
    design = optimal_design(40, 1, batch_size=24, spectrum=MODES, target=TARGET)
    counts = design.batch_size, design.rollouts_per_update, design.buffer_size
    best = best_step_size(MODES, replay_design(*counts), TARGET * initial_loss(MODES), 40.0)
    assert design.verdict != "on_policy"
    assert design.learning_rate == best.learning_rate


def test_exact_break_even_is_where_the_verdict_changes():
    options = {"batch_size": 12, "spectrum": MODES, "target": TARGET, "learning_rate": 0.1}
    even = optimal_design(5.28, 1, **options).break_even_gen_train_ratio
    assert even == pytest.approx(0.2264, abs=1e-4)
    assert not replays(optimal_design(even * (1 - 1e-9), 1, **options))
    assert replays(optimal_design(even * (1 + 1e-9), 1, **options))


def test_many_exact_designs_are_thinned_to_within_a_few_per_cent():
    options = {"spectrum": MODES, "target": TARGET, "learning_rate": 0.1}
    design = optimal_design(20, 1, batch_size=96, **options)
    found, _ = exact_ratios(20.0, 96, rate=0.1)
    counts = design.batch_size, design.rollouts_per_update, design.buffer_size
    assert found[None, *counts] == pytest.approx(design.cost_ratio, rel=1e-12)
    assert design.cost_ratio <= 1.03 * min(found.values())


def test_target_that_on_policy_does_not_reach_is_refused():
    noisy = quadratic([1.0], noise_std=50.0)
    with pytest.raises(ValueError, match=r"batch_size = 4 is not allowed.* target"):
        optimal_design(5, 1, batch_size=4, spectrum=noisy, target=0.01, learning_rate=0.5)


# What is said beside the design.


@given(ratios, noises, batches(), fixed_costs)
def test_rounding_cost_is_over_the_best_real_design(mu, beta, counts, fixed):
    batch, _ = counts
    scale = beta * batch

    def cost(log_fresh):
        fresh = math.exp(log_fresh)
        return (1 + scale / fresh) * (fixed + batch + mu * fresh)

    search = Search(mu, beta, *counts, fixed)
    design = search.call()
    if design.verdict == "on_policy":
        assert design.rounding_cost is None
        return
    found = minimize_scalar(cost, bounds=(-30, 30), method="bounded", options={"xatol": 1e-9})
    used = design.cost_ratio * search.on_policy(batch)
    assert design.rounding_cost == pytest.approx(used / found.fun - 1, abs=1e-9)
    assert design.rounding_cost >= -1e-12


@pytest.mark.parametrize(
    "options", [{"gpus": 4}, {"buffer": "large"}, {"profile": STALE}, {"reference_updates": 300.0}]
)
def test_rounding_cost_is_left_out_where_no_closed_form_is_the_best(options):
    design = optimal_design(50, 1, batch_size=64, noise_to_batch=0.05, **options)
    assert design.verdict != "on_policy"
    assert design.rounding_cost is None


def test_counts_that_fit_cost_nothing_in_rounding():
    """R = sqrt(Bnoise B/mu) = sqrt(16 64/4) = 16 divides B."""
    design = optimal_design(4, 1, batch_size=64, noise_scale=16.0)
    assert design.rollouts_per_update == 16
    assert design.rounding_cost == pytest.approx(0, abs=1e-12)


@given(ratios, noises, st.floats(0.01, 500), st.floats(10, 1e5), st.floats(0, 20), fixed_costs)
def test_hours_and_price_by_hand(mu, beta, seconds, length, price, fixed):
    design = optimal_design(
        mu * seconds,
        seconds,
        batch_size=32,
        noise_to_batch=beta,
        fixed_cost=fixed,
        reference_updates=length,
        gpu_hour_price=price,
    )
    own = length * (32 * seconds + 32 * mu * seconds + fixed * seconds) / 3600
    assert design.on_policy_gpu_hours == pytest.approx(own)
    assert design.gpu_hours == pytest.approx(own * design.cost_ratio)
    assert design.price == pytest.approx(price * own * design.cost_ratio)


def test_hours_of_a_design_are_its_updates_times_their_cost():
    """Bnoise 16, B 64, mu 4, 1000 updates: S_min 800, R 16, U 1600 of 64 + 64, a fill of 4 48."""
    design = optimal_design(4, 1, batch_size=64, noise_scale=16.0, reference_updates=1000.0)
    assert design.rollouts_per_update == 16
    assert design.gpu_hours == pytest.approx((1600 * (64 + 64) + 4 * 48) / 3600)
    assert design.price is None


def test_no_length_no_hours():
    design = optimal_design(4, 1, batch_size=64, noise_scale=16.0)
    assert design.gpu_hours is design.on_policy_gpu_hours is design.price is None


@given(st.integers(1, 10**7), st.floats(0.5, 1e6))
def test_buffer_bytes_are_eight_a_token_and_32_a_rollout(size, tokens):
    assert buffer_bytes(size, tokens) == pytest.approx(size * 32 + size * tokens * 8, abs=1)
    assert isinstance(buffer_bytes(size, tokens), int)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"noise_to_batch": 0.5},
        {"noise_to_batch": 0.05, "buffer": "large", "num_generations": 8},
    ],
)
def test_every_model_reports_the_bytes_of_its_buffer(options):
    design = optimal_design(5.28, 1, batch_size=64, tokens_per_rollout=1000, **options)
    assert design.buffer_bytes == design.buffer_size * 8032
    without = optimal_design(5.28, 1, batch_size=64, **options)
    assert without == replace(design, buffer_bytes=None)


def test_noise_to_batch_is_noise_scale_over_batch():
    by_ratio = optimal_design(5.28, 1, batch_size=64, noise_to_batch=0.25)
    assert by_ratio == optimal_design(5.28, 1, batch_size=64, noise_scale=16.0)


@given(ratios, noises, batches(), fixed_costs, st.sampled_from([None, 4]))
def test_reasons_and_warnings_are_short_lines(mu, beta, counts, fixed, gpus):
    design = Search(mu, beta, *counts, fixed).call(gpus=gpus)
    assert 1 <= len(design.why) <= 5
    assert all(line and "\n" not in line for line in (*design.why, *design.warnings))
    assert f"{design.cost_ratio:.4g}" in " ".join(design.why) or design.verdict == "on_policy"


# Refusals.

NAN = math.nan
LAW = {"noise_scale": 10.0}
GPUS = {**LAW, "gpus": 8}
EXACT = {"spectrum": MODES}
BAD = [
    ({"noise_scale": 0}, "noise_scale = 0"),
    ({"noise_scale": -2.0}, "noise_scale = -2.0"),
    ({"noise_scale": NAN}, "noise_scale = nan"),
    ({"noise_scale": "10"}, "noise_scale = '10'"),
    ({"noise_to_batch": 0}, "noise_to_batch = 0"),
    ({"noise_to_batch": True}, "noise_to_batch = True"),
    ({**LAW, "noise_to_batch": 0.5}, "noise_scale = 10.0"),
    ({**LAW, "rho": 0.5}, "rho = 0.5"),
    ({**LAW, "alpha": 0.2}, "alpha = 0.2"),
    ({**LAW, "profile": PowerLaw(0.2)}, "PowerLaw(alpha=0.2, tau=1.0)"),
    ({**LAW, "noise_scale_range": (11.0, 20.0)}, "noise_scale_range = (11.0, 20.0)"),
    ({**LAW, "noise_scale_range": (20.0, 5.0)}, "noise_scale_range = (20.0, 5.0)"),
    ({**LAW, "noise_scale_range": (0.0, 20.0)}, "noise_scale_range = 0.0"),
    ({**LAW, "noise_scale_range": ("5", 20.0)}, "noise_scale_range = '5'"),
    ({**LAW, "gen_train_range": (1.0, 2.0)}, "gen_train_range = (1.0, 2.0)"),
    ({**LAW, "gen_train_range": (6.0, 4.0)}, "gen_train_range = (6.0, 4.0)"),
    ({**LAW, "gen_train_range": (4.0, NAN)}, "gen_train_range = nan"),
    ({**EXACT, "noise_scale_range": (1.0, 2.0)}, "noise_scale_range = (1.0, 2.0)"),
    ({**EXACT, "noise_scale": 10.0}, "noise_scale = 10.0"),
    ({**EXACT, "reference_updates": 100.0}, "reference_updates = 100.0"),
    ({**EXACT, "target": 0}, "target = 0"),
    ({**EXACT, "target": 1}, "target = 1"),
    ({**EXACT, "target": NAN}, "target = nan"),
    ({**EXACT, "target": "0.1"}, "target = '0.1'"),
    ({**EXACT, "learning_rate": 0}, "learning_rate = 0"),
    ({**EXACT, "learning_rate": 2.5}, "learning_rate = 2.5"),
    ({**EXACT, "learning_rate": [0.1, 0.2]}, "learning_rate = [0.1, 0.2]"),
    ({**LAW, "learning_rate": 0.1}, "learning_rate = 0.1"),
    ({"learning_rate": 0.1}, "learning_rate = 0.1"),
    ({**LAW, "buffer": "huge"}, "buffer = 'huge'"),
    ({**LAW, "buffer": None}, "buffer = None"),
    ({"buffer": "large"}, "buffer = large"),
    ({**LAW, "fixed_cost": -1}, "fixed_cost = -1"),
    ({**LAW, "fixed_cost": NAN}, "fixed_cost = nan"),
    ({**LAW, "fixed_cost": "3"}, "fixed_cost = '3'"),
    ({"fixed_cost": 3.0}, "fixed_cost = 3.0"),
    ({**LAW, "reference_updates": 0}, "reference_updates = 0"),
    ({**LAW, "reference_updates": math.inf}, "reference_updates = inf"),
    ({"reference_updates": 100.0}, "reference_updates = 100.0"),
    ({**LAW, "gpu_hour_price": 2.0}, "gpu_hour_price = 2.0"),
    ({**LAW, "gpu_hour_price": -2.0, "reference_updates": 9}, "gpu_hour_price = -2.0"),
    ({"gpu_hour_price": 2.0}, "gpu_hour_price = 2.0"),
    ({**LAW, "gpus": 1}, "gpus = 1"),
    ({**LAW, "gpus": "8"}, "gpus = '8'"),
    ({**LAW, "gen_train_by_split": {(6, 2): 5.0}}, "{(6, 2): 5.0}"),
    ({**LAW, "train_efficiency": {2: 0.5}}, "{2: 0.5}"),
    ({"gpus": 8, "gen_train_by_split": {(6, 2): 5.0}}, "{(6, 2): 5.0}"),
    ({"gpus": 8, "train_efficiency": {2: 0.5}}, "{2: 0.5}"),
    ({**GPUS, "gen_train_by_split": {(6, 0): 5.0}}, "(6, 0)"),
    ({**GPUS, "gen_train_by_split": {(6, 2, 1, 1): 5.0}}, "(6, 2, 1, 1)"),
    ({**GPUS, "gen_train_by_split": {6: 5.0}}, "split = 6"),
    ({**GPUS, "gen_train_by_split": {"62": 5.0}}, "'62'"),
    ({**GPUS, "gen_train_by_split": {(6, 2): 0.0}}, "(6, 2) = 0.0"),
    ({**GPUS, "gen_train_by_split": {(6, 2): 5.0, (3, 1): 6.0}}, "(3, 1): 6.0"),
    ({**GPUS, "train_efficiency": {2: 0}}, "2 trainers = 0"),
    ({**GPUS, "train_efficiency": {2: 1.5}}, "2 trainers = 1.5"),
    ({**GPUS, "train_efficiency": {2.5: 0.5}}, "num_trainers = 2.5"),
    ({**LAW, "tokens_per_rollout": 0}, "tokens_per_rollout = 0"),
    ({"tokens_per_rollout": "9"}, "tokens_per_rollout = '9'"),
    ({**LAW, "num_generations": 7}, "num_generations = 7"),
]


@pytest.mark.parametrize(("options", "text"), BAD, ids=[f"{sorted(o)}-{t}" for o, t in BAD])
def test_bad_values_are_named(options, text):
    with pytest.raises(ValueError, match="is not allowed") as error:
        optimal_design(5.28, 1, batch_size=64, **options)
    assert text in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"noise_to_batch": 1.0, "gen_train_range": 5.0}, "gen_train_range = 5.0"),
        ({"noise_to_batch": 1.0, "noise_scale_range": (1, 64, 99)}, "(1, 64, 99)"),
        ({"spectrum": "steep"}, "'steep'"),
        ({"noise_to_batch": 1.0, "gpus": 8, "gen_train_by_split": [5.0]}, "[5.0]"),
        ({"noise_to_batch": 1.0, "gpus": 8, "train_efficiency": [1]}, "[1]"),
        ({"noise_to_batch": 1.0, "target": 0.5}, "target = 0.5"),
        ({"target": 0.5}, "target = 0.5"),
        ({"noise_to_batch": 1.0, "profile": 2.0}, "profile = 2.0"),
    ],
)
def test_options_of_the_wrong_kind_are_named(options, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        optimal_design(5.28, 1, batch_size=64, **options)


@pytest.mark.parametrize("options", [{"noise_to_batch": 0.05}, {}])
def test_a_moved_batch_is_reported(options):
    moved = optimal_design(5.28, 1, batch_size=61, gpus=8, **options)
    assert moved.batch_size != 61
    note = f"the batch moves from 61 to {moved.batch_size}"
    assert any(note in warning for warning in moved.warnings)


@given(st.floats(0.01, 30), st.floats(0.5, 2))
def test_whole_rollouts_of_one_batch_pay_above_twice_beta(beta, factor):
    """Between whole y some rollouts are used once more than others, so y = 2 is first to pay."""
    assume(abs(factor - 1) > 1e-3)
    mu = 2 * beta * factor
    design = optimal_design(mu, 1, batch_size=64, noise_to_batch=beta)
    assert (design.verdict != "on_policy") == (factor > 1)
    assert design.break_even_gen_train_ratio == pytest.approx(2 * beta, rel=1e-9)
