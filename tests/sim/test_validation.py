"""The validation: its step search, its scores, its guards, its suite, and the command itself."""

import dataclasses
import json
import math
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from sim.designs import Design, on_policy
from sim.table import read_rows
from sim.validate import ValidateConfig, chosen_environments, main, resolved, row_of
from sim.validation import guards
from sim.validation.environment import from_record, replay_designs
from sim.validation.judge import BATCH_RULES, GROUPS, PROTOCOLS, judged
from sim.validation.measure import Runs, all_designs, pilot_designs
from sim.validation.predictors import PREDICTORS
from sim.validation.score import (
    Arena,
    Choice,
    Measured,
    best_ratio,
    case_of,
    chosen,
    design_cost,
    scores,
)
from sim.validation.steps import Score, best_index, next_indices
from sim.validation.suite import BETA_STRATA, FAMILIES, LEAST_UPDATES, drawn, stratum, suite

REFERENCE = on_policy(64)
REPLAY = Design(64, 32, 64, "without", "full")
OTHER = Design(64, 16, 64, "without", "full")


@pytest.mark.parametrize("best", [-7, 0, 5])
@pytest.mark.parametrize("first", [-3, 4])
def test_step_search_ends_at_a_minimum_with_both_neighbours_known(best, first):
    scores, tried = {}, 0
    while wanted := next_indices(scores, [first]):
        for index in wanted:
            scores[index] = Score(0, 100.0 + (index - best) ** 2)
            tried += 1
    assert best_index(scores) == best
    assert {best - 1, best + 1} <= scores.keys()
    assert tried <= abs(best - first) + 3


def test_step_search_follows_the_gap_where_every_seed_misses():
    scores = {}
    while wanted := next_indices(scores, [6]):
        for index in wanted:
            missed = 0 if index <= -2 else 4
            scores[index] = Score(missed, 50.0 - index if not missed else 99.0, 1.0 + index)
    assert best_index(scores) == -2


def arena_of(means, seeds, rng, scatter=0.2):
    runs = {
        design: Measured(mean * np.exp(scatter * rng.standard_normal(seeds)), 0)
        for design, mean in means.items()
    }
    return Arena(REFERENCE, (), tuple(one for one in means if one != REFERENCE), runs)


def test_regret_of_equal_designs_is_zero_on_average_not_the_luck_of_the_best():
    rng = np.random.default_rng(0)
    ties = [dataclasses.replace(REPLAY, buffer_size=64 + i) for i in range(6)]
    regrets, naive = [], []
    for _ in range(400):
        # at this cost ratio only updates are paid for, so that all are equal but for noise
        arena = arena_of({REFERENCE: 300.0} | {one: 300.0 for one in ties}, 16, rng)
        case = case_of("any", arena, "fixed_batch", 1e-9)
        regrets.append(case.regret(ties[0]))
        costs = case.halves.mean(axis=0)
        naive.append(costs[case.choices.index(ties[0])] / costs.min() - 1)
    standard_error = np.std(regrets) / math.sqrt(len(regrets))
    assert abs(np.mean(regrets)) < 4 * standard_error
    assert np.mean(naive) > 0.03


def test_ratio_interval_covers_the_truth():
    rng = np.random.default_rng(1)
    inside = 0
    for _ in range(200):
        costs = np.array([1.0, 0.8])[:, None] * np.exp(0.2 * rng.standard_normal((2, 48)))
        _, low, high = best_ratio(costs, 1)
        inside += low <= 0.8 <= high
    assert 0.9 <= inside / 200 <= 0.99


def test_costs_hold_the_first_fill_and_choices_follow_the_cost_ratio():
    assert design_cost(Design(64, 16, 256, "without", "full"), np.array(10), 5.0) == (
        10 * 64 + 5 * (256 + 9 * 16)
    )
    arena = arena_of({REFERENCE: 300.0, REPLAY: 400.0}, 4, np.random.default_rng(0))
    said = {REFERENCE: 300.0, REPLAY: 400.0}
    assert chosen(arena, "fixed_batch", said, 0.5) == Choice(REFERENCE, False)
    assert chosen(arena, "fixed_batch", said, 20.0) == Choice(REPLAY, True)
    assert chosen(arena, "fixed_batch", {REFERENCE: 300.0}, 20.0) == Choice(REFERENCE, False)


def test_scores_of_a_perfect_and_of_a_wrong_predictor():
    rng = np.random.default_rng(2)
    cases, right, wrong = [], [], []
    for i in range(10):
        arena = arena_of({REFERENCE: 300.0, REPLAY: 330.0, OTHER: 900.0}, 48, rng, 0.05)
        case = case_of(f"e{i}", arena, "fixed_batch", 10.0)
        assert case.decided
        assert case.pays
        cases.append(case)
        right.append(Choice(REPLAY, True))
        wrong.append(Choice(REFERENCE, False))
    good, bad = scores(cases, right), scores(cases, wrong)
    assert abs(good.median_regret.value) < 0.02
    assert good.verdict_accuracy.value == 1
    truth = 300 * 11 * 64 / (330 * (64 + 320)) - 1
    assert bad.median_regret.value == pytest.approx(truth, abs=0.05)
    assert bad.median_regret.low <= bad.median_regret.value <= bad.median_regret.high
    assert bad.verdict_accuracy.value == 0


# The suite.


def test_suite_has_the_stated_size_and_range():
    environments = suite()
    assert len(environments) >= 80
    assert len({one.id for one in environments}) == len(environments)
    halves = [one.half for one in environments]
    assert min(halves.count("development"), halves.count("judgement")) >= 30
    beta = [one.noise_to_batch for one in environments]
    assert min(beta) <= 0.1
    assert max(beta) >= 15
    for one in environments:
        assert one.updates >= LEAST_UPDATES
        assert BETA_STRATA[0] <= one.noise_to_batch <= BETA_STRATA[-1]
        assert max(d.staleness_horizon for d in replay_designs(one)) <= one.updates / 20
        assert len(pilot_designs(one)) >= 5


def test_suite_holds_what_its_rule_draws():
    by_rule = {
        family: [drawn(family, number) for number in range(kind.candidates)]
        for family, kind in FAMILIES.items()
    }
    places = []
    for one in suite():
        candidates = by_rule[one.family]
        (place,) = [i for i, c in enumerate(candidates) if c.knobs == one.knobs]
        assert candidates[place].num_generations == one.num_generations
        places.append((list(FAMILIES).index(one.family), place))
        count = [(o.family, stratum(o.noise_to_batch)) for o in suite()]
        assert count.count((one.family, stratum(one.noise_to_batch))) <= FAMILIES[one.family].quota
    assert places == sorted(places)


def test_ids_and_halves_are_those_saved_with_the_suite():
    from sim.validation.suite import SUITE

    for record in json.loads(SUITE.read_text())["environments"]:
        one = from_record(record)
        assert (one.id, one.half) == (record["id"], record["half"])


# The command, on its smoke form: two short environments with few seeds.


def command_line(results, *more):
    return [sys.executable, "-m", "sim.validate", "--smoke", "--results", str(results), *more]


def only_folder(results):
    (folder,) = results.iterdir()
    return folder


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """An uninterrupted smoke run: its folder, and its rows by environment."""
    results, page = tmp_path_factory.mktemp("smoke"), tmp_path_factory.mktemp("page")
    assert main(["--smoke", "--results", str(results), "--page", str(page)]) == 0
    folder = only_folder(results)
    config = resolved(ValidateConfig(smoke=True))
    found = {one.id: Runs(one, config.seeds) for one in chosen_environments(config)}
    for text in read_rows(folder / "table.csv"):
        found[text["environment"]].add(row_of(text))
    return folder, page, found


def test_smoke_writes_a_page_whose_numbers_are_those_of_its_json(smoke):
    folder, page, _ = smoke
    for name in ("validation.json", "validation.md", "validation.png"):
        assert (folder / name).read_bytes() == (page / name).read_bytes()
    table = json.loads((folder / "validation.json").read_text())
    assert table.keys() == set(PROTOCOLS)
    for protocol in PROTOCOLS:
        assert table[protocol].keys() == set(BATCH_RULES)
        for batch in BATCH_RULES:
            assert table[protocol][batch].keys() == {"smooth", "all"} <= set(GROUPS)
            for group in ("smooth", "all"):
                assert table[protocol][batch][group].keys() == PREDICTORS.keys()
                for score in table[protocol][batch][group].values():
                    for one in score.values():
                        assert one.keys() == {"value", "low", "high"}
    text = (folder / "validation.md").read_text()
    best = table["tuned"]["fixed_batch"]["all"]["finite_memory"]["median_regret"]["value"]
    assert f"| finite_memory | {best:.1%}".replace("%", " %") in text


def test_the_page_compares_case_by_case_and_lists_wrong_verdicts(smoke):
    folder, _, found = smoke
    text = (folder / "validation.md").read_text()
    [one] = [judged(runs) for runs in found.values()]
    cases = one.cases["tuned", "fixed_batch"]
    mine = one.choices["tuned", "fixed_batch", "finite_memory"]
    for name in set(PREDICTORS) - {"finite_memory"}:
        other = one.choices["tuned", "fixed_batch", name]
        saved = [
            case.regret(theirs.design) - case.regret(ours.design)
            for case, ours, theirs in zip(cases, mine, other, strict=True)
        ]
        [row] = re.findall(rf"^\| {name} \| (\S+) % .* \| (\S+)% \| (\S+)% \|$", text, re.MULTILINE)
        assert float(row[0]) == pytest.approx(100 * np.mean(saved), abs=0.051)
        assert float(row[1]) == pytest.approx(100 * np.mean(np.array(saved) > 0), abs=0.51)
        assert float(row[2]) == pytest.approx(100 * np.mean(np.array(saved) < 0), abs=0.51)
    wrong = [
        f"{case.gen_train_ratio:g}"
        for case, choice in zip(cases, mine, strict=True)
        if case.decided and case.pays != choice.pays
    ]
    section = text.split("verdict is wrong")[1].split("## ")[0]
    assert (
        re.findall(rf"^\| {one.environment.id} \| \S+ \| (\S+) \|", section, re.MULTILINE) == wrong
    )


def test_every_design_is_priced_on_all_its_seeds_under_both_protocols(smoke):
    for runs in smoke[2].values():
        verdicts = judged(runs)
        for protocol in PROTOCOLS:
            arena = verdicts.arenas[protocol]
            assert set(arena.runs) == set(all_designs(runs.environment))
            assert {len(one.updates) for one in arena.runs.values()} == {runs.seeds.price}
        for name in ("reuse_law", "exact_dynamics", "finite_memory"):
            updates = verdicts.predicted["tuned", name]
            assert all(value > 0 for value in updates.values())
            assert on_policy(runs.environment.batch_size) in updates


def test_the_other_half_is_refused(smoke):
    runs = next(iter(smoke[2].values()))
    guards.check_run([runs], "development")
    with pytest.raises(guards.Worthless, match="belongs to the development half"):
        guards.check_run([runs], "judgement")


def changed(runs, change):
    """Return the runs with every row replaced by the rows that a function makes of it."""
    copy = Runs(runs.environment, runs.seeds)
    for row in runs.all_rows():
        for one in change(row):
            copy.add(one)
    return copy


def priced_at_most(runs, most):
    def change(row):
        return [row._replace(updates=min(row.updates, most)) if row.phase == "price" else row]

    return changed(runs, change)


def with_short_runs(runs):
    return priced_at_most(runs, 150)


def with_a_long_horizon(runs):
    claimed = dataclasses.replace(runs.environment, updates=900.0)
    return dataclasses.replace(priced_at_most(runs, 250), environment=claimed)


def looked_at_every_fifth_update(runs):
    return changed(runs, lambda row: [row._replace(updates=5 * row.updates, status="reached")])


def with_a_best_step_on_the_edge(runs):
    lowest = runs.best("search", on_policy(runs.environment.batch_size))
    return changed(
        runs, lambda row: [] if row.phase == "search" and row.step_index < lowest else [row]
    )


def priced_on_the_seeds_that_chose(runs):
    def change(row):
        shared = row._replace(phase="price", seed=row.seed)
        return [row, shared] if row.phase == "search" else [row]

    return changed(runs, change)


def with_a_dear_pilot(runs):
    def change(row):
        return [row._replace(updates=99 * row.updates) if row.phase == "pilot" else row]

    return changed(runs, change)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (with_short_runs, "takes only 1"),
        (with_a_long_horizon, "is too long for"),
        (looked_at_every_fifth_update, "at multiples of 5"),
        (with_a_best_step_on_the_edge, "lies on the edge"),
        (priced_on_the_seeds_that_chose, "share a seed"),
        (with_a_dear_pilot, "the pilot took"),
    ],
)
def test_a_broken_guard_fails_the_run(smoke, broken, message):
    runs = next(iter(smoke[2].values()))
    with pytest.raises(guards.Worthless, match=message):
        guards.check_run([broken(runs)], "development")


def test_guards_on_costs_and_baselines_fail_on_what_they_guard(smoke, monkeypatch):
    runs = next(iter(smoke[2].values()))
    free_fill = lambda design, updates, mu: updates * (design.batch_size + mu)  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr(guards, "design_cost", free_fill)
        with pytest.raises(guards.Worthless, match="leaves rollouts out"):
            guards.check_run([runs], "development")
    with monkeypatch.context() as patch:
        worse = lambda size: Design(size, size, 2 * size, "with", "full")  # noqa: E731
        patch.setattr(guards, "on_policy", worse)
        with pytest.raises(guards.Worthless, match="is not on-policy"):
            guards.check_baseline(runs)
    one_stream = lambda environment, row: (0, 0)  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr(guards, "stream_of", one_stream)
        with pytest.raises(guards.Worthless, match="share a random stream"):
            guards.check_run([runs], "development")


@pytest.mark.slow
def test_killed_run_resumes_to_the_same_table_and_page(smoke, tmp_path):
    folder = smoke[0]
    for delay in (4.0, 9.0):
        process = subprocess.Popen(
            command_line(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = subprocess.run(command_line(tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("table.csv", "validation.json", "validation.md"):
        assert (only_folder(tmp_path) / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--price-seeds", "7"], "price_seeds"),
        (["--pilot-seeds", "1"], "pilot_seeds"),
        (["--search-seeds", "5000"], "1000"),
        (["--per-family", "-1"], "per_family"),
        (["--families", "nothing"], "nothing"),
        (["--id", "../up"], "id"),
        (["--processes", "0"], "processes"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(flags, named, tmp_path, capsys):
    assert main(["--smoke", "--results", str(tmp_path), *flags]) == 2
    error = capsys.readouterr().err
    assert named in error
    assert error.count("\n") == 1


def test_folder_of_another_config_is_refused(smoke, capsys):
    folder = smoke[0]
    again = ["--smoke", "--results", str(folder.parent), "--id", folder.name]
    assert main([*again, "--price-seeds", "10"]) == 2
    assert "another config" in capsys.readouterr().err
