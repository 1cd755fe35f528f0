"""Studies: what is tried first, how trials end, storage, many workers, kills."""

import collections
import dataclasses
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from llm.run_folder import read_log
from llm.settings import run_name
from llm.study import loaded, main, run_study, study_folder
from llm.study_settings import StudyConfig
from llm.study_space import SpaceConfig, built_space
from llm.study_storage import Presence, cut_torn_line, opened_storage, taken
from theory import optimal_design

ROOT = Path(__file__).parent.parent.parent
TOY = '''
import math, time

def steps(point, seed):
    """Updates to the target: least at y = 2, the reference's step size, the whole batch."""
    y = point["batch_size"] / point["rollouts_per_update"]
    rate = math.log(point["learning_rate"] / 3e-5)
    return 200 * (1 + 0.3 * (y - 2) ** 2) * (1 + rate**2) * (1 + 0.02 * seed)

def toy(point, seed, watch, gen_train_ratio, pause="0", fault="", at="0"):
    watch.note(f"seed {seed}")
    per_update = point["batch_size"] + gen_train_ratio * point["rollouts_per_update"]
    for update in range(0, 2000, 5):
        score = 0.2 + 0.8 * update / steps(point, seed)
        cost = update * per_update
        if update >= int(at) and fault:
            if fault == "nan":
                score = math.nan
            elif fault == "infinite":
                cost = math.inf
            elif fault == "collapse":
                score = 0.05
            elif fault == "memory":
                raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
            elif fault == "free":
                cost, score = 0.0, 1.0
            elif fault == "bug":
                raise TypeError("a bug")
            elif fault == "silent":
                return
        time.sleep(float(pause))
        watch(cost, score)
'''


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The toy objective, importable here and in every process started from here."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "toy_objective.py").write_text(TOY)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{ROOT}")
    yield "toy_objective:toy"
    sys.modules.pop("toy_objective", None)


@pytest.fixture
def config(module, tmp_path):
    return StudyConfig(
        objective=module, target=1.0, trials=8, seeds=2, no_artifacts=True, results=tmp_path
    )


def counts(study):
    return collections.Counter(trial.state.name for trial in study.get_trials(deepcopy=False))


def reasons(study):
    return [trial.user_attrs.get("reason") for trial in study.trials]


def test_first_trials_are_on_policy_the_prediction_and_the_papers_setting(config):
    study = run_study(dataclasses.replace(config, noise_to_batch=0.5, trials=6), progress=False)
    tried = {trial.user_attrs.get("label"): trial.user_attrs for trial in study.trials}

    def design(label):
        names = ("batch_size", "rollouts_per_update", "buffer_size")
        return tuple(tried[label][name] for name in names)

    known = optimal_design(5.28, 1, batch_size=64, num_generations=8, noise_to_batch=0.5)
    paper = optimal_design(5.28, 1, batch_size=64, num_generations=8)
    assert design("on-policy") == (64, 64, 64)
    assert design("prediction") == (64, known.rollouts_per_update, max(known.buffer_size, 64))
    assert design("paper") == (64, paper.rollouts_per_update, max(paper.buffer_size, 64))
    assert tried["on-policy"]["learning_rate"] == pytest.approx(3e-5)
    slower = tried["prediction, smaller steps"]
    assert slower["learning_rate"] == pytest.approx(3e-5 / known.replay_ratio**0.5)
    assert sum(label is None for label in tried) == 1


@pytest.mark.parametrize("ratio", [0.5, 5.28, 300.0])
@pytest.mark.parametrize("gpus", [0, 8])
def test_every_point_is_a_whole_design_inside_the_space(ratio, gpus):
    space, first = built_space(SpaceConfig(draws=("without", "with"), gpus=gpus), ratio, 0.1)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for parameters in first.values():
        study.enqueue_trial(parameters)
    for _ in range(300):
        point = space.suggested(study.ask())
        batch, fresh, size = point.batch_size, point.rollouts_per_update, point.buffer_size
        assert batch in (64, 32, 16)
        assert fresh % 8 == 0
        assert 8 <= fresh <= batch
        assert size >= fresh
        assert point.draw == "with" or size >= batch
    replayed = {trial.params.get("num_trainers") for trial in study.trials}
    assert (replayed == {None}) == (gpus == 0)


def test_study_finds_the_toys_best_and_repeats(config, tmp_path):
    config = dataclasses.replace(config, trials=16)
    study = run_study(config, progress=False)
    best = study.best_trial.user_attrs
    assert counts(study)["COMPLETE"] >= 3
    assert sum(counts(study).values()) == 16
    # The study's value is the objective's: mean over seeds of what the runs cost.
    costs = [curve[-1][0] for curve in best["curves"]]
    assert study.best_value == pytest.approx(sum(costs) / 2)
    assert 1.3 <= best["batch_size"] / best["rollouts_per_update"] <= 4
    again = run_study(dataclasses.replace(config, results=tmp_path / "again"), progress=False)
    assert [trial.values for trial in again.trials] == [trial.values for trial in study.trials]


def test_same_command_again_adds_nothing_and_more_trials_continue(config):
    first = [trial.values for trial in run_study(config, progress=False).trials]
    assert len(first) == 8
    assert sum(counts(run_study(config, progress=False)).values()) == 8
    more = run_study(dataclasses.replace(config, trials=11), progress=False)
    assert sum(counts(more).values()) == 11
    assert [trial.values for trial in more.trials[:8]] == first


@pytest.mark.parametrize(
    ("fault", "at", "state", "reason"),
    [
        ("nan", 20, "FAIL", "not a number: score nan"),
        ("infinite", 20, "FAIL", "not a number: score 0."),
        ("memory", 20, "FAIL", "CUDA out of memory. Tried to allocate 2 GiB"),
        ("free", 0, "FAIL", "the target 1.0 is reached at no compute: raise it"),
        ("silent", 0, "FAIL", "the objective reported nothing"),
        ("collapse", 100, "PRUNED", "collapsed from 0.2 to 0.05"),
        ("silent", 20, "PRUNED", "ended at 0."),
    ],
)
def test_trials_that_break_have_a_reason_and_no_value(config, fault, at, state, reason):
    config = dataclasses.replace(config, option=(f"fault={fault}", f"at={at}"), trials=3)
    config = dataclasses.replace(config, max_cost=3e5)
    study = run_study(config, progress=False)
    assert counts(study) == {state: 3}
    assert all(text.startswith(reason) for text in reasons(study))
    assert not study.get_trials(states=(TrialState.COMPLETE,))


def test_a_run_that_never_arrives_is_pruned_and_costs_no_more_than_allowed(config):
    study = run_study(dataclasses.replace(config, max_cost=3000.0, trials=3), progress=False)
    assert counts(study) == {"PRUNED": 3}
    assert all("not reached within 3000" in text for text in reasons(study))
    for trial in study.trials:
        [curve] = trial.user_attrs["curves"]
        assert curve[-2][0] < 3000 <= curve[-1][0]


def test_a_trial_that_has_lost_ends_before_its_seeds_do(config):
    study = run_study(dataclasses.replace(config, trials=25, pruner="none"), progress=False)
    lost = [trial for trial in study.trials if trial.state is TrialState.PRUNED]
    assert lost
    for trial in lost:
        better = [one.value for one in study.trials[: trial.number] if one.value is not None]
        spent = sum(curve[-1][0] for curve in trial.user_attrs["curves"])
        assert spent >= 2 * 1.5 * min(better)
        assert spent <= 2 * 1.5 * min(better) + 5 * 64 * 6.28


def test_median_pruner_compares_the_same_seed_at_equal_compute(config):
    study = run_study(dataclasses.replace(config, trials=25, slack=1e6), progress=False)
    pruned = [text for text in reasons(study) if text and "below the median" in text]
    assert pruned
    for trial in study.trials:
        for step, value in trial.intermediate_values.items():
            place, rung = divmod(step - 1, 20)
            curve = trial.user_attrs["curves"][place]
            assert -value >= max(score for cost, score in curve if cost <= rung / 20 * 1e6) - 1e-9


def test_pareto_study_keeps_the_front(config):
    config = dataclasses.replace(config, goal="pareto", max_cost=2e4, trials=10)
    study = run_study(config, progress=False)
    assert counts(study) == {"COMPLETE": 10}
    assert study.directions[1] is optuna.study.StudyDirection.MAXIMIZE
    front = {trial.number for trial in study.best_trials}
    for trial in study.trials:
        dominated = any(
            other.values[0] <= trial.values[0]
            and other.values[1] >= trial.values[1]
            and other.values != trial.values
            for other in study.trials
        )
        assert (trial.number in front) == (not dominated)


def test_an_error_nobody_foresaw_is_not_swallowed(config):
    with pytest.raises(TypeError, match="a bug"):
        run_study(dataclasses.replace(config, option=("fault=bug",)), progress=False)
    study = opened(config)
    assert reasons(study)[0] == "TypeError: a bug"
    assert counts(study)["FAIL"] == 1


def test_a_study_whose_trials_all_fail_stops(config):
    config = dataclasses.replace(config, option=("fault=nan",), trials=50)
    with pytest.raises(ValueError, match="all of 5 trials failed, the last because: not a number"):
        run_study(config, progress=False)


def opened(config):
    folder = study_folder(config)
    storage, _ = opened_storage(config.storage, folder, config.name)
    return optuna.load_study(study_name=config.name, storage=storage)


def test_curves_are_attached_as_data_and_picture(config, tmp_path):
    study = run_study(dataclasses.replace(config, no_artifacts=False, trials=1), progress=False)
    found = optuna.artifacts.get_all_artifact_meta(study.trials[0], storage=study._storage)
    kinds = {meta.mimetype: meta.artifact_id for meta in found}
    folder = study_folder(config) / "artifacts"
    assert (
        json.loads((folder / kinds["application/json"]).read_text())
        == (study.trials[0].user_attrs["curves"])
    )
    assert (folder / kinds["image/png"]).read_bytes().startswith(b"\x89PNG")
    assert study.trials[0].user_attrs["run_1"] == "seed 1"
    assert study.trials[0].user_attrs["commit"]


@pytest.fixture(params=["journal", "sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def storage_url(request, tmp_path):
    if request.param == "journal":
        yield ""
    elif request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'study.db'}"
    else:
        yield from postgresql(tmp_path)


def postgresql(tmp_path):
    """A server of Debian's package, run for the test alone."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("PostgreSQL is not installed")
    tools = found[-1].parent
    # The server refuses to run as root, and its user may not enter root's test folders.
    user = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
    data = Path(tempfile.mkdtemp(prefix="postgresql-"))
    if user:
        shutil.chown(data, "postgres")

    def run(*command):
        subprocess.run([*user, *command], check=True, capture_output=True, cwd="/tmp")

    run(str(tools / "initdb"), "-D", str(data), "-A", "trust", "-U", "tester")
    port = random.Random(str(tmp_path)).randrange(20000, 30000)
    run(
        str(tools / "pg_ctl"), "-D", str(data), "-w", "-l", str(data / "log"),
        "-o", f"-p {port} -k {data}", "start",
    )  # fmt: skip
    try:
        yield f"postgresql+psycopg://tester@localhost:{port}/postgres"
    finally:
        run(str(tools / "pg_ctl"), "-D", str(data), "-m", "immediate", "stop")
        shutil.rmtree(data)


def run_quietly(config):
    run_study(config, progress=False)


@pytest.mark.parametrize("processes", [3, pytest.param(8, marks=pytest.mark.slow)])
def test_processes_make_and_run_one_study_at_once(config, storage_url, processes):
    config = dataclasses.replace(config, storage=storage_url, trials=3 * processes)
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=run_quietly, args=(config,)) for _ in range(processes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=240)
        assert worker.exitcode == 0
    study = opened(config)
    assert [trial.number for trial in study.trials] == list(range(config.trials))
    assert all(trial.state.is_finished() for trial in study.trials)
    labels = collections.Counter(
        trial.user_attrs["label"] for trial in study.trials if "label" in trial.user_attrs
    )
    assert set(labels.values()) == {1}
    assert len({trial.user_attrs["worker"] for trial in study.trials}) > 1


def started(config):
    command = [
        sys.executable, "-m", "llm.study", "--objective", config.objective, "--target", "1",
        "--trials", str(config.trials), "--seeds", "2", "--workers", "2", "--no-artifacts",
        "--results", str(config.results), "--option", "pause=0.002",
    ]  # fmt: skip
    if config.storage:
        command += ["--storage", config.storage]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def children_of(pid):
    found = subprocess.run(
        ["pgrep", "-P", str(pid), "-f", "spawn_main"], capture_output=True, text=True, check=False
    )
    return [int(one) for one in found.stdout.split()]


@pytest.mark.parametrize(
    ("storage", "kills"),
    [
        ("journal", 2),
        pytest.param("journal", 20, marks=pytest.mark.slow),
        pytest.param("sqlite", 20, marks=pytest.mark.slow),
    ],
)
def test_killed_study_has_every_trial_once(config, tmp_path, storage, kills):
    url = "" if storage == "journal" else f"sqlite:///{tmp_path / 'killed.db'}"
    config = dataclasses.replace(
        config, storage=url, trials=10 * kills, option=("pause=0.002",), seeds=2
    )
    rng = random.Random(kills)
    process = started(config)
    for kill in range(kills):
        seen = finished(config)
        while finished(config) <= seen:
            assert process.poll() is None, "the study ended before it was killed"
            time.sleep(0.05)
        time.sleep(rng.random() * 0.3)
        workers = children_of(process.pid)
        if kill % 2 and workers:
            os.kill(rng.choice(workers), signal.SIGKILL)
            continue
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process = started(config)
    assert process.wait(timeout=600) == 0
    study = opened(config)
    assert [trial.number for trial in study.trials] == list(range(config.trials))
    assert set(counts(study)) <= {"COMPLETE", "PRUNED", "FAIL"}
    assert all(
        reason == "its worker was lost twice"
        for reason, trial in zip(reasons(study), study.trials, strict=True)
        if trial.state is TrialState.FAIL
    )
    lost = [trial for trial in study.trials if trial.user_attrs.get("lost")]
    assert lost


def finished(config):
    if not (study_folder(config) / "config.json").exists():
        return -1
    try:
        return sum(trial.state.is_finished() for trial in opened(config).trials)
    except KeyError:
        return -1


def test_a_lost_trial_is_taken_up_once_with_its_parameters_then_fails(config):
    run_study(dataclasses.replace(config, trials=2), progress=False)
    more = dataclasses.replace(config, trials=3, no_first_guesses=True)
    folder = study_folder(config)
    storage, lock = opened_storage("", folder, config.name)
    study = loaded(more, storage)
    study.enqueue_trial({})
    space, _ = built_space(config.space, 5.28, None)
    gone = Presence(folder / "workers")
    with gone:
        trial = taken(study, gone)
        point = space.suggested(trial)
        other = Presence(folder / "workers")
        with other:
            # Its worker lives, and there is nothing else to do.
            assert taken(study, other) is None
    with Presence(folder / "workers") as second:
        again = taken(study, second)
        assert again.number == trial.number == 2
        assert space.suggested(again) == point
    with lock(), Presence(folder / "workers") as third:
        assert taken(study, third) is None
    assert study.trials[2].state is TrialState.FAIL
    assert study.trials[2].user_attrs["reason"] == "its worker was lost twice"


def test_a_worker_of_another_machine_is_lost_when_it_has_been_silent(config):
    study = run_study(dataclasses.replace(config, trials=1), progress=False)
    study.enqueue_trial({})
    trial = study.ask()
    trial.set_user_attr("worker", "elsewhere:12-abc")
    with Presence(study_folder(config) / "workers") as presence:
        trial.set_user_attr("seen", "2020-01-01T00:00:00+00:00")
        assert presence.gone(study.trials[1])
        trial.set_user_attr("seen", presence_time())
        assert not presence.gone(study.trials[1])


def presence_time():
    from llm.study_storage import now

    return now().isoformat()


def test_a_torn_last_line_of_the_journal_is_cut(config):
    run_study(dataclasses.replace(config, trials=2), progress=False)
    path = study_folder(config) / "journal.log"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"op_code":4,"worker')
    cut_torn_line(path)
    assert path.read_bytes() == whole
    path.write_bytes(whole + b'{"op_code":4,"worker')
    study = run_study(dataclasses.replace(config, trials=3), progress=False)
    assert sum(counts(study).values()) == 3


TINY = {
    "task": {"digits": 1, "test_size": 10},
    "tiny": {"layers": 1, "width": 16, "heads": 2, "warm_low": 0.0, "warm_high": 1.0},
    "eval_every": 2,
    "max_completion_length": 3,
    "checkpoint_every": 2,
}


def real(tmp_path, trials=2):
    return StudyConfig(
        option=(f"train={json.dumps(TINY)}", f"results={tmp_path}"),
        space=SpaceConfig(batch_size=16, num_generations=4),
        goal="pareto",
        max_cost=400.0,
        trials=trials,
        seeds=1,
        no_artifacts=True,
        results=tmp_path,
    )


def test_real_training_is_an_objective(tmp_path):
    study = run_study(real(tmp_path), progress=False)
    assert counts(study) == {"COMPLETE": 2}
    for trial in study.trials:
        attrs = trial.user_attrs
        folder = Path(attrs["run_0"])
        config = json.loads((folder / "config.json").read_text())
        assert config["rollouts_per_update"] == attrs["rollouts_per_update"]
        assert config["task"]["digits"] == 1
        tested = [row for row in read_log(folder / "log.jsonl") if "pass1" in row]
        assert [cost for cost, _ in attrs["curves"][0]] == [row["cost"]["5.28"] for row in tested]
        smooth = sum(row["pass1"] for row in tested[-3:]) / len(tested[-3:])
        assert attrs["curves"][0][-1][1] == pytest.approx(smooth)


def test_a_run_stopped_in_a_study_goes_on_to_the_same_curve(tmp_path):
    from llm.objective import cost_to_target, run_config

    point = {
        "batch_size": 16, "rollouts_per_update": 8, "buffer_size": 16, "learning_rate": 1e-3,
        "draw": "without", "loss": "grpo", "num_generations": 4,
    }  # fmt: skip

    class Watch:
        max_cost = 400.0

        def __init__(self, stop_after):
            self.curve, self.stop_after = [], stop_after

        def note(self, text):
            self.folder = Path(text)

        def __call__(self, cost, score):
            self.curve.append((cost, score))
            if len(self.curve) == self.stop_after:
                raise KeyboardInterrupt

    curves = []
    for name, stops in (("whole", ()), ("stopped", (2, 4))):
        for stop in (*stops, None):
            watch = Watch(stop)
            arguments = point, 0, watch, 5.28, json.dumps(TINY), str(tmp_path / name)
            if stop:
                with pytest.raises(KeyboardInterrupt):
                    cost_to_target(*arguments)
            else:
                cost_to_target(*arguments)
        curves.append(watch.curve)
    assert curves[0] == curves[1]
    config = run_config(point, 0, 400.0, 5.28, json.dumps(TINY), tmp_path)
    assert watch.folder.name == run_name(config)
    # As many updates as the compute allows, to the next test.
    assert (config.updates - 2) * (16 + 8 * 5.28) < 400 <= config.updates * (16 + 8 * 5.28)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--trials", "0"], "trials must be an integer >= 1, got 0"),
        (["--workers", "0"], "workers must be an integer >= 1, got 0"),
        (["--slack", "0.5"], "slack must be finite and >= 1, got 0.5"),
        (["--max-cost", "inf"], "max_cost must be finite and > 0, got inf"),
        (["--gen-train-ratio", "0"], "gen_train_ratio must be finite and > 0, got 0.0"),
        (["--name", "../up"], "name must be a plain folder name, got '../up'"),
        (["--option", "novalue"], "option must be NAME=VALUE, got 'novalue'"),
        (["--objective", "nowhere:f"], "objective = 'nowhere:f' is not a MODULE:FUNCTION here"),
        (["--objective", "llm.objective:SMOOTHING"], "is not a function"),
        (["--storage", "mysql://x"], "storage must be empty, sqlite:///FILE or postgresql"),
        (["--storage", "sqlite:////nowhere/x.db"], "cannot be opened"),
        (["--space.batch-size", "60"], "batch_size must be a multiple of num_generations = 8"),
        (["--space.batch-parts", "3"], "batch_parts must divide batch_size = 64"),
        (["--space.gpus", "1"], "gpus must be 0 or >= 2, got 1"),
        (["--space.learning-rate-up", "0.5"], "learning_rate_up must be in [1, 1000], got 0.5"),
    ],
)
def test_bad_input_is_one_line(module, tmp_path, capsys, flags, line):
    base = ["--objective", module, "--results", str(tmp_path)]
    assert main([*base, *flags]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert line in error


def test_workers_do_without_torch():
    code = "import sys, llm.study; sys.exit('torch' in sys.modules or 'jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_another_config_under_the_same_name_is_refused(config, tmp_path, capsys):
    run_study(dataclasses.replace(config, trials=1), progress=False)
    flags = ["--objective", config.objective, "--results", str(tmp_path), "--target", "0.9"]
    assert main(flags) == 2
    assert "holds another config (different: " in capsys.readouterr().err


def test_unknown_training_fields_are_refused(tmp_path):
    config = dataclasses.replace(
        real(tmp_path, 1), option=('train={"digits": 1}', f"results={tmp_path}")
    )
    study = run_study(config, progress=False)
    assert reasons(study) == ["ValueError: train has no field 'digits'"]
