"""Real training as the objective of a study: compute to a test accuracy.

`python -m llm.study` calls it by default. Every run is a folder of ``llm.train``, so a trial that
was killed goes on from its checkpoint when it is taken up again. The score is greedy test pass@1,
averaged over the last SMOOTHING tests so that one lucky test does not end a run.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from llm.many_runs import SMOOTHING
from llm.settings import TrainConfig, resolved, run_name
from llm.study_settings import Watch
from theory.cost import update_cost


def cost_to_target(
    point: dict[str, Any],
    seed: int,
    watch: Watch,
    gen_train_ratio: float,
    train: str = "{}",
    results: str = "results",
) -> None:
    """Train with GRPO and replay, reporting compute and pass@1 at every test.

    Args:
        point: fields of ``llm.study_space.Point``.
        seed: of the run.
        watch: called at every test.
        gen_train_ratio: mu, > 0.
        train: JSON object of ``TrainConfig`` fields that all runs share, task and tiny nested;
            passk_every is 0 and threads 1 unless it says otherwise.
        results: folder of runs and of the cache of policies.

    Raises:
        ValueError: if a field is unknown, or the run cannot be started, or breaks.
    """
    from llm.train import run_training

    config = run_config(point, seed, watch.max_cost, gen_train_ratio, train, Path(results))
    recent: list[float] = []

    def tested(row: dict[str, Any]) -> None:
        recent.append(row["pass1"])
        cost = row["rollouts_trained"] + gen_train_ratio * row["rollouts_generated"]
        watch(cost, float(np.mean(recent[-SMOOTHING:])))

    watch.note(str(config.results / run_name(config)))
    run_training(config, progress=False, tested=tested)


def run_config(
    point: dict[str, Any],
    seed: int,
    max_cost: float,
    gen_train_ratio: float,
    train: str,
    results: Path,
) -> TrainConfig:
    """Return the run of a point, as long as the compute lasts.

    Raises:
        ValueError: if ``train`` is no JSON object of known fields.
    """
    shared = with_fields(
        TrainConfig(passk_every=0, threads=1, no_tensorboard=True), json.loads(train), "train"
    )
    design = point["batch_size"], point["rollouts_per_update"]
    step = shared.eval_every
    updates = -int(-max_cost // (float(update_cost(*design, gen_train_ratio)) * step)) * step
    own = {**point, "seed": seed, "updates": max(step, updates), "results": results}
    return resolved(dataclasses.replace(shared, **own))


def with_fields(config: Any, fields: Any, name: str) -> Any:
    """Return a config with some fields replaced, those that are configs field by field.

    Raises:
        ValueError: if a field is unknown.
    """
    if not isinstance(fields, dict):
        raise ValueError(f"{name} must be a JSON object, got {fields!r}")
    known = {field.name for field in dataclasses.fields(config)}
    for field in fields:
        if field not in known:
            raise ValueError(f"{name} has no field {field!r}")
    values = {
        field: with_fields(getattr(config, field), value, field)
        if dataclasses.is_dataclass(getattr(config, field))
        else value
        for field, value in fields.items()
    }
    return dataclasses.replace(config, **values)
