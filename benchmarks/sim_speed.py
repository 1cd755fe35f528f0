"""Sample-gradients per second of the simulator beside NumPy, numba and a flashbax buffer.

Tabular bandit, 8 prompts x 4 arms, B 64, R 16: importance-corrected policy gradient, one update
after another, objective evaluated at every update; N 64 and 256, drawn without and with
replacement. All do the same work in the same process; numba runs on one thread, the simulator on
every core. Rounds alternate them, and ratios are taken by round.

flashbax draws with replacement, so it is compared there: its item buffer, added to and sampled
inside a `scan` over updates, `vmap` over as many lanes a program and as many threads as the
simulator. The bandit's functions are the simulator's own, so what differs is the buffer, capacity
as a shape instead of a traced value, and random numbers update by update instead of in bulk.

    make bench                        prints a table
    make bench ARGS=--save            and writes it to benchmarks/sim_speed.json
"""

import json
import os
import platform
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import flashbax
import jax
import jax.numpy as jnp
import numba
import numpy as np
import tyro

from sim.lanes import WIDTH, allocation_for, compiled_runner, run_lanes
from sim.problems import Problem, StreamKeys
from sim.problems.bandit import bandit
from sim.train import Lane

PROMPTS, ARMS = 8, 4
BATCH, NEW = 64, 16
CASES = ((64, False), (64, True), (256, False), (256, True))
STEP_SIZE = 0.1
UPDATES, RUNS = 6400, 512


def numpy_loop(
    reward_mean: np.ndarray, stored_size: int, updates: int, replace: bool, seed: int
) -> float:
    rng = np.random.default_rng(seed)
    theta = np.zeros((PROMPTS, ARMS))

    def policy():
        logp = theta - np.logaddexp.reduce(theta, axis=1, keepdims=True)
        return logp, np.exp(logp)

    def generated(logp, prob, count):
        prompt = rng.integers(0, PROMPTS, count)
        below = prob.cumsum(axis=1)[prompt, :-1]
        arm = (rng.random(count)[:, None] >= below).sum(axis=1)
        reward = rng.random(count) < reward_mean[prompt, arm]
        value = (prob * reward_mean).sum(axis=1)[prompt]
        return prompt, arm, logp[prompt, arm], reward - value

    stored = generated(*policy(), stored_size)
    place = 0
    objective = 0.0
    for t in range(updates):
        logp, prob = policy()
        objective = (prob * reward_mean).sum() / PROMPTS
        if t:
            slots = (place + np.arange(NEW)) % stored_size
            for column, fresh in zip(stored, generated(logp, prob, NEW), strict=True):
                column[slots] = fresh
            place = (place + NEW) % stored_size
        if replace:
            pick = rng.integers(0, stored_size, BATCH)
        elif stored_size > BATCH:
            pick = rng.choice(stored_size, BATCH, replace=False, shuffle=False)
        else:
            pick = slice(None)
        prompt, arm, behaviour, advantage = (column[pick] for column in stored)
        weight = np.exp(logp[prompt, arm] - behaviour) * advantage / BATCH
        cells = np.bincount(prompt * ARMS + arm, weight, PROMPTS * ARMS).reshape(PROMPTS, ARMS)
        theta += STEP_SIZE * (cells - prob * cells.sum(axis=1, keepdims=True))
    return objective


@numba.njit(fastmath=True)
def _policy(theta, logp, prob):
    for p in range(PROMPTS):
        top = theta[p, 0]
        for a in range(1, ARMS):
            top = max(top, theta[p, a])
        total = 0.0
        for a in range(ARMS):
            prob[p, a] = np.exp(theta[p, a] - top)
            total += prob[p, a]
        log_total = top + np.log(total)
        for a in range(ARMS):
            prob[p, a] /= total
            logp[p, a] = theta[p, a] - log_total


@numba.njit(fastmath=True)
def _generate(reward_mean, logp, prob, value, prompt, arm, behaviour, advantage, slot):
    p = np.random.randint(0, PROMPTS)
    u = np.random.random()
    a, below = 0, prob[p, 0]
    while a < ARMS - 1 and u >= below:
        a += 1
        below += prob[p, a]
    reward = 1.0 if np.random.random() < reward_mean[p, a] else 0.0
    prompt[slot], arm[slot] = p, a
    behaviour[slot] = logp[p, a]
    advantage[slot] = reward - value[p]


@numba.njit(fastmath=True)
def _value(reward_mean, prob, value):
    objective = 0.0
    for p in range(PROMPTS):
        value[p] = 0.0
        for a in range(ARMS):
            value[p] += prob[p, a] * reward_mean[p, a]
        objective += value[p] / PROMPTS
    return objective


@numba.njit(fastmath=True)
def numba_loop(reward_mean, stored_size, updates, replace, seed):
    np.random.seed(seed)
    theta = np.zeros((PROMPTS, ARMS), np.float32)
    logp, prob = np.empty_like(theta), np.empty_like(theta)
    cells, value = np.empty_like(theta), np.empty(PROMPTS, np.float32)
    prompt, arm = np.empty(stored_size, np.int32), np.empty(stored_size, np.int32)
    behaviour, advantage = np.empty(stored_size, np.float32), np.empty(stored_size, np.float32)
    order = np.arange(stored_size)
    _policy(theta, logp, prob)
    objective = _value(reward_mean, prob, value)
    for slot in range(stored_size):
        _generate(reward_mean, logp, prob, value, prompt, arm, behaviour, advantage, slot)
    place = 0
    for t in range(updates):
        _policy(theta, logp, prob)
        objective = _value(reward_mean, prob, value)
        if t:
            for i in range(NEW):
                slot = (place + i) % stored_size
                _generate(reward_mean, logp, prob, value, prompt, arm, behaviour, advantage, slot)
            place = (place + NEW) % stored_size
        cells[:] = 0.0
        for i in range(BATCH):
            if replace:
                slot = np.random.randint(0, stored_size)
            elif stored_size > BATCH:
                other = np.random.randint(i, stored_size)
                order[i], order[other] = order[other], order[i]
                slot = order[i]
            else:
                slot = i
            p, a = prompt[slot], arm[slot]
            cells[p, a] += np.exp(logp[p, a] - behaviour[slot]) * advantage[slot]
        for p in range(PROMPTS):
            total = 0.0
            for a in range(ARMS):
                total += cells[p, a]
            for a in range(ARMS):
                theta[p, a] += np.float32(STEP_SIZE / BATCH) * (cells[p, a] - prob[p, a] * total)
    return objective


def tabular_bandit() -> Problem:
    return bandit(prompts=PROMPTS, arms=ARMS, features=0)


def simulated(
    stored: int, replace: bool, workers: int, updates: int = UPDATES, runs: int = RUNS
) -> Callable[[], np.ndarray]:
    """Return a function that runs the simulator, compiled, for the final objectives (runs,)."""
    problem = tabular_bandit()
    lanes = [
        Lane(BATCH, NEW, stored, STEP_SIZE, replace, False, -1.0, updates, seed, 1)
        for seed in range(runs)
    ]
    allocation = allocation_for(lanes)
    runner = compiled_runner(problem, allocation)

    def run() -> np.ndarray:
        ended = run_lanes(problem, lanes, allocation, workers=workers, runner=runner)
        return np.array([float(problem.env.best) - end.loss for some in ended for end in some])

    return run


def with_flashbax(
    stored: int, workers: int, updates: int = UPDATES, runs: int = RUNS
) -> Callable[[], np.ndarray]:
    """Return a function that trains with flashbax's item buffer, for the objectives (runs,)."""
    problem = tabular_bandit()
    env, weight = problem.env, jnp.full(BATCH, 1 / BATCH)
    buffer = flashbax.make_item_buffer(
        max_length=stored, min_length=BATCH, sample_batch_size=BATCH, add_batches=True
    )

    def generated(view, key, count):
        return problem.rollout(
            env, view, problem.noise(StreamKeys(*jax.random.split(key, 3)), (count,))
        )

    def started(key):
        key, fill = jax.random.split(key)
        theta = jnp.asarray(problem.theta0)
        rollouts = generated(problem.forward(env, theta), fill, stored)
        empty = buffer.init(jax.tree.map(lambda leaf: leaf[0], rollouts))
        return (
            theta,
            buffer.add(empty, rollouts),
            key,
            problem.loss(env, problem.forward(env, theta)),
        )

    def update(carry, _):
        theta, experience, key, _ = carry
        key, new, draw = jax.random.split(key, 3)
        view = problem.forward(env, theta)
        loss = problem.loss(env, view)
        experience = buffer.add(experience, generated(view, new, NEW))
        batch = buffer.sample(experience, draw).experience
        ascent = problem.gradient(env, view, batch, jnp.zeros(BATCH, jnp.int32), weight)
        return (theta + STEP_SIZE * ascent, experience, key, loss), None

    start = jax.jit(jax.vmap(started))
    train = jax.jit(
        jax.vmap(lambda carry: jax.lax.scan(update, carry, length=updates)[0]), donate_argnums=0
    )

    def lanes(keys):
        *_, loss = train(start(keys))
        return np.asarray(env.best - loss)

    def run() -> np.ndarray:
        keys = jax.random.split(jax.random.key(0), (runs // WIDTH, WIDTH))
        with ThreadPoolExecutor(workers) as pool:
            return np.concatenate(list(pool.map(lanes, keys)))

    return run


def seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def agreed(objectives: dict[str, np.ndarray]) -> dict[str, float]:
    """Return the mean objective of each, once all agree with the simulator within the noise."""
    ours = objectives["simulator"]
    for name, found in objectives.items():
        error = np.sqrt(ours.var() / len(ours) + found.var() / len(found))
        if abs(found.mean() - ours.mean()) > 4.5 * error:
            raise RuntimeError(f"{name} learns something else: {found.mean()}, not {ours.mean()}")
    return {name: float(found.mean()) for name, found in objectives.items()}


def spread(ratio: np.ndarray, name: str) -> dict[str, float]:
    return {
        f"to_{name}_median": float(np.median(ratio)),
        f"to_{name}_low": float(ratio.min()),
        f"to_{name}_high": float(ratio.max()),
    }


def compared(stored: int, replace: bool, rounds: int, workers: int) -> dict[str, object]:
    reward_mean = np.asarray(tabular_bandit().env.reward_mean)
    loops = {
        "numpy": lambda: numpy_loop(reward_mean, stored, 2000, replace, 0),
        "numba": lambda: numba_loop(reward_mean, stored, 200_000, replace, 0),
        "simulator": simulated(stored, replace, workers),
    }
    work = {"numpy": 2000, "numba": 200_000, "simulator": UPDATES * RUNS}
    if replace:
        loops["flashbax"] = with_flashbax(stored, workers)
        work["flashbax"] = UPDATES * RUNS
    found = {name: loop() for name, loop in loops.items()}
    # All must agree on what they compute: objective after the same number of updates.
    found["numba"] = [numba_loop(reward_mean, stored, UPDATES, replace, seed) for seed in range(64)]
    del found["numpy"]
    objective = agreed({name: np.array(values) for name, values in found.items()})
    rates: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(rounds):
        for name, loop in loops.items():
            rates[name].append(work[name] * BATCH / seconds(loop))
    ratios = {name: np.array(rates["simulator"]) / np.array(rates[name]) for name in loops}
    row: dict[str, object] = {"buffer_size": stored, "draw": "with" if replace else "without"}
    row |= {f"{name}_per_second": float(np.median(some)) for name, some in rates.items()}
    row |= spread(ratios["numba"], "numba")
    if replace:
        row |= spread(ratios["flashbax"], "flashbax")
    return row | {"to_numpy_median": float(np.median(ratios["numpy"])), "objective": objective}


def line(row: dict) -> str:
    """Return the rates of a case and the ratios to each of the others, median [min, max]."""
    text = f"N {row['buffer_size']:<3d} draw {row['draw']:7s}"
    for name in ("numpy", "numba", "flashbax", "simulator"):
        if f"{name}_per_second" in row:
            text += f"  {name} {row[f'{name}_per_second'] / 1e6:.2f} M/s"
    for name in ("numba", "flashbax"):
        if f"to_{name}_median" in row:
            median, low, high = (row[f"to_{name}_{which}"] for which in ("median", "low", "high"))
            text += f"\n   {median:.2f} [{low:.2f}, {high:.2f}] x {name}"
    return f"{text}\n   {row['to_numpy_median']:.0f} x numpy"


def main(rounds: int = 7, workers: int | None = None, save: bool = False) -> None:
    """Time all in turn, `rounds` times, and print medians and ratios round by round."""
    workers = (os.cpu_count() or 1) if workers is None else workers
    print(f"sample-gradients per second, B {BATCH} R {NEW}, {rounds} rounds, numba on 1 thread")
    rows = []
    for stored, replace in CASES:
        rows.append(compared(stored, replace, rounds, workers))
        print(line(rows[-1]))
        print(f"   mean objective after {UPDATES} updates: {rows[-1]['objective']}", flush=True)
    if save:
        record = {"cores": os.cpu_count(), "python": platform.python_version()}
        record |= {name: version(name) for name in ("jax", "numba", "flashbax")} | {"rows": rows}
        Path(__file__).with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    tyro.cli(main)
