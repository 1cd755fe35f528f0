"""Optuna studies of replay designs: what is the cheapest way to a target, by trying?

`python -m llm.study` searches batch, replay ratio, staleness horizon, step size, draw and loss
around the theory's prediction; the prediction, on-policy training and the paper's setting are tried
first. The objective is a function named by --objective: real training
(``llm.objective:cost_to_target``) or the simulator (``sim.objective:cost_to_target``). It reports
compute and score as it goes; a trial ends when every seed has reached the target, or as pruned or
failed with a reason when it cannot win, collapses, or breaks. Killed at any moment, a study goes on
when the same command is given again, and --trials counts all trials ever made.
"""

import json
import math
import multiprocessing
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.trial import Trial, TrialState

from llm.study_settings import (
    StudyConfig,
    check,
    resolved_objective,
    study_folder,
    study_record,
)
from llm.study_space import Space, built_space, with_same_together
from llm.study_storage import Presence, opened_storage, taken
from llm.study_trial import Failed, Pruned, first_line, run_trial
from theory.command import run_command
from theory.provenance import commit
from theory.run_folder import check_same, replace_text

# A study whose first trials all fail is not going to find anything.
FAILURES = 5
METRICS = {"cost": ["compute to target"], "pareto": ["compute", "best score"]}


def sampler_of(config: StudyConfig, seed: int) -> optuna.samplers.BaseSampler:
    """Return the sampler; workers differ in seed, or they would all propose the same."""
    if config.sampler == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    return optuna.samplers.TPESampler(seed=seed, multivariate=True)


def pruner_of(config: StudyConfig) -> optuna.pruners.BasePruner:
    """Return the pruner."""
    if config.pruner == "none" or config.goal == "pareto":
        return optuna.pruners.NopPruner()
    return optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=1)


def loaded(config: StudyConfig, storage: Any, seed: int = 0) -> optuna.Study:
    """Return the study, made if it is not there; call it with the study's lock held."""
    directions: list[Any] = ["minimize"] if config.goal == "cost" else ["minimize", "maximize"]
    return optuna.create_study(
        study_name=config.name,
        storage=storage,
        directions=directions,
        sampler=sampler_of(config, seed),
        pruner=pruner_of(config),
        load_if_exists=True,
    )


def prepared(config: StudyConfig, space: Space, first: dict[str, dict[str, Any]]) -> None:
    """Make the study, and put as many trials in its queue as are asked for.

    Raises:
        ValueError: if there is one of this name with another config.
    """
    folder = study_folder(config)
    folder.mkdir(parents=True, exist_ok=True)
    storage, lock = opened_storage(config.storage, folder, config.name)
    record = study_record(config)
    with lock():
        if (folder / "config.json").exists():
            check_same(folder / "config.json", record)
        study = loaded(config, storage)
        if "config" not in study.user_attrs:
            study.set_user_attr("config", record)
            ranges = {"replay_ratio": space.replay_ratio, "horizon": space.staleness_horizon}
            study.set_user_attr("largest", ranges)
            with warnings.catch_warnings(action="ignore", category=ExperimentalWarning):
                study.set_metric_names(METRICS[config.goal])
        elif study.user_attrs["config"] != record:
            raise ValueError(
                f"study {config.name!r} exists in this storage with another config; give another "
                "--name"
            )
        if not (folder / "config.json").exists():
            replace_text(folder / "config.json", json.dumps(record, indent=2) + "\n")
        known = len(study.get_trials(deepcopy=False))
        guesses = [] if config.no_first_guesses else with_same_together(first)
        for number in range(known, config.trials):
            if number < len(guesses):
                label, parameters = guesses[number]
                study.enqueue_trial(parameters, user_attrs={"label": label})
            else:
                study.enqueue_trial({})


def work(config: StudyConfig, space: Space, number: int) -> None:
    """Run trials until none are left."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    objective = resolved_objective(config.objective)
    folder = study_folder(config)
    storage, lock = opened_storage(config.storage, folder, config.name)
    with lock():
        study = loaded(config, storage, config.sampler_seed + 1000 * number)

    def best() -> float:
        if config.goal == "pareto":
            return math.inf
        finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        return min((trial.value for trial in finished if trial.value is not None), default=math.inf)

    with Presence(folder / "workers") as presence:
        while True:
            stop_if_all_fail(study)
            with lock():
                trial = taken(study, presence)
            if trial is None:
                return
            with presence.beating(trial):
                point = space.suggested(trial)
                for name, value in {
                    **point.record(),
                    "commit": commit(Path(__file__).parent),
                }.items():
                    trial.set_user_attr(name, value)
                run = partial(run_trial, trial, config, point, objective, best)
                end_trial(study, trial, run, None if config.no_artifacts else folder)


def stop_if_all_fail(study: optuna.Study) -> None:
    """Raise ValueError if some trials have failed and none has done anything else."""
    finished = [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
    if len(finished) >= FAILURES and all(one.state is TrialState.FAIL for one in finished):
        raise ValueError(
            f"all of {len(finished)} trials failed, the last because: "
            f"{finished[-1].user_attrs.get('reason', 'unknown')}"
        )


def end_trial(
    study: optuna.Study, trial: Trial, run: Callable[[], list[float]], folder: Path | None
) -> None:
    """Run a trial and record how it ended, with its curves as picture and data.

    An error that nobody foresaw fails the trial and goes on.
    """
    values, state = None, TrialState.FAIL
    try:
        values, state = run(), TrialState.COMPLETE
    except Pruned as end:
        state = TrialState.PRUNED
        trial.set_user_attr("reason", str(end))
    except Failed as end:
        trial.set_user_attr("reason", str(end))
    except BaseException as error:
        trial.set_user_attr("reason", f"{type(error).__name__}: {first_line(error)}")
        study.tell(trial, state=TrialState.FAIL)
        raise
    if folder is not None:
        attach(trial, folder)
    try:
        study.tell(trial, values, state)
    except ValueError:
        # Taken for lost, and ended by another worker meanwhile.
        if not study.trials[trial.number].state.is_finished():
            raise


def attach(trial: Trial, folder: Path) -> None:
    """Put the trial's curves into the artifact store."""
    from optuna.artifacts import FileSystemArtifactStore, upload_artifact

    from llm.figure import draw_curves

    (folder / "artifacts").mkdir(exist_ok=True)
    store = FileSystemArtifactStore(folder / "artifacts")
    curves = trial.user_attrs["curves"]
    with tempfile.TemporaryDirectory() as name:
        data, picture = Path(name) / "curves.json", Path(name) / "curves.png"
        data.write_text(json.dumps(curves))
        draw_curves(curves, picture)
        for path, kind in ((data, "application/json"), (picture, "image/png")):
            upload_artifact(
                artifact_store=store, file_path=str(path), study_or_trial=trial, mimetype=kind
            )


def run_study(config: StudyConfig, progress: bool = True) -> optuna.Study:
    """Make or resume a study, run its trials, and return it."""
    check(config)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space, first = built_space(config.space, config.gen_train_ratio, config.noise_to_batch)
    prepared(config, space, first)
    if config.workers == 1 and not progress:
        work(config, space, 0)
    else:
        run_workers(config, space, progress)
    storage, _ = opened_storage(config.storage, study_folder(config), config.name)
    return optuna.load_study(study_name=config.name, storage=storage)


def run_workers(config: StudyConfig, space: Space, progress: bool) -> None:
    """Run the workers, replace those that are killed, and show how far the study is."""
    from tqdm import tqdm

    context = multiprocessing.get_context("spawn")
    number = config.workers

    def started(place: int) -> Any:
        process = context.Process(target=work, args=(config, space, place), daemon=True)
        process.start()
        return process

    storage, _ = opened_storage(config.storage, study_folder(config), config.name)
    study = optuna.load_study(study_name=config.name, storage=storage)
    running = [started(place) for place in range(config.workers)]
    bar = tqdm(total=config.trials, unit="trial", desc=config.name, disable=not progress)
    try:
        with bar:
            while running:
                time.sleep(0.2)
                for process in [one for one in running if one.exitcode is not None]:
                    running.remove(process)
                    if process.exitcode is not None and process.exitcode < 0:
                        running.append(started(number))
                        number += 1
                    elif process.exitcode:
                        raise ValueError("a worker ended with an error, which stands above")
                show(bar, study)
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.join()


def show(bar: Any, study: optuna.Study) -> None:
    """Bring the progress bar up to date."""
    trials = study.get_trials(deepcopy=False)
    done = [trial for trial in trials if trial.state.is_finished()]
    bar.n = len(done)
    values = [trial.values[0] for trial in done if trial.state is TrialState.COMPLETE]
    bar.set_postfix({"best": f"{min(values):.4g}"} if values else {}, refresh=True)


def summary(study: optuna.Study) -> str:
    """Return what a study found, as text."""
    trials = study.get_trials(deepcopy=False)
    counts = {
        state.name.lower(): sum(trial.state is state for trial in trials)
        for state in TrialState
        if any(trial.state is state for trial in trials)
    }
    lines = [", ".join(f"{count} {name}" for name, count in counts.items())]
    for trial in best_trials(study):
        label = f" ({trial.user_attrs['label']})" if "label" in trial.user_attrs else ""
        values = ", ".join(f"{value:.6g}" for value in trial.values)
        design = ", ".join(
            f"{short} = {trial.user_attrs[name]:g}"
            for short, name in (
                ("B", "batch_size"),
                ("R", "rollouts_per_update"),
                ("N", "buffer_size"),
                ("lr", "learning_rate"),
            )
        )
        lines.append(f"best: trial {trial.number}{label}: {values} at {design}")
    return "\n".join(lines)


def best_trials(study: optuna.Study) -> Iterable[optuna.trial.FrozenTrial]:
    """Return the best trial, or the Pareto front; none if none has finished."""
    if study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
        return study.best_trials
    return []


def main_command(config: StudyConfig) -> None:
    """Run or resume a study and print what it found."""
    study = run_study(config)
    print(summary(study))
    folder = study_folder(config)
    where = config.storage or folder / "journal.log"
    print(f"optuna-dashboard {where} --artifact-dir {folder / 'artifacts'}")


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    return run_command((StudyConfig, main_command), argv, "python -m llm.study")


if __name__ == "__main__":
    sys.exit(main())
