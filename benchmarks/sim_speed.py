"""Sample-gradients per second of the simulator beside a NumPy loop and a numba loop.

Tabular bandit, 8 prompts x 4 arms, B 64, R 16: importance-corrected policy gradient, one update
after another, objective evaluated at every update; N 64 drawn without (the whole buffer) and with
replacement, and N 256 without. All three do the same work in the same process; numba runs on one
thread, the simulator on every core. Rounds alternate the three, and ratios are taken by round.

    make bench                        prints a table
    make bench ARGS=--save            and writes it to benchmarks/sim_speed.json
"""

import json
import os
import platform
import time
from pathlib import Path

import jax
import numba
import numpy as np
import tyro

from sim.lanes import allocation_for, compiled_runner, run_lanes
from sim.problems.bandit import bandit
from sim.train import Lane

PROMPTS, ARMS = 8, 4
BATCH, NEW = 64, 16
CASES = ((64, False), (64, True), (256, False))
STEP_SIZE = 0.1


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


def simulated(stored: int, replace: bool, updates: int, runs: int, workers: int | None):
    """Return a function that runs the simulator once, compiled, and its final objectives."""
    problem = bandit(prompts=PROMPTS, arms=ARMS, features=0)
    lanes = [
        Lane(BATCH, NEW, stored, STEP_SIZE, replace, False, -1.0, updates, seed, 1)
        for seed in range(runs)
    ]
    allocation = allocation_for(lanes)
    runner = compiled_runner(problem, allocation)

    def run():
        ended = run_lanes(problem, lanes, allocation, workers=workers, runner=runner)
        return [problem.env.best - end.loss for some in ended for end in some]

    return run, np.asarray(problem.env.reward_mean)


def seconds(run) -> tuple[float, object]:
    started = time.perf_counter()
    result = run()
    return time.perf_counter() - started, result


def compared(stored: int, replace: bool, rounds: int, workers: int | None) -> dict[str, object]:
    updates, runs = 6400, 512
    run, reward_mean = simulated(stored, replace, updates, runs, workers)
    loops = {
        "numpy": lambda: numpy_loop(reward_mean, stored, 2000, replace, 0),
        "numba": lambda: numba_loop(reward_mean, stored, 200_000, replace, 0),
        "simulator": run,
    }
    work = {"numpy": 2000, "numba": 200_000, "simulator": updates * runs}
    for loop in loops.values():
        loop()
    rates: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(rounds):
        for name, loop in loops.items():
            spent, _ = seconds(loop)
            rates[name].append(work[name] * BATCH / spent)
    # The three must agree on what they compute: mean objective after the same updates.
    check = [numba_loop(reward_mean, stored, updates, replace, seed) for seed in range(64)]
    objective = {"simulator": float(np.mean(run())), "numba": float(np.mean(check))}
    ratio = np.array(rates["simulator"]) / np.array(rates["numba"])
    return {
        "buffer_size": stored,
        "draw": "with" if replace else "without",
        **{f"{name}_per_second": float(np.median(found)) for name, found in rates.items()},
        "to_numba_median": float(np.median(ratio)),
        "to_numba_low": float(ratio.min()),
        "to_numba_high": float(ratio.max()),
        "to_numpy_median": float(
            np.median(np.array(rates["simulator"]) / np.array(rates["numpy"]))
        ),
        "objective": objective,
    }


def main(rounds: int = 7, workers: int | None = None, save: bool = False) -> None:
    """Time the three in turn, `rounds` times, and print medians and ratios round by round."""
    rows = [compared(stored, replace, rounds, workers) for stored, replace in CASES]
    print(f"sample-gradients per second, B {BATCH} R {NEW}, median of {rounds} rounds")
    for row in rows:
        print(
            f"N {row['buffer_size']:<3d} draw {row['draw']:7s} "
            f"numpy {row['numpy_per_second'] / 1e6:6.2f} M/s   "
            f"numba (1 thread) {row['numba_per_second'] / 1e6:6.1f} M/s   "
            f"simulator {row['simulator_per_second'] / 1e6:6.1f} M/s   "
            f"= {row['to_numba_median']:.2f} x numba "
            f"[{row['to_numba_low']:.2f}, {row['to_numba_high']:.2f}], "
            f"{row['to_numpy_median']:.0f} x numpy"
        )
        print(f"   mean objective after 6400 updates: {row['objective']}")
    if save:
        record = {"cores": os.cpu_count(), "python": platform.python_version()}
        record |= {"jax": jax.__version__, "numba": numba.__version__, "rows": rows}
        Path(__file__).with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    tyro.cli(main)
