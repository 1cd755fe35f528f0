"""The sweep as a user runs it: one program, resumable, reproducible, honest arithmetic."""

import json
import random
import signal
import subprocess
import sys
import time

import jax.monitoring
import numpy as np
import pytest

from sim import report
from sim.designs import Design, planned
from sim.settings import SweepConfig, check, resolved
from sim.sweep import digest, finished_row, jobs, main, opened, table_row
from sim.table import csv_line, read_rows

SMALL = [
    *("--batch-size", "16", "--horizons", "1", "2", "4", "--replay-ratios", "1", "2"),
    *("--step-sizes", "4", "16", "--seeds", "4", "--gen-train-ratios", "1", "5"),
    *("--target", "0.3", "--max-updates", "400", "--bandit.prompts", "4"),
]


def run_command_line(results, *more):
    return [sys.executable, "-m", "sim.sweep", *SMALL, "--results", str(results), *more]


def only_folder(results):
    (folder,) = results.iterdir()
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """An uninterrupted small sweep: its folder, printed text, and compiled programs."""
    results = tmp_path_factory.mktemp("finished")
    compiled = []
    count = lambda event, _, **__: compiled.append(event)  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        assert main([*SMALL, "--results", str(results)]) == 0
    finally:
        jax.monitoring.unregister_event_duration_listener(count)
    programs = sum("backend_compile" in event for event in compiled)
    return only_folder(results), programs


def test_whole_sweep_is_at_most_two_compiled_programs(finished):
    assert 1 <= finished[1] <= 2


@pytest.mark.slow
def test_default_sweep_is_at_most_two_compiled_programs(tmp_path):
    compiled = []
    count = lambda event, _, **__: compiled.append(event)  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        assert main(["--results", str(tmp_path)]) == 0
    finally:
        jax.monitoring.unregister_event_duration_listener(count)
    assert 1 <= sum("backend_compile" in event for event in compiled) <= 2
    rows = read_rows(only_folder(tmp_path) / "table.csv")
    plan = planned(SweepConfig())
    assert len(rows) == len(plan.designs) * 12 * 32


def test_folder_holds_rows_config_summary_and_picture(finished):
    folder, _ = finished
    rows = read_rows(folder / "table.csv")
    assert len({row["id"] for row in rows}) == len(rows)
    config = json.loads((folder / "config.json").read_text())
    assert config["batch_size"] == 16
    assert config["bandit"]["prompts"] == 4
    assert folder.name == f"bandit-{digest(config)}"
    assert (folder / "heatmap.png").read_bytes()[:4] == b"\x89PNG"
    assert (folder / "heatmap.png").stat().st_size < 300_000
    summary = json.loads((folder / "summary.json").read_text())
    assert [row["gen_train_ratio"] for row in summary] == [1, 5]
    for name in ("commit", "version", "jax", "numpy", "python", "seed", "step_size", "status"):
        assert all(row[name] for row in rows), name


def test_predicted_design_runs_as_rounded_not_snapped_to_the_grid(finished):
    folder, _ = finished
    summary = json.loads((folder / "summary.json").read_text())
    assert summary[1]["predicted_rollouts_per_update"] == 8
    assert summary[1]["predicted_buffer_size"] == 21
    rows = read_rows(folder / "table.csv")
    assert sum(row["buffer_size"] == "21" for row in rows) == 2 * 4


def test_same_command_again_changes_nothing(finished, capsys):
    folder, _ = finished
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert main([*SMALL, "--results", str(folder.parent)]) == 0
    assert "on-policy" in capsys.readouterr().out
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def started(results):
    return subprocess.Popen(
        run_command_line(results), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def killed_until_it_finishes(results, kills, latest, rng):
    """Run the small sweep, killing it up to so many times, until it finishes; return the kills."""
    for done in range(kills):
        process = started(results)
        deadline = time.monotonic() + rng.uniform(0.1, latest)
        # Half of the kills wait for new rows, so that they fall while rows are written.
        wait_for_rows = rng.random() < 0.5
        before = sum(path.stat().st_size for path in results.rglob("table.csv"))
        while process.poll() is None:
            size = sum(path.stat().st_size for path in results.rglob("table.csv"))
            if time.monotonic() > deadline and (size > before + 1000 or not wait_for_rows):
                break
            time.sleep(0.005)
        if process.poll() is not None:
            assert process.returncode == 0
            return done
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert started(results).wait(timeout=300) == 0
    return kills


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_sweep_resumes_to_the_same_table(finished, tmp_path, kills):
    whole = (finished[0] / "table.csv").read_bytes()
    rng = random.Random(kills)
    (tmp_path / "whole").mkdir()
    began = time.monotonic()
    assert started(tmp_path / "whole").wait(timeout=300) == 0
    latest = time.monotonic() - began
    total = 0
    for attempt in range(10 * kills):
        results = tmp_path / str(attempt)
        results.mkdir()
        total += killed_until_it_finishes(results, kills - total, latest, rng)
        assert (only_folder(results) / "table.csv").read_bytes() == whole
        if total == kills:
            break
    assert total == kills
    assert (only_folder(tmp_path / "whole") / "table.csv").read_bytes() == whole


def test_killed_between_rows_resumes_from_what_is_there(finished, tmp_path):
    """Every prefix of the table, torn lines too, resumes to the same table."""
    folder, _ = finished
    whole = (folder / "table.csv").read_bytes()
    copy = tmp_path / folder.name
    copy.mkdir()
    (copy / "config.json").write_bytes((folder / "config.json").read_bytes())
    (copy / "table.csv").write_bytes(whole[: len(whole) * 3 // 5])
    assert main([*SMALL, "--results", str(tmp_path)]) == 0
    assert (copy / "table.csv").read_bytes() == whole


@pytest.mark.parametrize("text", ["", "{"])
def test_killed_while_saving_its_config_starts_again(tmp_path, text):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / ".config.json.partial").write_text(text)
    assert opened(SweepConfig(results=tmp_path, id="mine")) == folder
    assert json.loads((folder / "config.json").read_text())["batch_size"] == 64
    assert [path.name for path in folder.iterdir()] == ["config.json"]


def test_seeds_change_every_result_and_repeat_bit_for_bit(finished, tmp_path):
    folder, _ = finished
    assert main([*SMALL, "--results", str(tmp_path), "--first-seed", "100"]) == 0
    other = read_rows(only_folder(tmp_path) / "table.csv")
    gaps = {row["gap"] for row in read_rows(folder / "table.csv")}
    assert len(gaps & {row["gap"] for row in other}) <= 1


def synthetic(tmp_path, updates_of):
    """A sweep's table with made-up updates: updates_of(design, step, seed) -> int or None."""
    config = SweepConfig(
        batch_size=16,
        horizons=(1, 2),
        replay_ratios=(1, 2),
        step_sizes=(1.0, 2.0, 4.0),
        seeds=4,
        gen_train_ratios=(1, 50),
        max_updates=1000,
    )
    check(config)
    plan = planned(config)
    path = tmp_path / "table.csv"
    lines = []
    for job in jobs(config, plan):
        row = table_row(config, *job)
        found = updates_of(*job)
        ended = {"status": "reached", "updates_to_target": found, "updates": found, "gap": 0.1}
        if found is None:
            ended |= {"status": "not_reached", "updates_to_target": "", "updates": 1000}
        row |= ended
        lines = lines or [csv_line(list(row))]
        lines.append(csv_line(list(row.values())))
    path.write_text("".join(lines))
    return config, plan, path


REPLAY = Design(16, 8, 16, "without", "full")


def test_choices_are_made_on_one_half_and_priced_on_the_other(tmp_path):
    def updates(design, step, seed):
        if design == REPLAY:
            return {1.0: [100, 100, 300, 340], 2.0: [120, 120, 100, 100], 4.0: [200] * 4}[step][
                seed
            ]
        if design.batch_size == 16 and design.rollouts_per_update == 16:
            return {1.0: 240, 2.0: 200, 4.0: 260}[step]
        return 400

    config, plan, path = synthetic(tmp_path, updates)
    cheap, dear = report.summarise(config, plan, report.measurements(config, plan, path))
    assert dear.best.design == REPLAY
    assert dear.best.step_size == 1.0
    assert dear.best.on_grid_edge
    on_policy = 200 * 16 * 51
    assert dear.on_policy_cost == on_policy
    # Unlucky on the pricing seeds, and still what was chosen: 320 updates, N + (U - 1) R rollouts.
    assert dear.best_ratio.value == pytest.approx((320 * 16 + 50 * (16 + 319 * 8)) / on_policy)
    assert dear.best_ratio.low < dear.best_ratio.value < dear.best_ratio.high
    assert cheap.predicted.design == plan.on_policy
    assert cheap.smaller.design == Design(2, 2, 2, "without", "full")
    assert cheap.smaller_ratio.value == pytest.approx(400 * 2 / (200 * 16))
    assert dear.regret.value == pytest.approx(dear.measured_ratio.value / dear.best_ratio.value - 1)


def test_runs_that_miss_the_target_make_costs_lower_bounds(tmp_path):
    def updates(design, step, seed):
        if design == REPLAY:
            return None if step == 1.0 and seed == 3 else 100
        if design.rollouts_per_update == 16:
            return None if step == 4.0 and seed == 0 else 500
        return None

    config, plan, path = synthetic(tmp_path, updates)
    _, dear = report.summarise(config, plan, report.measurements(config, plan, path))
    assert dear.on_policy.step_size == 1.0
    assert dear.best_ratio.at_least
    assert dear.best.pricing_missed == 1
    assert dear.best.pricing.tolist() == [100, 1000]
    printed = report.text([dear], config, plan)
    assert ">= " in printed
    assert "1 of 2 pricing seeds did not reach the target" in printed
    assert "lies on the grid's edge" in printed
    # Nothing can be divided by a cost that is itself only a lower bound.
    assert np.isnan(dear.regret.value)
    json.dumps(report.summary_row(dear), allow_nan=False)


def test_smoke_preset_yields_to_flags_given_beside_it():
    config = resolved(SweepConfig(smoke=True, seeds=6))
    assert config.seeds == 6
    assert len(config.step_sizes) < len(resolved(SweepConfig()).step_sizes)
    assert len(list(jobs(config, planned(config)))) < 500


def test_finished_row_has_no_updates_to_target_unless_reached():
    from sim.lanes import Finished

    config = SweepConfig()
    job = (planned(config).on_policy, 2.0, 0)
    assert finished_row(config, job, Finished(0, "reached", 7, 0.1))["updates_to_target"] == 7
    assert finished_row(config, job, Finished(0, "diverged", 7, 0.1))["updates_to_target"] == ""


@pytest.mark.parametrize("problem", ["bandit", "quadratic"])
def test_step_sizes_are_the_problems_own_unless_given(problem):
    config = resolved(SweepConfig(problem=problem))
    assert len(config.step_sizes) >= 12
    assert resolved(SweepConfig(problem=problem, step_sizes=(0.5,))).step_sizes == (0.5,)
