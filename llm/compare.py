"""On-policy GRPO, smaller on-policy batches and replay, at many seeds: the source paper in kind.

`python -m llm.compare` tunes the learning rate of on-policy training at the reference batch and at
a quarter of it on seeds of their own, trains every setting at every seed with a budget that costs
the same at one cost ratio, and writes the comparison with its picture. Every run is a folder of
``llm.train``; what is finished is not done again, and what was interrupted goes on.
"""

import dataclasses
import hashlib
import json
import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from llm.compare_report import LAST, Curves, curves_of, write_report
from llm.run_folder import read_log
from llm.settings import TrainConfig, build_task, check, config_record, resolved
from theory.command import run_command
from theory.cost import update_cost

TUNING_SEED = 1000
REFERENCE, QUARTER = "on-policy", "on-policy, quarter batch"


@dataclass(frozen=True)
class Setting:
    """One way to train: B, R and N in rollouts, and what differs besides."""

    name: str
    batch_size: int
    rollouts_per_update: int
    buffer_size: int
    positive_share: float = 0.0
    asymre: bool = False

    @property
    def replay(self) -> bool:
        """Whether rollouts are used more than once or later than they were made."""
        return self.rollouts_per_update != self.batch_size


@dataclass(frozen=True)
class CompareConfig:
    """Compare on-policy training with replay at equal compute, over many seeds."""

    train: TrainConfig = field(default_factory=lambda: TrainConfig(updates=800))
    """Everything the settings share; its batch_size is the reference batch, its updates the
    budget of on-policy training at that batch."""
    seeds: int = 8
    """Seeds of every setting, >= 2; half of them choose, half price, both ways round."""
    learning_rates: tuple[float, ...] = (7.5e-6, 1.5e-5, 3e-5, 6e-5)
    """AdamW step sizes tried on-policy, at the reference batch and at a quarter of it."""
    tuning_seeds: int = 2
    """Seeds of each step size; they are not those of the comparison."""
    equal_cost_ratio: float = 5.28
    """cost_gen / cost_train at which every setting gets the same compute."""
    workers: int = 2
    """Runs at a time, one thread each."""
    results: Path = Path("results")
    """Folder of the runs and of the cache of policies."""
    docs: Path = Path("docs")
    """Where llm.md, llm.json and llm.png go."""
    smoke: bool = False
    """Seconds instead of hours: few updates of a smaller policy; shows that it runs, no more."""


def settings_of(config: CompareConfig) -> list[Setting]:
    """Return what is compared: on-policy at two batches, then replay."""
    batch, group = config.train.batch_size, config.train.num_generations
    if batch % (4 * group):
        raise ValueError(f"batch_size must be a multiple of 4 num_generations, got {batch}")
    half, quarter = batch // 2, batch // 4
    return [
        Setting(REFERENCE, batch, batch, batch),
        Setting(QUARTER, quarter, quarter, quarter),
        Setting("y=2 N=B", batch, half, batch),
        Setting("y=4 N=B", batch, quarter, batch),
        Setting("y=2 N=4B", batch, half, 4 * batch),
        Setting("y=4 N=4B", batch, quarter, 4 * batch),
        Setting("y=4 N=4B, positive bias", batch, quarter, 4 * batch, positive_share=0.5),
        Setting("y=4 N=4B, AsymRE", batch, quarter, 4 * batch, asymre=True),
    ]


def run_config(
    config: CompareConfig, setting: Setting, learning_rate: float, seed: int
) -> TrainConfig:
    """Return the run of a setting, with as many updates as the budget buys."""
    train, mu = config.train, config.equal_cost_ratio
    budget = train.updates * update_cost(train.batch_size, train.batch_size, mu)
    updates = budget / update_cost(setting.batch_size, setting.rollouts_per_update, mu)
    rounded = max(1, round(float(updates) / train.eval_every)) * train.eval_every
    loss = {"loss": "asymre", "scale_rewards": "none"} if setting.asymre else {}
    chosen = dataclasses.replace(
        train,
        batch_size=setting.batch_size,
        rollouts_per_update=setting.rollouts_per_update,
        buffer_size=setting.buffer_size,
        positive_share=setting.positive_share,
        learning_rate=learning_rate,
        updates=rounded,
        seed=seed,
        threads=1,
        no_tensorboard=True,
        results=config.results,
        **loss,
    )
    label = "".join(c if c.isalnum() else "-" for c in setting.name)
    digest = short_hash({**config_record(chosen), "updates": rounded})
    return dataclasses.replace(chosen, id=f"{label}-lr{learning_rate:g}-s{seed}-{digest}")


def short_hash(record: dict) -> str:
    """Return a short hash of plain data."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:8]


def finished(config: TrainConfig) -> bool:
    """Whether a run has ended with all its updates."""
    summary = config.results / config.id / "summary.json"
    return summary.exists() and json.loads(summary.read_text())["updates"] >= config.updates


def run_one(config: TrainConfig) -> None:
    """Run or resume one training in a worker process, in silence."""
    import transformers

    from llm.train import run_training

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    run_training(config, progress=False)


def run_all(configs: Sequence[TrainConfig], workers: int, what: str) -> None:
    """Run what is not finished, some at a time; the first failure stops the rest.

    One at a time runs in this process.
    """
    from tqdm import tqdm

    todo = [config for config in configs if not finished(config)]
    progress = tqdm(total=len(configs), initial=len(configs) - len(todo), unit="run", desc=what)
    if workers == 1:
        with progress:
            for config in todo:
                run_one(config)
                progress.update()
        return
    context = multiprocessing.get_context("spawn")
    with progress, ProcessPoolExecutor(workers, mp_context=context) as pool:
        running = [pool.submit(run_one, config) for config in todo]
        try:
            for ended in as_completed(running):
                ended.result()
                progress.update()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def rows_of(config: TrainConfig) -> list[dict]:
    """Return the log of a finished run."""
    return read_log(config.results / config.id / "log.jsonl")


def tuned(config: CompareConfig, setting: Setting) -> tuple[float, dict[float, float]]:
    """Return the step size with the best final pass@1 on the tuning seeds, and all of theirs."""
    seeds = range(TUNING_SEED, TUNING_SEED + config.tuning_seeds)
    runs = {
        rate: [run_config(config, setting, rate, seed) for seed in seeds]
        for rate in config.learning_rates
    }
    run_all([run for group in runs.values() for run in group], config.workers, "learning rates")
    final = {
        rate: float(np.mean(curves_of([rows_of(run) for run in group]).pass1[:, -LAST:]))
        for rate, group in runs.items()
    }
    return max(final, key=lambda rate: final[rate]), final


def compared(config: CompareConfig) -> None:
    """Run everything and write the report."""
    settings = settings_of(config)
    prepare_policy(config.train, config.results)
    rates: dict[str, float] = {}
    tuning: dict[str, dict[float, float]] = {}
    for setting in settings[:2]:
        rates[setting.name], tuning[setting.name] = tuned(config, setting)
    runs = {
        setting: [
            run_config(config, setting, rates.get(setting.name, rates[REFERENCE]), seed)
            for seed in range(config.seeds)
        ]
        for setting in settings
    }
    run_all([run for group in runs.values() for run in group], config.workers, "comparison")
    found: dict[str, Curves] = {
        setting.name: curves_of([rows_of(run) for run in group]) for setting, group in runs.items()
    }
    replay = [setting.name for setting in settings if setting.replay]
    write_report(config.docs, config.train, found, replay, tuning, config.equal_cost_ratio)


def prepare_policy(train: TrainConfig, results: Path) -> None:
    """School the tiny policy once, before many processes ask for it."""
    import torch

    from llm.warm_start import tiny_folder

    if train.model != "tiny":
        return
    torch.set_num_threads(1)
    record = dataclasses.asdict(train.task)
    length = train.max_completion_length
    tiny_folder(build_task(train.task), record, train.tiny, length, results / "policies")


SMOKE = {
    "batch_size": 16,
    "num_generations": 4,
    "updates": 2,
    "eval_every": 1,
    "passk_every": 1,
    "passk_samples": 8,
    "passk_problems": 5,
    "max_completion_length": 3,
}


def checked(config: CompareConfig) -> CompareConfig:
    """Return the config with presets resolved; ValueError for what cannot be compared."""
    train = resolved(config.train)
    if config.smoke:
        task = dataclasses.replace(train.task, digits=1, test_size=10)
        tiny = dataclasses.replace(
            train.tiny, layers=1, width=16, heads=2, warm_low=0.0, warm_high=1.0
        )
        train = dataclasses.replace(train, task=task, tiny=tiny, **SMOKE)
        config = dataclasses.replace(
            config, seeds=2, tuning_seeds=1, learning_rates=config.learning_rates[:2]
        )
    if 8 not in train.passk or not train.passk_every:
        raise ValueError(f"passk must hold 8 and passk_every be > 0, got {train.passk}")
    if config.equal_cost_ratio not in train.gen_train_ratios:
        raise ValueError(
            f"equal_cost_ratio = {config.equal_cost_ratio} must be one of gen_train_ratios = "
            f"{train.gen_train_ratios}"
        )
    if config.seeds < 2 or config.tuning_seeds < 1 or config.workers < 1:
        raise ValueError(
            f"seeds must be >= 2, tuning_seeds and workers >= 1, got {config.seeds}, "
            f"{config.tuning_seeds} and {config.workers}"
        )
    if not config.learning_rates:
        raise ValueError("learning_rates must hold at least one step size, got none")
    config = dataclasses.replace(config, train=train)
    for setting in settings_of(config):
        check(run_config(config, setting, max(config.learning_rates), 0))
        check(run_config(config, setting, min(config.learning_rates), 0))
    if not config.docs.is_dir():
        raise ValueError(f"docs = {config.docs} is not a folder")
    return config


def main_command(config: CompareConfig) -> None:
    """Compare and print where the report is."""
    config = checked(config)
    compared(config)
    print((config.docs / "llm.json").read_text(), end="")
    print(f"report: {config.docs / 'llm.md'}")


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    return run_command((CompareConfig, main_command), argv, "python -m llm.compare")


if __name__ == "__main__":
    sys.exit(main())
