"""On-policy GRPO, smaller on-policy batches and replay, at many seeds: the source paper in kind.

`python -m llm.compare` tunes the learning rate of on-policy training at the reference batch and at
a quarter of it on seeds of their own, trains every setting at every seed with a budget that costs
the same at one cost ratio, and writes the comparison with its picture. Every run is a folder of
``llm.train``; what was interrupted goes on. What the comparison needs of a finished run is a line
of ``llm_runs.jsonl`` beside the report, and such a run is not done again, its folder there or not.
"""

import dataclasses
import functools
import json
import os
import sys
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np

from llm.compare_report import LAST, Curves, curves_of, run_summary, write_report
from llm.many_runs import prepare_policy, quietly, run_all, short_hash
from llm.run_folder import read_log
from llm.settings import TrainConfig, check, config_record, resolved
from theory.command import run_command
from theory.cost import update_cost
from theory.run_folder import replace_text

Key = TypeVar("Key", bound=Hashable)
TUNING_SEED = 1000
RECORD = "llm_runs.jsonl"
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
    """Where llm.md, llm.json, llm.png and the record of the runs go."""
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


def recorded_runs(docs: Path) -> dict[str, dict]:
    """Return the summary of every finished run, by its id."""
    path = docs / RECORD
    return {row["id"]: row for row in read_log(path)} if path.exists() else {}


def mend_record(docs: Path) -> None:
    """Cut off a line that was torn, that the next one does not continue it."""
    path = docs / RECORD
    text = path.read_text() if path.exists() else ""
    if text and not text.endswith("\n"):
        replace_text(path, text[: text.rfind("\n") + 1])


def run_and_record(docs: Path, config: TrainConfig) -> None:
    """Run or resume a training, and add its summary to the record."""
    quietly(config)
    rows = read_log(config.results / config.id / "log.jsonl")
    line = json.dumps({"id": config.id, **run_summary(rows)}) + "\n"
    # One write a run, at the end of the file, whoever else writes.
    file = os.open(docs / RECORD, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def curves_by_group(
    config: CompareConfig, groups: Mapping[Key, Sequence[TrainConfig]], what: str
) -> dict[Key, Curves]:
    """Run what is not on record, and return the curves of each group of seeds."""
    every = [run for group in groups.values() for run in group]
    known = recorded_runs(config.docs)
    run = functools.partial(run_and_record, config.docs)
    run_all(every, lambda one: one.id in known, run, config.workers, what)
    known = recorded_runs(config.docs)
    return {key: curves_of([known[run.id] for run in group]) for key, group in groups.items()}


def tuned(config: CompareConfig, setting: Setting) -> tuple[float, dict[float, float]]:
    """Return the step size with the best final pass@1 on the tuning seeds, and all of theirs."""
    seeds = range(TUNING_SEED, TUNING_SEED + config.tuning_seeds)
    runs = {
        rate: [run_config(config, setting, rate, seed) for seed in seeds]
        for rate in config.learning_rates
    }
    found = curves_by_group(config, runs, "learning rates")
    final = {rate: float(np.mean(curves.pass1[:, -LAST:])) for rate, curves in found.items()}
    return max(final, key=lambda rate: final[rate]), final


def compared(config: CompareConfig) -> None:
    """Run everything and write the report."""
    settings = settings_of(config)
    mend_record(config.docs)
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
    curves = curves_by_group(config, runs, "comparison")
    found = {setting.name: one for setting, one in curves.items()}
    replay = [setting.name for setting in settings if setting.replay]
    write_report(config.docs, config.train, found, replay, tuning, config.equal_cost_ratio)


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
