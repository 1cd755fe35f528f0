"""An accelerator runs the sweep a CPU runs: same draws, same ends up to rounding.

Exact on every device: random bits, uniform numbers and drawn ranks, which are integers or products
with powers of two. Not exact: exp, log and division round differently, and sums in another order,
on an accelerator not even in the same order twice. Now and then that flips a sampled action, and
from there on a lane is another run of the same setting.
"""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from sim.lanes import ACCELERATOR_WIDTH, Lane, compiled_runner, run_lanes
from sim.problems.bandit import bandit
from sim.train import Allocation, block_numbers, stack_lanes

ROOT = Path(__file__).parents[2]
ALLOCATION = Allocation(16, 16, 4, 16)
LANES = [
    Lane(16, new, stored, 2.0, False, False, 0.0, 100, seed, stored)
    for new, stored in [(16, 16), (4, 16), (16, 64)]
    for seed in range(50)
]


@pytest.fixture
def accelerator():
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        pytest.skip("jax sees no accelerator")
    return device


def ends(device=None):
    """Ends of the lanes in their order, on one device or on all."""
    problem = bandit()
    runner = None if device is None else compiled_runner(problem, ALLOCATION, device)
    return sorted(
        end for some in run_lanes(problem, LANES, ALLOCATION, runner=runner) for end in some
    )


@pytest.mark.gpu
def test_draws_are_the_same_on_every_device(accelerator):
    problem, lanes = bandit(), stack_lanes(LANES)

    def numbers(device):
        placed = jax.device_put(lanes, device)
        drawn = jax.jit(lambda some: block_numbers(problem, ALLOCATION, some, some.seed * 0))
        return jax.tree.leaves(jax.device_get(drawn(placed)))

    cpu = numbers(jax.local_devices(backend="cpu")[0])
    for ours, theirs in zip(cpu, numbers(accelerator), strict=True):
        assert (ours == theirs).all()


@pytest.mark.gpu
def test_lanes_end_alike(accelerator):
    runner = compiled_runner(bandit(), ALLOCATION, accelerator)
    assert runner.width == ACCELERATOR_WIDTH
    assert runner.env.reward_mean.devices() == {accelerator}
    cpu, ours = ends(jax.local_devices(backend="cpu")[0]), ends(accelerator)
    assert [end[:3] for end in ours] == [end[:3] for end in cpu]
    gaps = np.array([(one.loss, other.loss) for one, other in zip(cpu, ours, strict=True)])
    assert np.isclose(*gaps.T, rtol=1e-3).mean() > 0.9


def sweep_rows(folder, **environment):
    """Rows of a small sweep by id, run by the command in a process of its own."""
    command = [sys.executable, "-m", "sim.sweep", "--smoke", "--id", "small"]
    subprocess.run(
        [*command, "--results", str(folder)], cwd=ROOT, env=os.environ | environment, check=True
    )
    with open(folder / "small" / "table.csv") as table:
        return {row["id"]: row for row in csv.DictReader(table)}


def assert_agree(rows, others):
    """Same statuses but for a few at the limit, and no shift of the updates to the target."""
    assert rows.keys() == others.keys()
    pairs = [(row, others[name]) for name, row in rows.items()]
    same = [one["status"] == other["status"] for one, other in pairs]
    assert np.mean(same) > 0.98
    logs = np.log([[float(row["updates"]) for row in pair] for pair in pairs])
    shift = logs[:, 1] - logs[:, 0]
    assert abs(shift.mean()) <= 4.5 * shift.std() / np.sqrt(len(shift))
    assert np.median(np.abs(shift)) < 0.01


@pytest.mark.gpu
def test_a_small_sweep_agrees_with_the_cpu(accelerator, tmp_path):
    rows = sweep_rows(tmp_path / "accelerator")
    assert_agree(rows, sweep_rows(tmp_path / "cpu", JAX_PLATFORMS="cpu"))


DEVICES = """
import json
from tests.sim.test_gpu import ends
import jax
print(json.dumps([ends(), ends(jax.local_devices()[1])]))
"""


def test_one_worker_a_device():
    """Two devices, here both on the CPU, share the lanes and end them as one alone does."""
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    command = [sys.executable, "-c", DEVICES]
    run = subprocess.run(
        command, cwd=ROOT, env=os.environ | flags, check=True, capture_output=True, text=True
    )
    shared, alone = json.loads(run.stdout)
    assert len(shared) == len(LANES)
    assert shared == alone
