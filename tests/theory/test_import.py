"""`import theory` is quick and needs NumPy only, and so does a recommendation."""

import resource
import statistics
import subprocess
import sys
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
    """CPU seconds of a process, which other work on the machine does not lengthen, and output."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent, result.stdout


def test_import_and_public_calls_are_quick_and_light():
    spent, modules = [], set()
    for _ in range(3):
        seconds, out = fresh_process("-c", REPORT)
        spent.append(seconds)
        modules = set(out.split()[1:])
    assert statistics.median(spent) < 0.5
    assert not modules & HEAVY
    assert "theory" in modules


def test_recommend_command_is_quick():
    arguments = ("-m", "theory", "recommend", "--cost-gen", "5.28", "--batch-size", "60", "--json")
    assert statistics.median(fresh_process(*arguments)[0] for _ in range(3)) < 1.0
