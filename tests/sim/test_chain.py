"""The token chain: exact objective, three levels of ratio, and what lag does to each."""

import itertools
import math

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest

from sim.estimators import (
    clipped,
    geometric_ratio,
    importance_ratio,
    sequence_ratio,
    truncated,
)
from sim.lanes import allocation_for, run_lanes
from sim.problems import StreamKeys
from sim.problems.chain import bands, chain
from sim.problems.chain_optimum import best_objective, chain_objective
from sim.train import Allocation, Lane, recorded_run
from theory.reuse import uncorrected_step_limit

SMALL = {"length": 4, "vocabulary": 3, "band_half_width": 0.13}
CHAINS = {
    "plain": {**SMALL, "kl": 0.0},
    "kl": {**SMALL, "kl": 0.1, "reward_noise": 0.5},
    "segments": {**SMALL, "segments": 2, "kl": 0.1},
    "prompts": {**SMALL, "prompts": 3, "num_generations": 4, "kl": 0.1},
    "independent": {**SMALL, "autoregressive": False, "kl": 0.1},
}
BIT_CHAIN = {"vocabulary": 2, "segments": 1, "spectrum_power": 0.0, "kl": 0.0}
LEVELS = ("sequence", "token", "geometric")


def stream_keys(seed):
    return StreamKeys(*jax.random.split(jax.random.key(seed), 3))


def some_theta(problem, scale, seed=3):
    rng = np.random.default_rng(seed)
    return jnp.asarray(scale * rng.standard_normal(len(problem.theta0)), jnp.float32)


def gap(problem, theta):
    return problem.loss(problem.env, problem.forward(problem.env, theta))


def enumerated(problem, theta):
    """Objective by listing every sequence, from the policy table alone."""
    env, view = problem.env, problem.forward(problem.env, theta)
    logp = np.float64(view.logp)
    prompts, _, contexts, vocabulary = logp.shape
    total = 0.0
    for prompt in range(prompts):
        for tokens in itertools.product(range(vocabulary), repeat=len(env.segment)):
            before = (0, *tokens[:-1]) if contexts > 1 else (0,) * len(tokens)
            log = sum(
                logp[prompt, part, old, new]
                for part, old, new in zip(np.asarray(env.segment), before, tokens, strict=True)
            )
            reward = float(env.band[prompt, sum(tokens)])
            cost = float(env.kl) * (log + len(tokens) * math.log(vocabulary))
            total += math.exp(log) * (reward - cost)
    return total / prompts


def estimates(problem, theta, behaviour, batches, size, seed=0):
    """Gradients (batches, dim) at theta from rollouts of another policy."""
    env = problem.env

    @jax.jit
    def found(keys):
        view, old = problem.forward(env, theta), problem.forward(env, behaviour)
        rollouts = problem.rollout(env, old, problem.noise(keys, (batches * size,)))
        split = jax.tree.map(lambda leaf: leaf.reshape(batches, size, *leaf.shape[1:]), rollouts)
        weight, age = jnp.full(size, 1 / size), jnp.zeros(size, int)
        return jax.vmap(lambda batch: problem.gradient(env, view, batch, age, weight))(split)

    return np.asarray(found(stream_keys(seed)), np.float64)


def standard_errors(found, exact):
    """Distance of the mean gradient from the exact one, in standard errors of each entry."""
    error = found.std(axis=0) / np.sqrt(len(found))
    return np.abs(found.mean(axis=0) - exact) / (error + 1e-7)


@pytest.mark.parametrize("knobs", CHAINS.values(), ids=CHAINS)
def test_objective_equals_enumeration(knobs):
    problem = chain(**knobs)
    for scale in (0.0, 0.7, 2.0):
        theta = some_theta(problem, scale)
        value = float(problem.env.best) - float(gap(problem, theta))
        assert value == pytest.approx(enumerated(problem, theta), abs=2e-6)
    assert float(gap(problem, problem.theta0)) == pytest.approx(problem.initial_loss, abs=2e-6)


@pytest.mark.parametrize("contexts", [3, 1])
def test_search_follows_the_gradient_of_the_simulated_objective(contexts):
    problem = chain(**SMALL, segments=2, spectrum_power=0.0, kl=0.1, autoregressive=contexts > 1)
    theta = some_theta(problem, 1.0)
    value, slope = chain_objective(
        np.float64(theta).reshape(2, contexts, 2),
        np.float64(problem.env.band[0]),
        np.asarray(problem.env.segment),
        0.1,
    )
    assert float(problem.env.best) - value == pytest.approx(float(gap(problem, theta)), abs=2e-6)
    exact = -jax.grad(lambda parameters: gap(problem, parameters))(theta)
    np.testing.assert_allclose(exact, slope.ravel(), atol=2e-6)


def test_best_objective_of_one_token_is_the_closed_form():
    band = np.array([0.0, 0.0, 1.0, 1.0, 0.0])
    best = best_objective(band, np.zeros(1, int), contexts=5, vocabulary=5, kl=0.3)
    assert best == pytest.approx(0.3 * math.log(np.mean(np.exp(band / 0.3))), abs=1e-9)


@pytest.mark.parametrize("knobs", [*CHAINS.values(), {}, {"length": 16, **BIT_CHAIN}])
def test_no_policy_beats_the_best(knobs):
    problem = chain(**knobs)
    rng = np.random.default_rng(0)
    scale = np.geomspace(0.1, 10, 2000)[:, None]
    thetas = jnp.asarray(scale * rng.standard_normal((2000, len(problem.theta0))), jnp.float32)
    assert jax.vmap(lambda theta: gap(problem, theta))(thetas).min() > -1e-6


@pytest.mark.parametrize("knobs", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("stale", [0.0, 0.3, 0.7])
def test_sequence_ratio_is_unbiased_at_any_age(knobs, stale):
    problem = chain(**knobs)
    theta = some_theta(problem, 0.7)
    behaviour = theta + stale * some_theta(problem, 1.0, seed=4)
    exact = -np.float64(jax.grad(lambda parameters: gap(problem, parameters))(theta))
    found = estimates(problem, theta, behaviour, batches=400, size=512)
    assert standard_errors(found, exact).max() < 4.5
    error = found.std(axis=0) / np.sqrt(len(found))
    assert np.linalg.norm(exact) > 3 * np.linalg.norm(error)


@pytest.mark.parametrize("ratio", ["token", "geometric", "none"])
def test_other_levels_are_unbiased_fresh_and_biased_stale(ratio):
    problem = chain(**CHAINS["plain"], ratio=ratio)
    theta = some_theta(problem, 0.7)
    exact = -np.float64(jax.grad(lambda parameters: gap(problem, parameters))(theta))
    assert standard_errors(estimates(problem, theta, theta, 400, 512), exact).max() < 4.5
    behaviour = theta + 0.7 * some_theta(problem, 1.0, seed=4)
    assert standard_errors(estimates(problem, theta, behaviour, 400, 512), exact).max() > 10


def rollouts_of(problem, theta, width=400, seed=1):
    view = problem.forward(problem.env, theta)
    return problem.rollout(problem.env, view, problem.noise(stream_keys(seed), (width,)))


def gradient_at(problem, theta, rollouts):
    width = len(rollouts.advantage)
    view = problem.forward(problem.env, theta)
    weight = jnp.full(width, 1 / width)
    return problem.gradient(problem.env, view, rollouts, jnp.zeros(width, int), weight)


@pytest.mark.parametrize("level", [sequence_ratio, importance_ratio, geometric_ratio])
def test_ratios_of_fresh_rollouts_are_one(level):
    logp = rollouts_of(chain(), some_theta(chain(), 1.0)).logp
    assert logp.shape == (400, 8)
    assert (level(logp, logp) == 1).all()


def test_ratios_of_two_tokens():
    logp, behaviour = jnp.log(jnp.array([[0.6, 0.9]])), jnp.log(jnp.array([[0.2, 0.6]]))
    np.testing.assert_allclose(importance_ratio(logp, behaviour), [[3.0, 1.5]], rtol=1e-6)
    np.testing.assert_allclose(sequence_ratio(logp, behaviour), [[4.5]], rtol=1e-6)
    np.testing.assert_allclose(geometric_ratio(logp, behaviour), [[4.5**0.5]], rtol=1e-6)


def test_truncation_and_clip():
    ratio = jnp.array([0.5, 0.9, 1.0, 1.1, 3.0])
    np.testing.assert_array_equal(truncated(ratio, 2.0), jnp.minimum(ratio, 2.0))
    np.testing.assert_array_equal(truncated(ratio, jnp.inf), ratio)
    up = clipped(ratio, jnp.ones(5), 0.2, 0.2)
    down = clipped(ratio, -jnp.ones(5), 0.2, 0.2)
    np.testing.assert_array_equal(up == 0, [False, False, False, False, True])
    np.testing.assert_array_equal(down == 0, [True, False, False, False, False])
    np.testing.assert_array_equal(clipped(ratio, jnp.ones(5), jnp.inf, jnp.inf), ratio)


def test_levels_agree_on_fresh_rollouts_and_for_one_token():
    one = {"length": 1, "vocabulary": 4, "band_centre": 0.5, "band_half_width": 0.2}
    for knobs, stale in [(SMALL, 0.0), (one, 1.0)]:
        problems = [chain(**knobs, ratio=ratio) for ratio in LEVELS]
        theta = some_theta(problems[0], 1.0)
        behaviour = theta + stale * some_theta(problems[0], 1.0, seed=4)
        rollouts = rollouts_of(problems[0], behaviour)
        first, *others = [gradient_at(problem, theta, rollouts) for problem in problems]
        assert np.abs(first).max() > 1e-3
        for other in others:
            np.testing.assert_allclose(other, first, rtol=1e-5, atol=1e-7)


def test_truncation_and_clip_reach_the_gradient():
    theta = some_theta(chain(**SMALL), 1.0)
    behaviour = theta + some_theta(chain(**SMALL), 1.0, seed=4)
    rollouts = rollouts_of(chain(**SMALL), behaviour)
    plain = gradient_at(chain(**SMALL), theta, rollouts)
    for knobs in [{"truncation": 0.5}, {"clip_low": 0.2, "clip_high": 0.28}]:
        assert (gradient_at(chain(**SMALL, **knobs), theta, rollouts) != plain).any()


def test_groups_share_a_prompt_and_advantages_of_equal_rewards_vanish():
    problem = chain(**SMALL, prompts=3, num_generations=4)
    rollouts = rollouts_of(problem, problem.theta0)
    prompt = np.asarray(rollouts.prompt).reshape(-1, 4)
    assert (prompt == prompt[:, :1]).all()
    assert set(prompt.ravel().tolist()) == {0, 1, 2}
    advantage = np.asarray(rollouts.advantage).reshape(-1, 4)
    np.testing.assert_allclose(advantage.sum(axis=1), 0, atol=1e-6)
    assert (np.ptp(advantage, axis=1) == 0).any()


def test_bands_of_prompts():
    found = bands(length=10, vocabulary=2, prompts=3, centre=0.5, half_width=0.1, spread=0.4)
    sums = [np.flatnonzero(row).tolist() for row in found]
    assert sums == [[2, 3, 4], [4, 5, 6], [6, 7, 8]]


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"length": 0}, "length must be an integer in .* got 0"),
        ({"length": 2.5}, "got 2.5"),
        ({"vocabulary": 1}, "vocabulary .* got 1"),
        ({"segments": 0}, "segments .* got 0"),
        ({"segments": 9}, r"segments must be an integer in \[1, 8\], got 9"),
        ({"prompts": 0}, "prompts .* got 0"),
        ({"num_generations": 0}, "num_generations .* got 0"),
        ({"spectrum_power": -0.5}, "spectrum_power .* got -0.5"),
        ({"band_centre": 1.5}, "band_centre .* got 1.5"),
        ({"band_half_width": 0.001}, "band_half_width .* got 0.001: 0 of 25 in"),
        ({"band_half_width": 1.0}, "got 1.0: 25 of 25 in"),
        ({"centre_spread": -1.0}, "centre_spread .* got -1.0"),
        ({"prompts": 2, "centre_spread": 1.0}, "at 1.1, got 0.05: 0 of 25 in"),
        ({"reward_noise": math.inf}, "reward_noise .* got inf"),
        ({"kl": math.nan}, "kl .* got nan"),
        ({"ratio": "word"}, "ratio must be one of .* got 'word'"),
        ({"truncation": 0.0}, "truncation must be > 0, got 0.0"),
        ({"clip_low": -0.2}, "clip_low must be > 0, got -0.2"),
        ({"clip_high": math.nan}, "clip_high must be > 0, got nan"),
    ],
)
def test_bad_knobs_are_named(knobs, words):
    with pytest.raises(ValueError, match=words):
        chain(**knobs)


def test_building_compiles_nothing():
    compiled = []
    count = lambda event, _, **__: compiled.append(event)  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        chain(**SMALL, prompts=2, segments=2)
    finally:
        jax.monitoring.unregister_event_duration_listener(count)
    assert not [event for event in compiled if "compile" in event]


def test_on_policy_reaches_the_target_in_hundreds_of_updates():
    problem = chain()
    target = 0.02 * problem.initial_loss
    lanes = [Lane(64, 64, 64, 2.0, False, False, target, 3000, seed, 0) for seed in range(4)]
    ends = [end for block in run_lanes(problem, lanes, allocation_for(lanes)) for end in block]
    assert {end.status for end in ends} == {"reached"}
    assert 200 < np.median([end.updates for end in ends]) < 2000


def lagged_run(problem, lag, room, batch, updates, seed, move):
    """Band probability (updates,) when rollouts are exactly ``lag`` < ``room`` updates old.

    Each update adds ``move(gradient)``. The first updates use the first policy.
    """
    env, weight = problem.env, jnp.full(batch, 1 / batch)

    def step(carry, inputs):
        theta, past = carry
        t, key = inputs
        past = past.at[t % room].set(theta)
        old = problem.forward(env, past[jnp.maximum(t - lag, 0) % room])
        rollouts = problem.rollout(
            env, old, problem.noise(StreamKeys(*jax.random.split(key, 3)), (batch,))
        )
        view = problem.forward(env, theta)
        ascent = problem.gradient(env, view, rollouts, jnp.full(batch, lag), weight)
        return (theta + move(ascent), past), view.success[0]

    theta = jnp.asarray(problem.theta0)
    keys = jax.random.split(jax.random.key(seed), updates)
    past = jnp.zeros((room, len(theta)))
    return jax.lax.scan(step, (theta, past), (jnp.arange(updates), keys))[1]


def success_by_update(problem, lag, batch, updates, seeds, step_size=0.2):
    """Band probability (seeds, updates) of steps of length ``step_size``, whatever the gradient."""

    def move(ascent):
        return step_size * ascent / jnp.maximum(jnp.linalg.norm(ascent), 1e-12)

    def run(seed):
        return lagged_run(problem, lag, lag + 1, batch, updates, seed, move)

    return np.asarray(jax.jit(jax.vmap(run))(jnp.arange(seeds)))


ESTIMATORS = {
    "sequence": {},
    "truncated": {"truncation": 2.0},
    "token": {"ratio": "token"},
    "geometric": {"ratio": "geometric"},
    "none": {"ratio": "none"},
}


def final_success(estimator, lag, *, seeds, batch=128, updates=400, **knobs):
    """Median over seeds of the band probability in the last 20 updates."""
    problem = chain(**BIT_CHAIN, **knobs, **ESTIMATORS[estimator])
    found = success_by_update(problem, lag, batch, updates, seeds)
    return np.median(found[:, -20:].mean(axis=1))


def test_at_lag_20_the_sequence_ratio_survives_and_token_and_geometric_collapse():
    # Notes of an earlier numpy study: sequence .61, token .19, geometric .23; on-policy .60 here.
    task = {"length": 32, "band_centre": 0.75, "band_half_width": 0.05, "seeds": 3}
    assert final_success("sequence", 0, **task) > 0.55
    assert final_success("sequence", 20, **task) > 0.55
    assert final_success("token", 20, **task) < 0.3
    assert final_success("geometric", 20, **task) < 0.3


@pytest.mark.slow
def test_lag_of_20_and_100_on_128_tokens():
    # An earlier numpy study: lag 0 .87; lag 20 .86 .86 .00 .00 .00; lag 100 .82 .72 .00 .12 .00.
    task = {"length": 128, "band_centre": 0.6, "band_half_width": 0.03, "seeds": 8}
    for name in ESTIMATORS:
        found = {lag: final_success(name, lag, **task) for lag in (0, 20, 100)}
        assert found[0] == pytest.approx(0.87, abs=0.03)
        if name in ("sequence", "truncated"):
            assert found[20] == pytest.approx(0.86, abs=0.05)
            assert 0.55 < found[100] < found[20]
        else:
            assert max(found[20], found[100]) < 0.15


@pytest.mark.slow
def test_sequence_ratio_gains_from_batch_size_and_the_biased_ones_do_not():
    # An earlier numpy study, B = 4 / 32 / 512: sequence .56 .70 .72, truncated .58 .68 .69, token
    # and geometric <= .21. Its baseline is not stated; here it is that of the batch. At B = 4 the
    # two are level: .378 +- .009 and .382 +- .009 over 256 seeds.
    mean = {}
    for name in ("sequence", "truncated", "token", "geometric"):
        for batch in (4, 32, 512):
            problem = chain(
                length=64,
                band_centre=0.65,
                **BIT_CHAIN,
                **ESTIMATORS[name],
                num_generations=batch,
            )
            mean[name, batch] = success_by_update(problem, 30, batch, 400, 8).mean()
    assert mean["sequence", 4] < mean["sequence", 32] < mean["sequence", 512]
    assert mean["truncated", 4] == pytest.approx(mean["sequence", 4], abs=0.25)
    assert mean["truncated", 512] < mean["sequence", 512]
    assert max(mean[name, batch] for name, batch in mean if name in ("token", "geometric")) < 0.25


def largest_step(ratio, horizons, steps, updates=600):
    """Largest step size at which the last quarter keeps 90 % of the best success, by horizon."""
    problem = chain(length=16, **BIT_CHAIN, ratio=ratio)
    lanes = [
        Lane(64, 64, 64 * horizon, step, False, False, -1.0, 10**9, seed, i)
        for i, horizon in enumerate(horizons)
        for step in steps
        for seed in (0, 1)
    ]
    allocation = Allocation(64, 64, max(horizons), 50)
    _, losses = recorded_run(problem, allocation, lanes, updates, lambda step: step.loss)
    last = losses[-updates // 4 :].mean(axis=0).reshape(len(horizons), len(steps), 2).mean(axis=-1)
    kept = last < 0.1 * float(problem.env.best)
    return np.array([steps[row].max() for row in kept])


def slopes(horizons, limits):
    return np.diff(np.log(limits)) / np.diff(np.log(horizons))


def test_step_limit_without_ratios_is_flat_then_falls_as_one_over_horizon():
    horizons, steps = np.array([1, 2, 16, 32]), 2.0 ** np.arange(-3, 2.5, 0.5)
    flat, _, falling = slopes(horizons, largest_step("none", horizons.tolist(), steps))
    assert abs(flat) < 0.6
    assert falling == pytest.approx(-1, abs=0.6)


@pytest.mark.slow
def test_step_limit_without_ratios_follows_the_formula():
    horizons, steps = np.array([1, 2, 4, 8, 16, 32, 64]), 2.0 ** np.arange(-5, 2.5, 0.25)
    limits = largest_step("none", horizons.tolist(), steps, updates=800)
    formula = np.array([uncorrected_step_limit(horizon) for horizon in horizons.tolist()])
    curvature = formula / limits
    assert curvature.max() / curvature.min() < 1.7
    assert abs(slopes(horizons[:2], limits[:2])[0]) < 0.3
    long = np.polyfit(np.log(horizons[3:]), np.log(limits[3:]), 1)[0]
    assert long == pytest.approx(-1, abs=0.15)
    corrected = largest_step("sequence", horizons.tolist(), steps, updates=800)
    assert np.polyfit(np.log(horizons), np.log(corrected), 1)[0] > -0.5


def lagged_step_limit(lag):
    """Largest stable eta lambda of ``theta' = theta - eta lambda theta_(lag updates ago)``.

    Roots of ``z^(lag + 1) - z^lag + h`` meet the unit circle at ``h = 2 sin(pi / (4 lag + 2))``.
    """
    return 2 * np.sin(np.pi / (4 * lag + 2))


@pytest.mark.parametrize("lag", [0, 1, 4, 16])
def test_lagged_step_limit_is_where_the_largest_root_has_size_one(lag):
    for share, stable in [(0.99, True), (1.01, False)]:
        polynomial = np.zeros(lag + 2)
        polynomial[0], polynomial[-1] = 1, share * lagged_step_limit(lag)
        polynomial[1] -= 1
        assert (np.abs(np.roots(polynomial)).max() < 1) == stable


def test_step_limit_without_ratios_at_exact_lag_has_no_flat_part():
    # One lag already halves the limit, where a buffer of horizon 2 keeps it: half of its batch is
    # fresh. From a few updates on it falls as 1/lag, like the buffer's. Over lags 0 to 32 formula
    # over limit, a curvature, is 0.62 to 0.71.
    problem = chain(length=16, **BIT_CHAIN, ratio="none")
    lags, multiples = np.array([0, 1, 4, 16]), 2.0 ** np.arange(-0.25, 1.5, 0.25)
    lag, multiple, seed = map(np.ravel, np.meshgrid(lags, multiples, [0, 1], indexing="ij"))

    def run(lag, step_size, seed):
        move = lambda ascent: step_size * ascent  # noqa: E731
        return lagged_run(problem, lag, lags.max() + 1, 64, 600, seed, move)

    steps = np.float32(multiple * lagged_step_limit(lag))
    success = np.asarray(jax.jit(jax.vmap(run))(lag, steps, seed))
    last = success[:, -150:].mean(axis=-1).reshape(len(lags), len(multiples), 2).mean(axis=-1)
    kept = last > 0.9 * float(problem.env.best)
    assert kept[:, 0].all()
    assert not kept[:, -1].any()
    largest = np.array([multiples[row].max() for row in kept])
    assert largest.max() / largest.min() < 1.3
    limits = largest * lagged_step_limit(lags)
    assert limits[0] / limits[1] == pytest.approx(2, rel=0.2)
    assert slopes(lags[2:], limits[2:])[0] == pytest.approx(-1, abs=0.2)
