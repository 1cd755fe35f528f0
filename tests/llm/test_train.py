"""The training loop: what it costs, what it uses, what it logs, how it resumes and refuses."""

import dataclasses
import json
import math
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from llm.buffer import Use
from llm.run_folder import read_log
from llm.settings import TaskConfig, TinyConfig, TrainConfig, check, resolved
from llm.train import add_rollouts, built, main, run_training, updated
from theory.cost import cost_to_target

TINY = TinyConfig(layers=1, width=32, heads=2, warm_low=0.1, warm_high=1.0, warm_learning_rate=3e-3)
CONFIG = TrainConfig(
    task=TaskConfig(digits=1, test_size=10),
    tiny=TINY,
    batch_size=16,
    rollouts_per_update=8,
    buffer_size=32,
    num_generations=4,
    learning_rate=1e-3,
    max_completion_length=3,
    updates=8,
    eval_every=4,
    passk_every=4,
    passk_samples=8,
    passk_problems=10,
    checkpoint_every=4,
    threads=1,
    no_tensorboard=True,
    device="cpu",
)
FLAGS = (
    "--task.digits 1 --task.test-size 10 --tiny.layers 1 --tiny.width 32 --tiny.heads 2 "
    "--tiny.warm-low 0.1 --tiny.warm-high 1.0 --tiny.warm-learning-rate 3e-3 --batch-size 16 "
    "--rollouts-per-update 8 --buffer-size 32 --num-generations 4 --learning-rate 1e-3 "
    "--max-completion-length 3 --updates 8 --eval-every 4 --passk-every 4 --passk-samples 8 "
    "--passk-problems 10 --checkpoint-every 4 --threads 1 --no-tensorboard --device cpu"
)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """One results folder, so that the policy is schooled once."""
    return tmp_path_factory.mktemp("results")


def trained(results, name, **changes):
    """Rows of a run of CONFIG with changes."""
    config = dataclasses.replace(CONFIG, results=results, id=name, **changes)
    return read_log(run_training(config, progress=False) / "log.jsonl")


def without_seconds(rows):
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in rows]


def saved(results, name):
    return torch.load(results / name / "checkpoint.pt", weights_only=True)


def assert_same(left, right):
    """Equal records, tensors bit for bit."""
    assert type(left) is type(right)
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            if "seconds" not in str(key):
                assert_same(left[key], right[key])
    elif isinstance(left, list | tuple):
        assert len(left) == len(right)
        for a, b in zip(left, right, strict=True):
            assert_same(a, b)
    elif isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype
        assert torch.equal(left, right)
    else:
        assert left == right


@pytest.mark.parametrize("start", ["growing", "full"])
def test_cost_is_that_of_the_theory(results, start):
    rows = trained(results, f"cost-{start}", start=start, updates=6)
    for row in rows[1:]:
        for mu in CONFIG.gen_train_ratios:
            expected = cost_to_target(row["update"], 16, 8, 32, mu, start=start)
            assert row["cost"][f"{mu:g}"] == pytest.approx(expected)
    assert [row["update"] for row in rows] == list(range(7))
    fill = 16 if start == "growing" else 32
    assert [row["rollouts_generated"] for row in rows[1:]] == [fill + 8 * u for u in range(6)]


def test_uses_and_ages_of_replay(results):
    rows = trained(results, "uses", updates=24, eval_every=100, passk_every=0)
    uses, ages = {}, {}
    for row in rows[1:]:
        assert sum(row["histograms"]["age"].values()) == 16
        assert sum(row["histograms"]["updates_since_last_use"].values()) == 16
        assert max(row["by_age"]["age"]) <= 3
        for name, total in (("uses_when_evicted", uses), ("age", ages)):
            for key, number in row["histograms"][name].items():
                total[int(key)] = total.get(int(key), 0) + number
    evicted = sum(uses.values())
    assert evicted == rows[-1]["rollouts_generated"] - 32
    # y = B/R = 2 in the long run; the growing start uses its first rollouts a little more.
    assert sum(k * n for k, n in uses.items()) / evicted == pytest.approx(2, abs=0.35)
    assert set(ages) == {0, 1, 2, 3}


def test_on_policy_ratio_is_one_and_replayed_ratio_is_not(results):
    on_policy = trained(results, "on-policy", rollouts_per_update=16, buffer_size=16)
    for row in on_policy[1:]:
        assert row["by_age"]["age"] == [0]
        assert abs(row["by_age"]["ratio_mean"][0] - 1) < 1e-5
        assert abs(row["by_age"]["ess"][0] - 1) < 1e-5
        assert row["by_age"]["log_ratio_second_moment"][0] < 1e-10
        assert row["clip_share"] == 0
        assert row["histograms"]["updates_since_last_use"] == {"new": 16}
    assert on_policy[0]["self_test"]["worst"] < 1e-5
    replayed = trained(results, "replayed", rollouts_per_update=4, buffer_size=16, updates=4)
    second = replayed[2]["by_age"]
    assert second["age"][0] == 0
    assert second["log_ratio_second_moment"][0] < 1e-10
    assert min(second["log_ratio_second_moment"][1:]) > 1e-8


def test_second_use_of_the_same_batch_has_another_ratio(results):
    run = built(resolved(dataclasses.replace(CONFIG, results=results)))
    add_rollouts(run, {})
    uses = [Use(item.rollout, 0, None) for item in run.buffer.stored]
    first = np.concatenate(updated(run, uses, results).log_ratios)
    second = np.concatenate(updated(run, uses, results).log_ratios)
    assert abs(first).max() < 1e-5
    assert abs(second).max() > 1e-3


def test_groups_of_equal_rewards_change_nothing(results):
    run = built(resolved(dataclasses.replace(CONFIG, results=results)))
    run.task = dataclasses.replace(run.task, verify=lambda problem, text: 1.0)
    before = {k: v.clone() for k, v in run.policy.model.state_dict().items()}
    fresh = add_rollouts(run, {})
    assert (fresh.rewards == 1).all()
    step = updated(run, run.buffer.sample(run.rng, 8, 0), results)
    assert step.loss == 0
    assert step.gradient_norm == 0
    assert_same(before, dict(run.policy.model.state_dict()))


def test_micro_batches_do_not_change_the_update(results):
    steps = []
    for tokens in (16384, 24):
        config = dataclasses.replace(CONFIG, results=results, micro_batch_tokens=tokens)
        run = built(resolved(config))
        add_rollouts(run, {})
        uses = [Use(item.rollout, 0, None) for item in run.buffer.stored]
        steps.append(updated(run, uses, results))
    assert steps[0].loss == pytest.approx(steps[1].loss, abs=1e-6)
    assert steps[0].gradient_norm == pytest.approx(steps[1].gradient_norm, rel=1e-4)
    assert steps[1].padding_share <= steps[0].padding_share < 0.2


def test_testing_does_not_change_training(results):
    often = trained(results, "often", eval_every=1, passk_every=1)
    seldom = trained(results, "seldom", eval_every=100, passk_every=0)
    for left, right in zip(often[1:], seldom[1:], strict=True):
        for name in ("reward", "loss", "gradient_norm", "by_age"):
            assert left[name] == right[name]
    assert all("pass1" in row for row in often)
    assert [row["update"] for row in seldom if "pass1" in row] == [0, 8]


@pytest.mark.parametrize(
    "changes",
    [
        {"loss": "dual_clip"},
        {"loss": "reinforce", "token_weighting": "token_mean"},
        {"loss": "asymre", "scale_rewards": "none", "token_weighting": "rollout_sum"},
        {"loss": "cispo", "draw": "unused_first"},
        {"loss": "m2po", "draw": "without_reuse"},
        {"importance_sampling_level": "sequence", "draw": "with", "buffer_size": 8},
        {"positive_share": 0.5},
        {"dtype": "bfloat16", "gradient_checkpointing": True},
        {"max_buffer_bytes": 2000},
    ],
    ids=str,
)
def test_options_train(results, changes):
    name = "-".join(map(str, changes.values()))
    rows = trained(results, name, updates=3, eval_every=3, passk_every=0, **changes)
    assert len(rows) == 4
    assert all(math.isfinite(row["loss"]) for row in rows[1:])
    assert any(row["gradient_norm"] > 0 for row in rows[1:])
    if "max_buffer_bytes" in changes:
        assert 16 <= rows[-1]["buffer"]["rollouts"] < 32
        assert rows[-1]["buffer"]["bytes"] <= 2000


def test_bfloat16_trains_float32_copies(results):
    rows = trained(results, "short", dtype="bfloat16", updates=2, passk_every=0)
    state = saved(results, "short")
    weights = [w for w in state["model"].values() if w.is_floating_point()]
    copies = state["optimizer"]["copies"]
    assert {weight.dtype for weight in weights} == {torch.bfloat16}
    assert {copy.dtype for copy in copies} == {torch.float32}
    assert any((copy != copy.bfloat16()).any() for copy in copies)
    # Mismatch of sampler and trainer is told apart from staleness by a field of its own.
    assert 0 < rows[0]["self_test"]["worst"] < 0.2


def test_run_goes_on_bit_for_bit_from_its_checkpoint(results):
    straight = trained(results, "straight")
    first = trained(results, "parts", updates=4)
    log = results / "parts" / "log.jsonl"
    # What a kill between two checkpoints leaves behind: later lines, the last one torn.
    log.write_text(log.read_text() + json.dumps({**first[-1], "update": 5}) + '\n{"update": 6')
    resumed = trained(results, "parts")
    assert without_seconds(resumed) == without_seconds(straight)
    assert_same(saved(results, "parts"), saved(results, "straight"))
    assert json.loads((results / "parts" / "summary.json").read_text())["updates"] == 8


def test_killed_runs_go_on_bit_for_bit(results):
    kill_and_compare(results, "killed", kills=1, updates=16)


@pytest.mark.slow
def test_ten_random_kills(results):
    kill_and_compare(results, "killed-10", kills=10, updates=400)


def kill_and_compare(results, name, kills, updates):
    """Kill a run at random moments, let it end, and compare it with one that was let be."""
    straight = trained(results, f"{name}-not", updates=updates)
    command = [sys.executable, "-m", "llm.train", "--results", str(results), "--id", name]
    command += [*FLAGS.split(), "--updates", str(updates)]
    log = results / name / "log.jsonl"
    rng = np.random.default_rng()
    for moment in np.sort(rng.integers(1, updates - 2, size=kills)):
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        while process.poll() is None and lines_in(log) <= moment:
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL, moment
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "greedy pass@1" in done.stdout
    assert without_seconds(read_log(log)) == without_seconds(straight)
    assert_same(saved(results, name), saved(results, f"{name}-not"))


def lines_in(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_tensorboard_and_figure_are_written(results):
    changes = {"results": results, "id": "pictures", "updates": 2, "no_tensorboard": False}
    run_training(dataclasses.replace(CONFIG, **changes))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(results / "pictures" / "tensorboard"))
    events.Reload()
    assert {"pass1", "passk/8", "reward", "cost/5.28", "seconds/train"} <= set(
        events.Tags()["scalars"]
    )
    assert [event.step for event in events.Scalars("reward")] == [1, 2]
    assert (results / "pictures" / "figure.png").stat().st_size > 10_000


def refusal(capsys, results, *flags):
    """The one line that a command ends with; exit code 2."""
    code = main([*FLAGS.split(), "--results", str(results), *flags])
    lines = capsys.readouterr().err.strip().splitlines()
    assert code == 2
    assert lines[-1].startswith("error: ")
    assert not any("Traceback" in line for line in lines)
    return lines[-1]


REFUSED_EARLY = [
    ({"batch_size": 0}, "batch_size must be an integer >= 1, got 0"),
    ({"batch_size": 33}, "drawing without replacement needs N >= B"),
    ({"positive_share": 0.6}, "less the share for older right ones, 13, is less than"),
    ({"positive_share": 1.0}, r"positive_share must be in \[0, 1\), got 1.0"),
    ({"buffer_size": 4}, "must be at least rollouts_per_update = 8"),
    ({"rollouts_per_update": 6}, "multiple of num_generations = 4, got 6"),
    ({"num_generations": 1}, "one rollout has no standard deviation"),
    ({"num_generations": 1, "scale_rewards": "none"}, "minus group mean is always 0"),
    ({"learning_rate": 0.0}, "learning_rate must be finite and > 0, got 0"),
    ({"learning_rate": math.nan}, "learning_rate must be finite and > 0, got nan"),
    ({"weight_decay": -1.0}, "weight_decay must be finite and >= 0, got -1"),
    ({"temperature": 0.0}, "temperature must be finite and > 0"),
    ({"loss": "asymre"}, "needs scale_rewards = 'none'"),
    ({"loss": "asymre", "scale_rewards": "none", "asymre_offset": math.inf}, "asymre_offset"),
    ({"loss": "dual_clip", "dual_clip": 1.0}, "dual_clip must be finite and > 1, got 1"),
    ({"clip_low": 1.0}, r"clip_low must be in \[0, 1\)"),
    ({"passk": (9,)}, "passk must be from 1 to passk_samples = 8, got 9"),
    ({"eval_top_p": 0.0}, r"eval_top_p must be in \(0, 1\]"),
    ({"gen_train_ratios": (-1.0,)}, "gen_train_ratios must be finite and > 0, got -1"),
    ({"max_buffer_bytes": -1}, r"max_buffer_bytes must be in \[0, 2\^31\)"),
    ({"id": "../x"}, "id must be a plain folder name"),
    ({"preset": "paper"}, "preset = 'paper' needs --model"),
]


@pytest.mark.parametrize(("changes", "word"), REFUSED_EARLY, ids=str)
def test_refused_before_anything_is_loaded(changes, word):
    check(CONFIG)
    with pytest.raises(ValueError, match=word):
        check(dataclasses.replace(CONFIG, **changes))


REFUSED = [
    ("--batch-size 33", "drawing without replacement needs N >= B"),
    ("--num-generations 1", "one rollout has no standard deviation"),
    ("--task.digits 0", "digits = 0"),
    ("--task.test-size 400", "addition has only about"),
    ("--task.name data", "needs --task.path"),
    ("--task.name data --task.path /nowhere/rows.jsonl", "/nowhere/rows.jsonl"),
    ("--task.name gym --task.dataset none", "none"),
    ("--model /nowhere/model", "model = '/nowhere/model' cannot be loaded"),
    ("--max-prompt-length 3", "a prompt of 4 tokens is longer than max_prompt_length = 3: "),
    ("--max-buffer-bytes 200 --id tight", "holds only"),
    ("--learning-rate large", "large"),
    ("--loss ppo", "ppo"),
]


@pytest.mark.parametrize(("flags", "word"), REFUSED, ids=[flags for flags, _ in REFUSED])
def test_refused_in_one_line(results, capsys, flags, word):
    assert word in refusal(capsys, results, *flags.split())


def test_folder_of_another_config_or_of_something_else(results, capsys):
    trained(results, "taken", updates=1)
    before = (results / "taken" / "log.jsonl").read_bytes()
    line = refusal(capsys, results, "--id", "taken", "--seed", "5")
    assert "holds another config (different: seed)" in line
    assert (results / "taken" / "log.jsonl").read_bytes() == before
    (results / "mine").mkdir()
    (results / "mine" / "notes.txt").write_text("mine")
    assert "no run's config.json" in refusal(capsys, results, "--id", "mine")
    (results / "taken" / "checkpoint.pt").write_bytes(b"torn")
    assert "is not a checkpoint" in refusal(capsys, results, "--id", "taken")


def test_loss_that_is_not_finite_stops_and_keeps_the_checkpoint(results, capsys):
    line = refusal(capsys, results, "--id", "nan", "--learning-rate", "1e30")
    assert "loss nan" in line
    assert str(results / "nan" / "checkpoint.pt") in line
    state = saved(results, "nan")
    assert all(torch.isfinite(weight).all() for weight in state["model"].values())
    assert f"update {len(read_log(results / 'nan' / 'log.jsonl'))}:" in line


def test_full_disk_at_a_checkpoint_loses_nothing(results, capsys):
    trained(results, "full", updates=4)
    before = (results / "full" / "checkpoint.pt").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, hard))
    try:
        line = refusal(capsys, results, "--id", "full")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "checkpoint.pt': File too large" in line
    assert (results / "full" / "checkpoint.pt").read_bytes() == before
    assert not list((results / "full").glob(".*.partial"))
    trained(results, "full")
    trained(results, "straight-3")
    assert_same(saved(results, "full"), saved(results, "straight-3"))


def test_help_explains_units(capsys):
    assert main(["--help"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for words in ("Rollouts trained on per update (B)", "Longest response, tokens", "cost_gen"):
        assert words in shown
