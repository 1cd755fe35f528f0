from fractions import Fraction
from math import lcm

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from theory import optimal_design
from theory.bound import bound_objective
from theory.cost import gen_train_ratio
from theory.staleness import OffsetPowerLaw, PowerLaw, Tabulated

HILLS = Tabulated((1.0, 1.0, 3.0, *[1.0] * 12, 99.0))


def exhaustive(mu, rho, profile, batch, group, longest, fresh_counts=None):
    """Least J(N/R, B/R)/J(1, 1) over every whole R and N, one by one in plain loops."""
    one = bound_objective(1, 1, mu, profile=profile, rho=rho)
    best = np.inf
    for fresh in fresh_counts or range(group, batch + 1, group):
        size = np.arange(fresh, longest * fresh + 1, group)
        values = bound_objective(size / fresh, batch / fresh, mu, profile=profile, rho=rho)
        best = min(best, np.min(values) / one)
    return best


@settings(max_examples=40)
@given(
    st.integers(1, 4),
    st.integers(1, 8),
    st.floats(1.0, 60),
    st.floats(0, 1),
    st.floats(0.08, 0.45),
)
def test_power_law_design_is_the_best_of_all_whole_designs(group, groups, mu, rho, alpha):
    batch = group * groups
    design = optimal_design(mu, 1, batch_size=batch, rho=rho, alpha=alpha, num_generations=group)
    if design.verdict == "replay":
        longest = int(3 * (0.5 / alpha - 1) * batch) + 3
        best = exhaustive(mu, rho, PowerLaw(alpha), batch, group, min(longest, 400))
        assert design.cost_ratio == pytest.approx(best, rel=1e-12)
        assert design.cost_ratio < 1


@settings(max_examples=25)
@given(
    st.sampled_from([OffsetPowerLaw(1.0, 0.2, 0.5), OffsetPowerLaw(1.0, 0.05, 0.8), HILLS]),
    st.integers(1, 4),
    st.integers(1, 8),
    st.floats(1.0, 60),
    st.floats(0.02, 1),
)
def test_profile_design_is_the_best_of_all_whole_designs(profile, group, groups, mu, rho):
    batch = group * groups
    design = optimal_design(
        mu, 1, batch_size=batch, rho=rho, profile=profile, num_generations=group
    )
    if design.verdict == "replay":
        best = exhaustive(mu, rho, profile, batch, group, 60)
        assert design.cost_ratio == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("batch", [30, 31, 32])
def test_largest_batches_searched_exhaustively(batch):
    design = optimal_design(5.28, 1, batch_size=batch)
    best = exhaustive(5.28, 1.0, PowerLaw(0.1), batch, 1, 40)
    assert design.cost_ratio == pytest.approx(best, rel=1e-12)


def test_paper_setting():
    design = optimal_design(5.28, 1, batch_size=60)
    assert (design.rollouts_per_update, design.buffer_size) == (31, 82)
    assert design.replay_ratio == 60 / 31
    assert design.staleness_horizon == 82 / 31
    assert design.cost_ratio == pytest.approx(0.8815, abs=5e-5)
    assert (design.cost_ratio_low, design.cost_ratio_high) == (None, None)
    assert not design.with_replacement


def usable_splits(mu, batch, group, gpus):
    """B, R and step at every split that is not left out: {(W, T): (B, R, step)}, by hand."""
    found = {}
    for trainers in range(1, gpus):
        split, step = (gpus - trainers, trainers), lcm(group, trainers)
        moved = round(Fraction(batch, step)) * step
        uses = mu * trainers / split[0]
        if 10 * abs(moved - batch) <= batch and step <= moved and 1 <= uses <= moved / step:
            # Halfway between two counts of steps, the even one.
            counts = range(step, moved + 1, step)
            nearest = min(counts, key=lambda r: (abs(r - moved / uses), r // step % 2))
            found[split] = moved, nearest, step
    return found


def split_ratios(mu, rho, profile, batch, group, gpus, longest):
    """Least J(N/R, B/R)/J(1, 1) at every usable split, over every N in steps."""
    return {
        split: exhaustive(mu, rho, profile, moved, step, longest, [fresh])
        for split, (moved, fresh, step) in usable_splits(mu, batch, group, gpus).items()
    }


def test_paper_setting_on_eight_gpus_is_the_paper_split():
    design = optimal_design(5.28, 1, batch_size=60, gpus=8)
    ratios = split_ratios(5.28, 1.0, PowerLaw(0.1), 60, 1, 8, 40)
    assert design.split == (6, 2) == min(ratios, key=ratios.get)
    assert design.rollouts_per_update == round(60 / 1.76)
    assert design.cost_ratio == pytest.approx(ratios[6, 2], rel=1e-12)


@settings(max_examples=60)
@given(
    st.floats(1.0, 60),
    st.integers(1, 4),
    st.integers(1, 16),
    st.integers(2, 10),
    st.sampled_from([0.1, 0.25, 1.0]),
    st.sampled_from([PowerLaw(0.1), PowerLaw(0.3), OffsetPowerLaw(1.0, 0.2, 0.5), HILLS]),
)
def test_split_is_the_one_whose_whole_design_has_the_least_objective(
    mu, group, groups, gpus, rho, profile
):
    batch = group * groups
    design = optimal_design(
        mu, 1, batch_size=batch, rho=rho, profile=profile, gpus=gpus, num_generations=group
    )
    assert sum(design.split) == gpus
    ratios = split_ratios(mu, rho, profile, batch, group, gpus, 150)
    best = min(ratios.values(), default=np.inf)
    if design.verdict == "on_policy":
        why = design.why[0]
        assert ("no split" in why) or (best >= 1) or ("y*" in why) or ("x*" in why)
        assert not ratios or "no split" not in why
        return
    assert best < 1
    assert design.cost_ratio == pytest.approx(best, rel=1e-12)
    assert ratios[design.split] == pytest.approx(best, rel=1e-12)
    moved, fresh, step = usable_splits(mu, batch, group, gpus)[design.split]
    assert (design.batch_size, design.rollouts_per_update) == (moved, fresh)
    assert design.buffer_size % step == 0
    assert design.replay_ratio == moved / fresh


@pytest.mark.parametrize(
    ("batch", "gpus", "group", "usable"),
    [
        (64, 8, 1, {1: 64, 2: 64, 3: 63, 4: 64, 5: 65, 6: 66, 7: 63}),
        (64, 8, 16, {1: 64, 2: 64, 4: 64}),
        (20, 9, 4, {1: 20, 2: 20, 4: 20}),
    ],
)
def test_splits_that_move_the_batch_by_more_than_a_tenth_are_left_out(batch, gpus, group, usable):
    """Each split in turn gives y = 2; on GPUs for 5 trainers a step of 20 leaves no such R."""
    for trainers in range(1, gpus):
        mu = 2 * (gpus - trainers) / trainers
        found = usable_splits(mu, batch, group, gpus)
        assert ((gpus - trainers, trainers) in found) == (trainers in usable)
        design = optimal_design(mu, 1, batch_size=batch, rho=0.1, gpus=gpus, num_generations=group)
        if design.verdict == "replay":
            assert design.batch_size == usable[design.split[1]]
        else:
            assert design.batch_size == batch


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"cost_gen": 1.0}, "not above 1"),
        ({"alpha": 0.5}, "no interior optimum"),
        ({"alpha": 0.4}, "x* below 1"),
        ({"cost_gen": 1.5, "rho": 0.5, "gpus": 2, "batch_size": 1}, "no split"),
    ],
)
def test_on_policy_verdicts(options, reason):
    design = optimal_design(**({"cost_gen": 5.28, "cost_train": 1, "batch_size": 64} | options))
    batch = design.batch_size
    assert design.verdict == "on_policy"
    assert (design.rollouts_per_update, design.buffer_size) == (batch, batch)
    assert (design.replay_ratio, design.staleness_horizon, design.cost_ratio) == (1.0, 1.0, 1.0)
    assert reason in design.why[0]


@given(st.floats(0.2, 60), st.floats(0, 1), st.floats(0.05, 0.6), st.integers(1, 80))
def test_laws_of_a_design(mu, rho, alpha, batch):
    design = optimal_design(mu, 1, batch_size=batch, rho=rho, alpha=alpha)
    assert 1 <= design.rollouts_per_update <= batch
    assert design.buffer_size >= design.rollouts_per_update
    assert design.replay_ratio == batch / design.rollouts_per_update
    assert design.staleness_horizon == design.buffer_size / design.rollouts_per_update
    assert design.with_replacement == (design.buffer_size < batch)
    assert len(design.why) <= 5
    if design.verdict == "replay":
        assert design.cost_ratio < 1
        assert f"{design.cost_ratio * (2 + rho):.4g}" in design.warnings[0]
        assert any("draw with replacement" in w for w in design.warnings) == design.with_replacement
    else:
        assert design.cost_ratio == 1.0


def test_true_baseline_is_named_at_the_paper_values():
    for rho, ratio in ((1.0, "2.6"), (0.1, "1.0"), (0.0, "0.6")):
        design = optimal_design(5.28, 1, batch_size=600, rho=rho)
        assert f"cost ratio is {ratio}" in design.warnings[0]
        assert design.warnings[0].endswith("a loss") == (rho > 0)


@given(st.floats(1.5, 60), st.integers(1, 16), st.integers(2, 12))
def test_counts_are_whole_groups_for_every_trainer(mu, group, gpus):
    design = optimal_design(mu, 1, batch_size=48 * group, rho=0.1, num_generations=group, gpus=gpus)
    step = lcm(group, design.split[1]) if design.verdict == "replay" else group
    assert design.batch_size % step == 0
    assert design.rollouts_per_update % step == design.buffer_size % step == 0
    assert abs(design.batch_size - 48 * group) <= 4.8 * group


def test_costs_matter_only_by_their_ratio():
    assert optimal_design(10.5, 2.0, batch_size=60) == optimal_design(5.25, 1.0, batch_size=60)
    assert gen_train_ratio(10.5, 2.0) == 5.25


def test_profile_without_a_best_buffer_is_refused():
    with pytest.raises(ValueError, match=r"Tabulated.* longer horizon"):
        optimal_design(5.28, 1, batch_size=60, profile=Tabulated((1.0,)))
