"""Confirming: when a target is reached, step-size search, predictions from a pilot that obeys a
law, the rows and the page from made-up measurements, and the whole command in its smallest form."""

import dataclasses
import json
import math

import numpy as np
import pytest

from llm.confirm import (
    FARTHEST,
    ConfirmConfig,
    TargetRun,
    around,
    checked,
    ended,
    eval_every,
    longest,
    main,
    reached,
    rollouts_by_age,
    study_config,
    target_run,
    to_target,
    updates_of,
)
from llm.confirm_predict import (
    Shape,
    choices,
    on_policy,
    papers_shape,
    pilot_shapes,
    predictions,
    run_cost,
)
from llm.confirm_report import Found, counted, inside, row_of, verdict_of, write_report
from theory.calibrate import Estimate, MeasuredProfile, UpdatesFit
from theory.staleness import Tabulated


def scored(scores):
    return [{"update": place * 10, "pass1": score} for place, score in enumerate(scores)]


def law_updates(shapes, beta, length=60.0, seed=0, seeds=4, spread=0.02):
    """Updates with noise beta B / R on top of a least number, and half of what age costs."""
    rng = np.random.default_rng(seed)
    return {
        one: length
        * (1 + 64 * beta / one.rollouts_per_update)
        * (1 + 0.02 * one.buffer_size / one.rollouts_per_update)
        * np.exp(spread * rng.standard_normal(seeds))
        for one in shapes
    }


def found_on(beta, seeds=8, study=None):
    """Everything a task yields, measurements made up by the same law as the pilot."""
    shapes = pilot_shapes(64, 8)
    pilot = law_updates(shapes, beta)
    predicted = predictions(pilot, 8, (0.25, 5.28), resamples=20)
    wanted = [*shapes[:4], *(one for each in predicted for one in (each.replay, each.paper))]
    rates = dict.fromkeys([*shapes, *wanted], 1e-4)
    every = dict.fromkeys([*shapes, *wanted], 10_000)
    flat = Tabulated(np.array([1.0, 1.1, 1.2]))
    one = Estimate(1.0, 0.9, 1.1)
    return Found(
        task="addition",
        start=0.3,
        pilot=pilot,
        rates=rates,
        rollouts=100_000,
        tuning_rollouts=200_000,
        noise=UpdatesFit(Estimate(64 * beta, 1.0, 200.0), one, None, True, ""),
        profile=MeasuredProfile(flat, flat, flat, one, (), ""),
        ratio=Estimate(0.8, 0.7, 0.9),
        predictions=predicted,
        fresh=law_updates(list(dict.fromkeys(wanted)), beta, seed=1, seeds=seeds),
        studies={} if study is None else {5.28: study},
        given=every,
    )


def test_target_is_a_mean_of_tests_put_at_their_middle():
    assert reached(scored([0.3, 0.9]), 0.2) is None
    assert reached(scored([0.3, 0.3, 0.3]), 0.2) is None
    # The mean of the three is 0.2 above the start, at the second.
    assert reached(scored([0.3, 0.5, 0.7]), 0.2) == pytest.approx(10)
    # Means 0.433 at 10 and 0.6 at 20, and a straight line between them.
    assert reached(scored([0.3, 0.4, 0.6, 0.8]), 0.2) == pytest.approx(14)
    # One lucky test does not count.
    assert reached(scored([0.3, 0.3, 0.7, 0.3, 0.3]), 0.2) is None
    # A straight line is met where it is, however seldom it is tested.
    for step in (1, 2, 5):
        line = [{"update": place, "pass1": 0.3 + 0.01 * place} for place in range(0, 101, step)]
        assert reached(line, 0.2) == pytest.approx(20)


def test_a_run_ends_at_its_target_or_when_spent(tmp_path):
    config = dataclasses.replace(checked(ConfirmConfig(docs=tmp_path)), results=tmp_path)
    run = target_run(config, on_policy(64), 1e-4, 0)
    assert run.config.updates == 600
    assert not ended(run)
    folder = tmp_path / run.config.id
    folder.mkdir()
    log = folder / "log.jsonl"

    def written(scores, last=None):
        rows = scored(scores) + ([] if last is None else [{"update": last, "pass1": scores[-1]}])
        log.write_text("".join(json.dumps(row) + "\n" for row in rows))

    written([0.3, 0.3])
    assert not ended(run)
    written([0.3, 0.55, 0.8])
    assert ended(run)
    assert updates_of(run) == pytest.approx(10)
    written([0.3, 0.3], last=600)
    assert ended(run)
    assert updates_of(run) == 600


def test_a_run_stops_at_the_test_that_reaches_its_target(tmp_path, monkeypatch):
    config = dataclasses.replace(checked(ConfirmConfig(docs=tmp_path)), results=tmp_path)
    seen = []

    def training(run, tested):
        for row in scored([0.3, 0.5, 0.6, 0.7, 0.8, 0.9]):
            seen.append(row["update"])
            tested(row)

    monkeypatch.setattr("llm.confirm.quietly", training)
    to_target(target_run(config, on_policy(64), 1e-4, 0))
    # Means 0.467, 0.6: up by 0.25 with the fourth test.
    assert seen == [0, 10, 20, 30]


def test_designs_get_as_many_new_rollouts_and_folders_of_their_own(tmp_path):
    config = checked(ConfirmConfig(docs=tmp_path))
    train = config.train
    for shape in choices(64, 8):
        total = longest(train, shape) * shape.rollouts_per_update
        step = eval_every(train, shape)
        assert 0 <= total - train.updates * 64 < step * shape.rollouts_per_update
        assert longest(train, shape) % step == 0
        work = step * (shape.batch_size + shape.rollouts_per_update)
        assert work == pytest.approx(train.eval_every * 2 * 64, rel=0.06)
    runs = [
        target_run(config, shape, rate, seed)
        for shape in choices(64, 8)
        for rate in (1e-4, 2e-4)
        for seed in (0, 1)
    ]
    assert len({run.config.id for run in runs}) == len(runs)
    assert target_run(config, on_policy(64), 1e-4, 0, 3).config.updates == train.eval_every
    assert isinstance(runs[0], TargetRun)


def test_step_sizes_go_on_while_the_best_is_at_an_end():
    def updates(place):
        return 100.0 + 10 * abs(place - 2)

    tried: dict[int, float] = {}
    while todo := [place for place in around(tried, 0) if place not in tried]:
        tried |= {place: updates(place) for place in todo}
    assert min(tried, key=lambda place: tried[place]) == 2
    assert {1, 3} <= set(tried)
    far = {place: -float(place) for place in range(FARTHEST + 1)}
    assert max(around(far, 0)) <= FARTHEST


def test_prediction_follows_the_noise_of_the_pilot():
    quiet = predictions(law_updates(pilot_shapes(64, 8), 0.02), 8, (0.25, 1.0, 20.0), resamples=20)
    noisy = predictions(law_updates(pilot_shapes(64, 8), 8.0), 8, (0.25, 1.0, 20.0), resamples=20)
    # Without noise a batch is used again without loss; with noise ten times the batch every new
    # rollout is worth its price.
    assert [one.pays for one in noisy] == [False, False, True]
    assert all(one.pays for one in quiet)
    for some in (quiet, noisy):
        savings = [one.saving.value for one in some]
        assert savings == sorted(savings)
        for one in some:
            assert one.saving.low < one.saving.value < one.saving.high
            assert not one.replay.on_policy
            assert one.design == (one.replay if one.pays else on_policy(64))
            assert (one.saving.value > 0) == one.pays


def test_predicted_saving_is_what_the_law_costs():
    shapes = pilot_shapes(64, 8)
    pilot = law_updates(shapes, 0.2, spread=0.0)
    (one,) = predictions(pilot, 8, (5.28,), resamples=20)
    truth = law_updates([on_policy(64), one.replay], 0.2, spread=0.0, seeds=1)
    cost = {shape: float(run_cost(shape, runs, 5.28)[0]) for shape, runs in truth.items()}
    actual = 1 - cost[one.replay] / cost[on_policy(64)]
    # Another law made the pilot than is fitted to it.
    assert one.saving.value == pytest.approx(actual, abs=0.08)
    assert predictions(pilot, 8, (5.28,), resamples=20) == [one]


def test_papers_design_fits_a_batch():
    for mu in (0.25, 1.0, 5.28, 20.0):
        shape = papers_shape(64, 8, mu)
        assert shape.batch_size == 64
        assert shape.rollouts_per_update % 8 == 0
        assert shape.buffer_size >= 64


def test_rows_keep_their_promise():
    shape = Shape(64, 8, 64)
    study = shape, 1e-4, law_updates([shape], 0.2, seed=2, seeds=8)[shape]
    found = found_on(0.2, study=study)
    low, high = (row_of(found, one) for one in found.predictions)
    for row in (low, high):
        assert {"task", "gen_train_ratio", "design_regret"} <= set(row)
        for name in ("predicted_saving", "measured_saving", "best_replay_saving", "paper_saving"):
            value = row[name]
            assert value["low"] <= value["value"] <= value["high"]
    # The pilot tells the truth, so the measured saving is near, and the verdict right.
    assert high["verdict_predicted"] == high["verdict_measured"] == "pays"
    assert inside(high)
    assert low["design_regret"] is None
    assert low["study_design"] is None
    cost = {
        one: run_cost(one, runs, 5.28).mean()
        for one, runs in [(found.predictions[1].design, None), (shape, study[2])]
        if runs is not None
    }
    chosen = found.predictions[1].design
    mine = run_cost(chosen, found.fresh[chosen], 5.28).mean()
    assert high["design_regret"] == pytest.approx(mine / cost[shape] - 1, abs=1e-4)
    assert high["measured_saving"]["value"] == pytest.approx(
        1 - mine / run_cost(on_policy(64), found.fresh[on_policy(64)], 5.28).mean(), abs=1e-4
    )


def test_counting_aims():
    def row(measured, predicted, regret, saving):
        return {
            "verdict_measured": measured,
            "verdict_predicted": predicted,
            "design_regret": regret,
            "measured_saving": {"value": saving},
            "predicted_saving": {"value": 0.2, "low": 0.1, "high": 0.3},
        }

    rows = [
        row("pays", "pays", 0.05, 0.25),
        row("pays", "does not pay", 0.2, 0.35),
        row("undecided", "pays", None, 0.1),
        row("does not pay", "does not pay", -0.1, None),
    ]
    assert counted(rows) == {"close": (2, 3), "right": (2, 3), "inside": (2, 4)}
    assert verdict_of({"value": -0.2, "low": -0.3, "high": -0.1}) == "does not pay"
    assert verdict_of({"value": None, "low": None, "high": None}) == "does not pay"


def test_page_has_every_design_and_says_what_did_not_arrive(tmp_path):
    found = found_on(0.2)
    late = found.predictions[1].replay
    found.fresh[late][:3] = found.given[late]
    write_report(tmp_path, ConfirmConfig().train, 0.2, [found], " --tasks addition")
    text = (tmp_path / "confirm.md").read_text()
    assert "`python -m llm.confirm --tasks addition`" in text
    for shape in (*found.pilot, *found.fresh):
        assert f"| {shape} |" in text
    line = next(line for line in text.splitlines()[::-1] if line.startswith(f"| {late} |"))
    assert line.endswith("| 3 |")
    rows = json.loads((tmp_path / "confirm.json").read_text())
    assert [row["gen_train_ratio"] for row in rows] == [0.25, 5.28]
    assert (tmp_path / "confirm.png").stat().st_size > 10_000


def test_rollouts_are_counted_by_age():
    rows = [
        {"by_age": {"age": [0, 2], "rollouts": [8, 4]}},
        {"update": 3},
        {"by_age": {"age": [2, 1], "rollouts": [1, 5]}},
    ]
    assert rollouts_by_age(rows).tolist() == [8, 5, 5]


def test_study_knows_the_noise_but_not_the_prediction(tmp_path):
    config = checked(ConfirmConfig(docs=tmp_path, results=tmp_path))
    study = study_config(config, 5.28, 1e-4, 0.55, 0.3)
    assert study.noise_to_batch == 0.3
    assert study.space.learning_rate == 1e-4
    assert study.max_cost == pytest.approx(600 * 64 * 6.28)
    other = study_config(config, 5.28, 1e-4, 0.55, math.inf)
    assert other.noise_to_batch is None
    assert other.name != study.name


def test_smoke_runs_and_a_second_time_does_nothing(tmp_path, capsys):
    docs = tmp_path / "docs"
    docs.mkdir()
    flags = ["--smoke", "--results", str(tmp_path / "results"), "--docs", str(docs)]
    flags += ["--workers", "1"]
    assert main(flags) == 0
    page = (docs / "confirm.md").read_text()
    rows = json.loads((docs / "confirm.json").read_text())
    assert len(rows) in (1, 2)
    for row in rows:
        assert {"low", "high", "value"} == set(row["predicted_saving"])
        assert row["verdict_predicted"] in ("pays", "does not pay")
    # Eight updates teach nothing: every run spent what it was given, and says so.
    assert all(row["study_design"] is None for row in rows)
    assert "no trial arrived" in page
    assert len(list((tmp_path / "results" / "studies").iterdir())) == len(rows)
    logs = {path: path.stat().st_mtime_ns for path in (tmp_path / "results").rglob("log.jsonl")}
    assert len(logs) > 20
    assert main(flags) == 0
    assert logs == {p: p.stat().st_mtime_ns for p in (tmp_path / "results").rglob("log.jsonl")}
    assert (docs / "confirm.md").read_text() == page
    assert "report:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ("--tasks addition addition", "tasks must be different"),
        ("--tasks chess", "invalid choice"),
        ("--lift 1", "lift must be in (0, 1)"),
        ("--gen-train-ratios 0", "gen_train_ratios must be finite and > 0"),
        ("--seeds 1", "seeds must be >= 2"),
        ("--pilot-seeds 1", "pilot_seeds must be >= 2"),
        ("--trials 0", "trials must be >= 1"),
        ("--workers 0", "workers must be >= 1"),
        ("--train.batch-size 40", "multiple of 4 num_generations"),
        ("--docs /nowhere", "/nowhere is not a folder"),
    ],
)
def test_refusals(flags, word, capsys):
    assert main(flags.split()) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert word in lines[0]
