"""A lane's result depends on its settings and seed alone, on every problem, bit for bit.

Not on its neighbours, its position or their number of updates: that is what lets a sweep replace
finished lanes by new ones, and go on after a kill to the same table.
"""

import numpy as np
import pytest

from sim.problems.bandit import bandit
from sim.problems.chain import chain
from sim.problems.mdp import garnet, gridworld
from sim.problems.q_learning import q_learning
from sim.problems.quadratic import quadratic
from sim.problems.trajectory import trajectory
from sim.train import Allocation, Lane, blank_state, block_runner, stack_lanes

SMALL_CHAIN = {"length": 4, "vocabulary": 3, "band_half_width": 0.13}
SLIPPERY = {"slip": 0.3, "step_reward": -0.1, "visit_power": 1.0}
PROBLEMS = {
    "bandit": bandit,
    "bandit groups": lambda: bandit(num_generations=4),
    "quadratic": quadratic,
    "chain": lambda: chain(**SMALL_CHAIN),
    "chain token groups": lambda: chain(**SMALL_CHAIN, num_generations=4, prompts=2, ratio="token"),
    "gridworld": lambda: trajectory(gridworld(**SLIPPERY), horizon=6, reward_noise=0.3, features=0),
    "garnet": lambda: trajectory(garnet(), horizon=9, features=12),
    "q_learning": lambda: q_learning(gridworld(**SLIPPERY), horizon=5, reward_noise=0.2),
}
ALLOCATION = Allocation(batch=16, width=16, rows=12, steps=16)
UPDATES = 48


def lane(new, stored, step, seed, setting):
    return Lane(16, new, stored, step, False, False, -1.0, 10**9, seed, setting)


@pytest.mark.parametrize("build", PROBLEMS.values(), ids=PROBLEMS)
def test_lane_depends_on_itself_alone(build):
    problem = build()
    designs = [(16, 16, 1.0), (4, 48, 0.5), (8, 32, 2.0), (4, 16, 0.25)]
    lanes = [lane(*designs[seed % 4], seed, 3) for seed in range(11)]
    strangers = [lane(8, 24, 1.5, 100 + i, 9) for i in range(10)]
    runner = block_runner(problem, ALLOCATION, lambda step: step.theta)

    def thetas(some):
        state = blank_state(problem, ALLOCATION, len(some))
        out = []
        for tick in range(0, UPDATES, ALLOCATION.steps):
            fresh = np.full(len(some), tick == 0)
            state, theta = runner(problem.env, stack_lanes(some), state, fresh, np.int32(tick))
            out.append(np.asarray(theta))
        return np.concatenate(out)

    together = thetas(lanes)
    assert np.isfinite(together).all()
    assert (thetas(lanes[::-1])[:, ::-1] == together).all()
    for i in (0, 6):
        among_strangers = thetas([*strangers[:i], lanes[i], *strangers[i:]])
        assert (among_strangers[:, i] == together[:, i]).all()
    assert (together[-1, 0] != together[-1, 4]).any()
