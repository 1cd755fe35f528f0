"""`python -m theory recommend`: one job, many jobs, and what it says of wrong input."""

import json

import pytest

from theory import optimal_design
from theory.__main__ import main
from theory.quadratic import power_law_quadratic

JOB = ["--cost-gen", "5.28", "--batch-size", "64"]
KEYS = {
    *("replay_ratio", "staleness_horizon", "buffer_size", "rollouts_per_update", "batch_size"),
    *("cost_ratio", "cost_ratio_low", "cost_ratio_high", "verdict", "warnings", "why"),
    *("num_generators", "num_trainers", "buffer_bytes", "alternatives", "model"),
    *("break_even_gen_train_ratio", "break_even_noise_to_batch", "deciding_inputs"),
}


def answered(capsys, *arguments):
    assert main(["recommend", *arguments]) == 0
    return capsys.readouterr().out


def one(capsys, *arguments):
    return json.loads(answered(capsys, *JOB, *arguments, "--json"))


def test_json_holds_every_key_and_what_the_call_says(capsys):
    found = one(capsys, "--noise-to-batch", "0.5", "--tokens-per-rollout", "1000")
    assert found.keys() >= KEYS
    design = optimal_design(5.28, 1, batch_size=64, noise_to_batch=0.5, tokens_per_rollout=1000)
    assert found["rollouts_per_update"] == design.rollouts_per_update
    assert found["cost_ratio"] == design.cost_ratio
    assert found["buffer_bytes"] == 64 * (1000 * 8 + 32)
    assert [each["batch_size"] for each in found["alternatives"]] == [8, 16, 32]


def test_every_flag_reaches_the_call(capsys):
    found = one(
        capsys,
        *("--cost-train", "2", "--noise-scale", "40", "--noise-scale-range", "20", "80"),
        *("--gen-train-range", "2", "3", "--variance-by-age", "1", "1.2", "1.5"),
        *("--buffer", "large", "--fixed-cost", "7", "--reference-updates", "300"),
        *("--gpus", "8", "--num-generations", "4", "--gpu-hour-price", "2.5"),
        *("--split-ratio", "6,2:5", "4,4:7", "--train-efficiency", "1:0.6", "2:0.8"),
    )
    from theory.staleness import Tabulated

    design = optimal_design(
        5.28,
        2,
        batch_size=64,
        noise_scale=40,
        noise_scale_range=(20, 80),
        gen_train_range=(2, 3),
        profile=Tabulated((1, 1.2, 1.5)),
        buffer="large",
        fixed_cost=7,
        reference_updates=300,
        gpus=8,
        num_generations=4,
        gpu_hour_price=2.5,
        gen_train_by_split={(6, 2): 5, (4, 4): 7},
        train_efficiency={1: 0.6, 2: 0.8},
    )
    for name in ("cost_ratio", "cost_ratio_low", "cost_ratio_high", "price", "update_time"):
        assert found[name] == getattr(design, name), name
    assert (found["num_generators"], found["num_trainers"]) == (design.split or (None, None))


def test_spectrum_is_exact_and_its_noise_is_that_at_the_start(capsys):
    flags = ["--spectrum-power", "1", "--modes", "50", "--noise-to-batch", "0.5"]
    found = one(capsys, *flags, "--learning-rate", "0.3", "--target", "0.05")
    shape = power_law_quadratic(50, 1.0)
    scale = 32 * float(shape.curvature @ shape.curvature) / float(shape.curvature.sum())
    design = optimal_design(
        5.28,
        1,
        batch_size=64,
        spectrum=power_law_quadratic(50, 1.0, scale**0.5),
        learning_rate=0.3,
        target=0.05,
    )
    assert found["model"] == "exact"
    assert found["learning_rate"] == 0.3
    assert found["cost_ratio"] == pytest.approx(design.cost_ratio, rel=1e-12)
    assert found["rollouts_per_update"] == design.rollouts_per_update


def test_text_explains_in_five_lines_of_plain_words(capsys):
    text = answered(capsys, *JOB, "--noise-to-batch", "0.5", "--gen-train-range", "4", "7")
    assert sum(line.startswith("why: ") for line in text.splitlines()) == 5
    assert "break-even" in text
    assert "verdict" in text.splitlines()[0]


def test_table_of_jobs_answers_every_row_as_alone(tmp_path, capsys):
    path = tmp_path / "jobs.csv"
    path.write_text(
        "cost_gen,noise-to-batch,gpus,variance_by_age,split_ratio\n"
        "5.28,0.5,,,\n"
        "9,9,8,,\n"
        "5.28,0.5,,1 1.5 2,\n"
        "5.28,0.5,8,,6,2:5\n".replace("6,2:5", '"6,2:5 4,4:6"')
    )
    lines = answered(capsys, "--in", str(path), "--batch-size", "64", "--json").splitlines()
    rows = [json.loads(line) for line in lines]
    assert rows[0] == one(capsys, "--noise-to-batch", "0.5")
    assert rows[1]["verdict"] == "on_policy"
    aged = one(capsys, "--noise-to-batch", "0.5", "--variance-by-age", "1", "1.5", "2")
    assert rows[2] == aged
    split = ["--gpus", "8", "--split-ratio", "6,2:5", "4,4:6"]
    assert rows[3] == one(capsys, "--noise-to-batch", "0.5", *split)
    text = answered(capsys, "--in", str(path), "--batch-size", "64").splitlines()
    assert len(text) == 5


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("", "column 'no header'"),
        ("cost_gen\n", "no jobs"),
        ("cost_gen,colour\n5,red\n", "column 'colour'"),
        ("cost_gen,json\n5,1\n", "column 'json'"),
        ("cost_gen,noise_to_batch\n5,0.5\n5,many\n", "line 3: noise_to_batch = 'many'"),
        ("cost_gen,num_generations\n5,1.5\n", "line 2: num_generations = '1.5'"),
        ("cost_gen,noise_to_batch\n5\n", "line 2: this row"),
        ("cost_gen,noise_to_batch\n5,1,2\n", "line 2: this row"),
        ("cost_gen,noise_to_batch\n-5,1\n", "line 2: cost_gen = -5.0"),
        ("noise_to_batch\n1\n", "line 2: --cost-gen is missing"),
        ("cost_gen,gen_train_range\n5,1\n", "two numbers"),
        ('cost_gen\n"5\n', "line"),
    ],
)
def test_wrong_tables_name_line_and_value(tmp_path, capsys, table, words):
    path = tmp_path / "jobs.csv"
    path.write_text(table)
    assert main(["recommend", "--in", str(path), "--batch-size", "64"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1
    assert words in captured.err
    assert str(path) in captured.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--cost-gen", "5"], "--batch-size is missing"),
        (["--batch-size", "64"], "--cost-gen is missing"),
        ([*JOB, "--split-ratio", "6:2:5"], "'6:2:5'"),
        ([*JOB, "--split-ratio", "6,2"], "'6,2'"),
        ([*JOB, "--split-ratio", "6,2:many"], "'6,2:many'"),
        ([*JOB, "--train-efficiency", "x:1"], "'x:1'"),
        ([*JOB, "--train-efficiency", "1:y"], "'1:y'"),
        ([*JOB, "--noise-to-batch", "-1"], "noise_to_batch = -1.0"),
        ([*JOB, "--noise-to-batch", "nan"], "nan"),
        ([*JOB, "--noise-to-batch", "1", "--noise-scale", "64"], "noise_scale = 64.0"),
        ([*JOB, "--noise-to-batch", "1", "--buffer", "huge"], "'huge'"),
        ([*JOB, "--spectrum-power", "1"], "--spectrum-power needs"),
        ([*JOB, "--spectrum-power", "-1", "--noise-scale", "9"], "-1.0"),
        ([*JOB, "--spectrum-power", "1", "--noise-scale", "9", "--modes", "0"], "modes = 0"),
        ([*JOB, "--spectrum-power", "1", "--noise-scale", "9", "--target", "2"], "target = 2.0"),
        ([*JOB, "--learning-rate", "0.1"], "learning_rate = 0.1"),
        ([*JOB, "--tokens-per-rollout", "0"], "tokens_per_rollout = 0.0"),
        ([*JOB, "--gpu-hour-price", "2"], "gpu_hour_price = 2.0"),
        ([*JOB, "--noise-to-batch", "1", "--gen-train-range", "6", "7"], "(6.0, 7.0)"),
        (["--in", "/nowhere/jobs.csv"], "/nowhere/jobs.csv"),
    ],
)
def test_wrong_flags_end_in_one_line(capsys, arguments, words):
    assert main(["recommend", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert len(captured.err.strip().splitlines()) == 1
    assert words in captured.err
