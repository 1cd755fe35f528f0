"""The sweep as a user runs it: one program, resumable, reproducible, honest arithmetic."""

import contextlib
import json
import math
import os
import random
import re
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
from sim.sweep import chunked, digest, finished_row, jobs, main, opened, table_row
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


def test_several_processes_write_the_same_table(finished, tmp_path):
    assert main([*SMALL, "--results", str(tmp_path), "--processes", "3"]) == 0
    folder = only_folder(tmp_path)
    assert folder.name == finished[0].name
    assert (folder / "table.csv").read_bytes() == (finished[0] / "table.csv").read_bytes()


def test_every_lane_is_in_one_chunk_at_its_place():
    for processes, count in ((1, 3), (2, 1), (2, 5000), (3, 50), (7, 100_000)):
        config = SweepConfig(processes=processes)
        lanes = list(range(count))
        chunks = chunked(config, lanes, None)
        assert min(processes, count) <= len(chunks) <= 4 * processes
        assert [list(chunk.places) for chunk in chunks] == [chunk.lanes for chunk in chunks]
        assert sorted(i for chunk in chunks for i in chunk.places) == lanes
        sizes = [len(chunk.lanes) for chunk in chunks]
        assert max(sizes) - min(sizes) <= 1


LONGER = ("--seeds", "32", "--target", "0.1", "--max-updates", "6000")


def started(results, processes):
    """Start a sweep of a few seconds; what it says goes to a file beside its results."""
    with open(results.with_suffix(".err"), "w") as said:
        return subprocess.Popen(
            run_command_line(results, *LONGER, "--processes", str(processes)),
            stdout=subprocess.DEVNULL,
            stderr=said,
        )


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Table and duration of that sweep; the others share its compiled program, to save time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        results = tmp_path_factory.mktemp("uninterrupted")
        began = time.monotonic()
        assert started(results, 1).wait(timeout=300) == 0
        seconds = time.monotonic() - began
        yield (only_folder(results) / "table.csv").read_bytes(), seconds


def workers_of(process):
    listed = subprocess.run(
        ["ps", "-ww", "-A", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    )
    lines = [line.split(None, 2) for line in listed.stdout.splitlines()]
    return [
        int(pid)
        for pid, parent, command in lines
        if int(parent) == process.pid and "--multiprocessing-fork" in command
    ]


def killed_parent(process, results, rng):
    """Kill a sweep; its workers end by themselves."""
    workers = workers_of(process)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 30
    while left := [pid for pid in workers if running(pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def running(pid):
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return state.stdout.strip()[:1] not in ("", "Z")


def killed_worker(process, results, rng):
    """Kill a worker of a sweep, which then ends with one line."""
    while not (workers := workers_of(process)):
        if process.poll() is not None:
            return
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):  # It may have ended since it was listed.
        os.kill(rng.choice(workers), signal.SIGKILL)
    # A worker that had no chunk left is not missed.
    if process.wait(timeout=300) != 0:
        assert process.returncode == 2
        *_, said = results.with_suffix(".err").read_text().splitlines()
        assert re.fullmatch(r"error: worker process \d+ was killed by SIGKILL .*", said)


KILLS = [(1, killed_parent), (2, killed_parent), (2, killed_worker)]


def size_of_table(results):
    return sum(path.stat().st_size for path in results.rglob("table.csv"))


def killed_until_it_finishes(results, processes, kill, kills, uninterrupted, rng):
    """Run a sweep, killing it up to so many times, until it finishes; return the kills."""
    whole, latest = uninterrupted
    for done in range(kills):
        process = started(results, processes)
        # Half of the kills come at any time, half while rows are written.
        size, end = math.inf, math.inf
        if rng.random() < 0.5:
            end = time.monotonic() + rng.uniform(0.1, latest)
        else:
            size = rng.uniform(size_of_table(results), len(whole))
        while process.poll() is None and time.monotonic() < end and size_of_table(results) <= size:
            time.sleep(0.005)
        if process.poll() is None:
            kill(process, results, rng)
        if process.returncode == 0:
            return done
    assert started(results, processes).wait(timeout=300) == 0
    return kills


@pytest.mark.parametrize(("processes", "kill"), KILLS)
@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_sweep_resumes_to_the_same_table(uninterrupted, tmp_path, processes, kill, kills):
    rng = random.Random(kills)
    total = 0
    for attempt in range(10 * kills):
        results = tmp_path / str(attempt)
        results.mkdir()
        left = kills - total
        total += killed_until_it_finishes(results, processes, kill, left, uninterrupted, rng)
        assert (only_folder(results) / "table.csv").read_bytes() == uninterrupted[0]
        if total == kills:
            break
    assert total == kills


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
