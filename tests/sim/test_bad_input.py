"""Whatever a user gets wrong: exit code 2, one line that names it, nothing written."""

import subprocess
import sys

import pytest

from sim.sweep import main

CASES = [
    (["--batch-size", "0"], "batch_size must be an integer >= 1, got 0"),
    (["--batch-size", "-64"], "-64"),
    (["--batch-size", "6.5"], "6.5"),
    (["--batch-size", "many"], "many"),
    (["--horizons", "0"], "horizons must be finite and > 0, got 0"),
    (["--horizons", "nan"], "nan"),
    (["--horizons", "inf"], "inf"),
    (["--horizons", "-2"], "-2"),
    (["--horizons", "0.5"], "horizons must be >= 1 update, got 0.5"),
    (["--horizons", "1.01"], "N = horizon 1.01 x R 64 must be a positive multiple of 1"),
    (["--horizons", "4", "4"], "must not repeat"),
    (["--horizons", "2000"], "must be <= 65535"),
    (["--replay-ratios", "0"], "replay_ratios must be finite and > 0, got 0"),
    (["--replay-ratios", "128"], "must be a positive multiple of 1, got 0.5"),
    (["--replay-ratios", "3"], "R = batch_size / replay ratio 3"),
    (["--replay-ratios", "8", "--horizons", "2"], "N >= B"),
    (["--step-sizes", "0"], "step_sizes must be finite and > 0, got 0"),
    (["--step-sizes", "-1"], "-1"),
    (["--step-sizes", "nan"], "nan"),
    (["--step-sizes", "large"], "large"),
    (["--seeds", "0"], "seeds must be an integer >= 1, got 0"),
    (["--seeds", "3"], "seeds must be even"),
    (["--first-seed", "-1"], "first_seed must be in [0, 2^31 - seeds), got -1"),
    (["--gen-train-ratios", "0"], "gen_train_ratios must be finite and > 0, got 0"),
    (["--gen-train-ratios", "-5"], "-5"),
    (["--gen-train-ratios", "nan"], "nan"),
    (["--gen-train-ratios", "inf"], "inf"),
    (["--gen-train-ratios", "dear"], "dear"),
    (["--target", "0"], "target must be a fraction in (0, 1), got 0"),
    (["--target", "1"], "got 1"),
    (["--target", "nan"], "nan"),
    (["--max-updates", "0"], "max_updates must be an integer >= 1, got 0"),
    (["--fixed-cost", "-1"], "fixed_cost must be finite and >= 0, got -1"),
    (["--num-generations", "0"], "num_generations must be an integer >= 1, got 0"),
    (["--num-generations", "7"], "batch_size must be a multiple of num_generations = 7, got 64"),
    (["--num-generations", "16", "--replay-ratios", "8"], "multiple of 16"),
    (["--problem", "quadratic", "--num-generations", "4"], "num_generations must be 1"),
    (["--problem", "atari"], "atari"),
    (["--draw", "sometimes"], "sometimes"),
    (["--start", "empty"], "empty"),
    (["--learning-rate", "1"], "--learning-rate"),
    (["--bandit.kl", "-1"], "kl must be finite and >= 0, got -1"),
    (["--bandit.arms", "1"], "arms must be an integer >= 2, got 1"),
    (["--bandit.reward-spread", "2"], "reward_spread must be in (0, 1], got 2"),
    (["--problem", "quadratic", "--quadratic.dim", "0"], "dim"),
    (["--problem", "quadratic", "--quadratic.noise-std", "nan"], "nan"),
    (["--processes", "0"], "processes must be an integer >= 1, got 0"),
    (["--processes", "-2"], "-2"),
    (["--processes", "1.5"], "1.5"),
    (["--engine", "dask"], "dask"),
    (["--ray-address", "auto"], "ray_address needs the engine ray, got 'auto' with local"),
    (["--engine", "ray", "--ray-address", "ray://head:10001"], "got 'ray://head:10001'"),
    (["--id", "../elsewhere"], "'../elsewhere'"),
    (["stray"], "stray"),
]


def check_refusal(code, err, word):
    assert code == 2
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("error: ")
    assert word in lines[0]
    assert "Traceback" not in err


@pytest.mark.parametrize(("arguments", "word"), CASES, ids=[" ".join(case) for case, _ in CASES])
def test_one_line_exit_2_nothing_written(arguments, word, tmp_path, capsys):
    code = main(["--results", str(tmp_path / "results"), *arguments])
    check_refusal(code, capsys.readouterr().err, word)
    assert not (tmp_path / "results").exists()


def test_results_below_a_regular_file(tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("mine")
    code = main(["--smoke", "--results", str(file / "below")])
    check_refusal(code, capsys.readouterr().err, str(file))
    assert file.read_text() == "mine"


def test_folder_of_another_config(tmp_path, capsys):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text('{"batch_size": 32}')
    code = main(["--smoke", "--results", str(tmp_path), "--id", "mine"])
    check_refusal(code, capsys.readouterr().err, "batch_size")
    assert [path.name for path in folder.iterdir()] == ["config.json"]
    assert (folder / "config.json").read_text() == '{"batch_size": 32}'


@pytest.mark.parametrize("name", ["notes.txt", "config.json"])
def test_folder_of_something_else(tmp_path, capsys, name):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / name).write_text("dear diary")
    code = main(["--smoke", "--results", str(tmp_path), "--id", "mine"])
    check_refusal(code, capsys.readouterr().err, "mine")
    assert (folder / name).read_text() == "dear diary"
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("arguments", [["--problem", "atari"], ["--horizons", "nan"]])
def test_as_a_process(arguments, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "sim.sweep", "--results", str(tmp_path / "r"), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    check_refusal(done.returncode, done.stderr, arguments[-1])
    assert done.stdout == ""
