"""Every bad input ends as one line that names the value, exit code 2 and no traceback."""

import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from theory import optimal_design, optimal_replay_ratio
from theory.__main__ import main
from theory.command import run_command

ROOT = Path(__file__).parents[2]
NAN, INF = float("nan"), float("inf")
RECOMMEND = ["recommend", "--cost-gen", "5", "--batch-size", "60"]
TABLE = ["table", "--cost-gen", "5"]

COMMAND_LINES = [
    ([], "recommend, table"),
    (["reccommend"], "reccommend"),
    (["recommend"], "--cost-gen"),
    (["recommend", "--cost-gen", "5"], "--batch-size"),
    (["table"], "--cost-gen"),
    (["recommend", "--cost-gen", "-5", "--batch-size", "60"], "-5"),
    (["recommend", "--cost-gen", "0", "--batch-size", "60"], "0"),
    (["recommend", "--cost-gen", "nan", "--batch-size", "60"], "nan"),
    (["recommend", "--cost-gen", "inf", "--batch-size", "60"], "inf"),
    (["recommend", "--cost-gen", "five", "--batch-size", "60"], "'five'"),
    (["recommend", "--cost-gen", "--batch-size", "60"], "--cost-gen"),
    (["recommend", "--cost-gen", "1e308", "--batch-size", "60", "--cost-train", "1e-9"], "1e-09"),
    ([*RECOMMEND, "--cost-train", "0"], "cost_train = 0"),
    ([*RECOMMEND, "--cost-generation", "3"], "--cost-generation"),
    ([*RECOMMEND, "--json", "yes"], "yes"),
    ([*RECOMMEND, "--rho", "-0.1"], "-0.1"),
    ([*RECOMMEND, "--rho", "1.5"], "1.5"),
    ([*RECOMMEND, "--rho", "nan"], "nan"),
    ([*RECOMMEND, "--alpha", "-0.2"], "-0.2"),
    ([*RECOMMEND, "--alpha", "0"], "alpha = 0"),
    ([*RECOMMEND, "--gpus", "1"], "gpus = 1"),
    ([*RECOMMEND, "--gpus", "8.5"], "8.5"),
    ([*RECOMMEND, "--gpus", "1000000"], "1000000"),
    ([*RECOMMEND, "--num-generations", "7"], "num_generations = 7"),
    ([*RECOMMEND, "--num-generations", "0"], "num_generations = 0"),
    (["recommend", "--cost-gen", "5", "--batch-size", "0"], "batch_size = 0"),
    (["recommend", "--cost-gen", "5", "--batch-size", "60.5"], "60.5"),
    (["recommend", "--cost-gen", "5", "--batch-size", "99999999999"], "99999999999"),
    ([*TABLE, "--splits", "6"], "'6'"),
    ([*TABLE, "--splits", "6,2", "6,b"], "'6,b'"),
    ([*TABLE, "--splits", "6,2,1"], "'6,2,1'"),
    ([*TABLE, "--splits", "0,8"], "'0,8'"),
    ([*TABLE, "--splits", "-6,2"], "-6,2"),
    ([*TABLE, "--splits", "٦,٢"], "٦,٢"),
    ([*TABLE, "--splits", ""], "''"),
]

ratio = partial(partial, optimal_replay_ratio)
design = partial(partial, optimal_design)
CALLS = [
    (ratio(-1, 1), "cost_gen = -1"),
    (ratio(0, 1), "cost_gen = 0"),
    (ratio(NAN, 1), "cost_gen = nan"),
    (ratio(INF, 1), "cost_gen = inf"),
    (ratio(10**400, 1), "cost_gen = 1000"),
    (ratio("5", 1), "cost_gen = '5'"),
    (ratio("5\n6", 1), r"cost_gen = '5\n6'"),
    (ratio(True, 1), "cost_gen = True"),
    (ratio(None, 1), "cost_gen = None"),
    (ratio(5j, 1), "cost_gen = 5j"),
    (ratio([5.0], 1), "cost_gen = [5.0]"),
    (ratio(5, -2.5), "cost_train = -2.5"),
    (ratio(1e-300, 1e300), "1e-300 and 1e+300"),
    (ratio(5, 1, rho=2), "rho = 2"),
    (ratio(5, 1, rho=True), "rho = True"),
    (ratio(5, 1, alpha=NAN), "alpha = nan"),
    (ratio(5, 1, rho=0, alpha=0), "alpha = 0"),
    (ratio(5, 1, noise_to_batch=0), "noise_to_batch = 0"),
    (ratio(5, 1, noise_to_batch=-3.0), "noise_to_batch = -3.0"),
    (ratio(5, 1, noise_to_batch=1.0, rho=0.5), "rho = 0.5"),
    (ratio(5, 1, noise_to_batch=1.0, alpha=0.2), "alpha = 0.2"),
    (design(5, 1, batch_size=60.0), "batch_size = 60.0"),
    (design(5, 1, batch_size=True), "batch_size = True"),
    (design(5, 1, batch_size=-8), "batch_size = -8"),
    (design(5, 1, batch_size="64"), "batch_size = '64'"),
    (design(5, 1, batch_size=60, num_generations=16), "batch_size = 60"),
    (design(5, 1, batch_size=60, gpus=0), "gpus = 0"),
    (design(5, 1, batch_size=60, gpus=2.0), "gpus = 2.0"),
    (design(5, 1, batch_size=60, alpha=1e-300, rho=0), "alpha=1e-300"),
]


@dataclass(frozen=True)
class NoFlags:
    """Takes no flags."""


def assert_one_line(code, err, value):
    assert code == 2
    assert err.startswith("error: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert value in err
    assert "Traceback" not in err


@pytest.mark.parametrize(("argv", "value"), COMMAND_LINES, ids=lambda case: str(case)[:60])
def test_command_line(argv, value, capsys):
    code = main(argv)
    out, err = capsys.readouterr()
    assert_one_line(code, err, value)
    assert out == ""


@pytest.mark.parametrize(("call", "value"), CALLS, ids=[value for _, value in CALLS])
def test_call(call, value, capsys):
    code = run_command((NoFlags, lambda _: print(call())), [], "check")
    out, err = capsys.readouterr()
    assert_one_line(code, err, value)
    assert out == ""


@pytest.mark.parametrize(
    ("argv", "value"), [COMMAND_LINES[i] for i in (1, 5, 29)], ids=lambda case: str(case)[:60]
)
def test_command_line_in_its_own_process(argv, value):
    command = [sys.executable, "-m", "theory", *argv]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert_one_line(result.returncode, result.stderr, value)
