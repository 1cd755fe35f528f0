"""The comparison: budgets, savings on hand-made curves, choice without its own luck, the smoke."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from llm.compare import (
    CompareConfig,
    Setting,
    checked,
    main,
    recorded_runs,
    run_config,
    settings_of,
)
from llm.compare_report import Curves, cost_to_reach, cross_chosen, headline, saving
from llm.settings import TrainConfig
from theory.cost import update_cost


def curves(pass1, cost, passk8=0.5):
    pass1 = np.asarray(pass1, dtype=float)
    seeds = len(pass1)
    one = np.ones(seeds)
    return Curves(
        pass1=pass1,
        cost={"1": np.asarray(cost, dtype=float), "5.28": 2 * np.asarray(cost, dtype=float)},
        passk8=np.full((seeds, 2), passk8),
        passk1=np.full((seeds, 2), 0.3),
        entropy=one,
        clip_share=one,
        zero_variance=one,
        ess=one,
        updates=100,
    )


def rising(places, seeds=4, top=0.8, steps=40):
    """Curves that rise by straight lines from 0.3 to ``top`` at a place, then stay."""
    line = np.minimum(0.3 + (top - 0.3) * np.arange(steps) / places, top)
    return curves(np.tile(line, (seeds, 1)), np.arange(steps))


def test_every_setting_gets_the_same_compute():
    config = checked(CompareConfig())
    train = config.train
    budget = train.updates * update_cost(64, 64, 5.28)
    for setting in settings_of(config):
        run = run_config(config, setting, 1e-5, 3)
        spent = run.updates * update_cost(run.batch_size, run.rollouts_per_update, 5.28)
        # Updates are rounded to a whole number of tests.
        slack = train.eval_every * update_cost(run.batch_size, run.rollouts_per_update, 5.28)
        assert abs(spent - budget) <= slack / 2
        assert run.updates % train.eval_every == 0
        assert run.seed == 3
        assert (run.loss == "asymre") == setting.asymre


def test_runs_of_different_settings_have_different_folders():
    config = checked(CompareConfig())
    names = [
        run_config(config, setting, rate, seed).id
        for setting in settings_of(config)
        for rate in config.learning_rates
        for seed in range(3)
    ]
    assert len(set(names)) == len(names)
    longer = dataclasses.replace(config, train=dataclasses.replace(config.train, updates=1600))
    assert run_config(longer, settings_of(config)[0], 1e-5, 0).id not in names


def test_saving_of_a_curve_twice_as_fast():
    seeds = np.arange(4)
    slow, fast = rising(20), rising(10)
    assert cost_to_reach(slow, "1", 0.8, seeds) == pytest.approx(22, abs=1)
    # Averaging over three tests delays both by two places.
    assert saving(slow, fast, "1", seeds) == pytest.approx(1 - 12 / 22, abs=0.02)
    assert saving(slow, slow, "5.28", seeds) == 0
    assert saving(slow, rising(10, top=0.7), "1", seeds) == -np.inf


def test_choice_is_priced_on_the_other_half():
    scores = {("a", 0): 1.0, ("a", 1): 0.2, ("b", 0): 0.5, ("b", 1): 0.4}

    def score(name, half):
        return np.vectorize(lambda place: scores[name, place])(half[..., 0] % 2)

    # On the even seeds a wins and is worth 0.2 on the odd ones; there b wins and is worth 0.5.
    value = cross_chosen(score, ["a", "b"], np.array([[0, 1, 2, 3], [0, 1, 2, 3]]))
    np.testing.assert_allclose(value, 0.35)


def test_many_draws_of_seeds_equal_one_at_a_time():
    rng = np.random.default_rng(0)
    walk = np.clip(0.3 + np.cumsum(rng.normal(0.02, 0.05, (2, 6, 30)), axis=2), 0, 1)
    left, right = curves(walk[0], np.arange(30)), curves(walk[1], np.arange(30))
    draws = rng.integers(0, 6, (5, 6))
    together = saving(left, right, "1", draws)
    for row, seeds in enumerate(draws):
        np.testing.assert_equal(together[row], saving(left, right, "1", seeds))
        smooth = left.median_curve(seeds)
        median = np.median(walk[0][seeds], axis=0)
        for place in range(30):
            np.testing.assert_allclose(smooth[place], median[max(0, place - 2) : place + 1].mean())


def test_headline_schema():
    found = {"on-policy": rising(20), "y=2 N=B": rising(10), "y=4 N=B": rising(30, top=0.7)}
    numbers = headline(found, ["y=2 N=B", "y=4 N=B"], "on-policy", "5.28")
    assert set(numbers) == {
        "saving_at_baseline_accuracy",
        "passk_gain",
        "seeds",
    }
    assert set(numbers["saving_at_baseline_accuracy"]) == {"1", "5.28"}
    for part in (*numbers["saving_at_baseline_accuracy"].values(), numbers["passk_gain"]):
        assert {"value", "low", "high"} <= set(part)
    # All seeds are equal, so no resampling changes anything.
    part = numbers["saving_at_baseline_accuracy"]["1"]
    assert part["low"] == part["value"] == part["high"] == pytest.approx(0.45, abs=0.02)
    assert numbers["passk_gain"]["value"] == 0
    missed = headline(found, ["y=4 N=B"], "on-policy", "5.28")
    assert missed["saving_at_baseline_accuracy"]["1"]["value"] is None


def test_smoke_runs_resumes_and_keeps_what_others_measured(tmp_path, capsys):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "llm.json").write_text('{"trl_speed_ratio": 2.5}')
    flags = ["--smoke", "--results", str(tmp_path / "results"), "--docs", str(docs)]
    flags += ["--workers", "1"]
    assert main(flags) == 0
    text, numbers = (docs / "llm.md").read_text(), json.loads((docs / "llm.json").read_text())
    assert numbers["trl_speed_ratio"] == 2.5
    assert numbers["learns_minutes"] is numbers["final_pass1"] is None
    assert {"saving_at_baseline_accuracy", "passk_gain", "seeds"} < set(numbers)
    assert "over TRL's: 2.5 (`python benchmarks/trl_speed.py --save`)" in text
    for setting in settings_of(checked(CompareConfig(smoke=True))):
        assert f"| {setting.name} |" in text
    assert (docs / "llm.png").stat().st_size > 10_000
    runs = {path: path.stat().st_mtime_ns for path in (tmp_path / "results").rglob("log.jsonl")}
    assert len(runs) == 8 * 2 + 2 * 2
    assert main(flags) == 0
    assert runs == {p: p.stat().st_mtime_ns for p in (tmp_path / "results").rglob("log.jsonl")}
    assert (docs / "llm.md").read_text() == text
    # The record alone gives the report again; a torn line is one run that is done again.
    shutil.rmtree(tmp_path / "results")
    assert main(flags) == 0
    assert (docs / "llm.md").read_text() == text
    assert not list((tmp_path / "results").rglob("log.jsonl"))
    record = docs / "llm_runs.jsonl"
    lines = record.read_text().splitlines(keepends=True)
    record.write_text("".join(lines[:-1]) + lines[-1][:-20])
    assert main(flags) == 0
    assert len(list((tmp_path / "results").rglob("log.jsonl"))) == 1
    assert sorted(json.loads(x)["id"] for x in lines) == sorted(recorded_runs(docs))
    assert "report:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ("--seeds 1", "seeds must be >= 2"),
        ("--equal-cost-ratio 3", "must be one of gen_train_ratios"),
        ("--train.passk 1 2", "passk must hold 8"),
        ("--train.batch-size 40", "multiple of 4 num_generations"),
        ("--learning-rates 0", "learning_rate must be finite and > 0"),
        ("--docs /nowhere", "/nowhere is not a folder"),
    ],
)
def test_refusals(flags, word, capsys):
    assert main(flags.split()) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert word in lines[0]


def test_replay_is_what_is_not_on_policy():
    assert not Setting("on-policy", 64, 64, 64).replay
    assert Setting("y=2", 64, 32, 64).replay
    assert CompareConfig().train == TrainConfig(updates=800)
