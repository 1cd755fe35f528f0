"""`import theory` is quick and needs NumPy only, and so does a recommendation."""

import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEAVY = {"jax", "torch", "scipy", "sympy", "pandas", "tyro", "matplotlib", "transformers", "optuna"}
REPORT = """
import sys, time
import numpy
start = time.perf_counter()
import theory
theory.optimal_replay_ratio(5.28, 1)
theory.optimal_design(5.28, 1, batch_size=60, gpus=8)
print(time.perf_counter() - start, *sorted({name.split(".")[0] for name in sys.modules}))
"""


def fresh_process(*arguments):
    start = time.perf_counter()
    result = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return time.perf_counter() - start, result.stdout


def test_import_and_public_calls_are_quick_and_light():
    walls, modules = [], set()
    for _ in range(3):
        wall, out = fresh_process("-c", REPORT)
        walls.append(wall)
        modules = set(out.split()[1:])
    assert statistics.median(walls) < 0.5
    assert not modules & HEAVY
    assert "theory" in modules


def test_recommend_command_is_quick():
    arguments = ("-m", "theory", "recommend", "--cost-gen", "5.28", "--batch-size", "60", "--json")
    assert statistics.median(fresh_process(*arguments)[0] for _ in range(3)) < 1.0
