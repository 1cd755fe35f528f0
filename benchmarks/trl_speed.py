"""Rollouts trained per second of on-policy GRPO here and with TRL's GRPOTrainer, and their curves.

Same schooled policy, same stream of problems, G, B, learning rate, clip, loss and threads, in one
process. Every seed trains both in turn from the same weights; seconds are those of whole training
loops, tests left out, log lines and checkpoint included. TRL gets the settings that suit it best
here: no reference model, no gradient checkpointing, no reports, one pass over every rollout.

    python benchmarks/trl_speed.py            prints ratio and curves
    python benchmarks/trl_speed.py --save     and saves them beside this file and in docs/llm.json
"""

import dataclasses
import json
import os
import platform
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
import transformers
import tyro
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from llm.compare_report import save_numbers
from llm.evaluate import greedy_pass1
from llm.generate import Sampling
from llm.generate.torch_backend import TorchGenerator
from llm.policy import Policy
from llm.run_folder import RunLog, read_log
from llm.settings import TrainConfig, build_task, check
from llm.train import built, train


@dataclass(frozen=True)
class Config:
    """Train on-policy here and with TRL."""

    train: TrainConfig = dataclasses.field(
        default_factory=lambda: TrainConfig(
            updates=200, eval_every=25, passk_every=0, no_tensorboard=True
        )
    )
    """Task, policy, G, B and learning rate of both."""
    seeds: int = 8
    """Seeds, each trained by both in turn, >= 2."""
    save: bool = False
    """Write the JSON beside this file."""


def ours(config: TrainConfig) -> tuple[list[float], float]:
    """Return pass@1 at every test and rollouts trained per second."""
    run = built(config)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with RunLog(folder, None, tensorboard=False) as log:
            start = time.perf_counter()
            train(run, folder, log, show_progress=False)
            took = time.perf_counter() - start
        rows = read_log(folder / "log.jsonl")
    # The test before the first update is not among the phases.
    start = time.perf_counter()
    tested(run.policy, config)
    took -= sum(row["seconds"]["evaluate"] for row in rows[1:]) + time.perf_counter() - start
    return [row["pass1"] for row in rows if "pass1" in row], rate(config, took)


def rate(config: TrainConfig, seconds: float) -> float:
    return config.updates * config.batch_size / seconds


def tested(policy: Policy, config: TrainConfig) -> float:
    task = build_task(config.task)
    generate = TorchGenerator(
        policy.model, policy.pad_token, policy.end_tokens, torch.Generator().manual_seed(0)
    )
    return greedy_pass1(generate, policy, task, Sampling(config.max_completion_length, 0.0))


class Tests(transformers.TrainerCallback):
    """Test the policy where ``llm.train`` does, and count the seconds."""

    def __init__(self, policy: Policy, config: TrainConfig):
        """Test it before the first update."""
        self.policy, self.config = policy, config
        self.pass1, self.seconds = [tested(policy, config)], 0.0

    def on_step_end(self, args, state, control, **_):
        """Test it every ``eval_every`` updates."""
        if state.global_step % self.config.eval_every:
            return
        start = time.perf_counter()
        self.pass1.append(tested(self.policy, self.config))
        self.seconds += time.perf_counter() - start


def with_trl(config: TrainConfig) -> tuple[list[float], float]:
    """Return the same of TRL's GRPOTrainer."""
    task, policy = build_task(config.task), built(config).policy
    groups = config.updates * config.batch_size // config.num_generations
    problems = [task.train_problem(config.seed, index) for index in range(groups)]
    data = Dataset.from_list(
        [{"prompt": problem.prompt, "place": n} for n, problem in enumerate(problems)]
    )

    def right(completions: list[str], place: list[int], **_) -> list[float]:
        return [task.verify(problems[n], text) for n, text in zip(place, completions, strict=True)]

    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=policy.model,
            processing_class=policy.tokenizer,
            reward_funcs=right,
            train_dataset=data,
            args=GRPOConfig(
                output_dir=folder,
                per_device_train_batch_size=config.batch_size,
                num_generations=config.num_generations,
                max_completion_length=config.max_completion_length,
                temperature=config.temperature,
                learning_rate=config.learning_rate,
                lr_scheduler_type="constant",
                weight_decay=config.weight_decay,
                max_grad_norm=config.max_grad_norm,
                max_steps=config.updates,
                loss_type="grpo",
                scale_rewards="group",
                beta=0.0,
                epsilon=config.clip_low,
                num_iterations=1,
                shuffle_dataset=False,
                gradient_checkpointing=False,
                bf16=False,
                use_cpu=True,
                seed=config.seed,
                report_to=[],
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
            ),
        )
        tests = Tests(policy, config)
        trainer.add_callback(tests)
        start = time.perf_counter()
        trainer.train()
        took = time.perf_counter() - start - tests.seconds
    return tests.pass1, rate(config, took)


def main(config: Config) -> None:
    """Train both at every seed and compare."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    check(config.train)
    if config.train.updates % config.train.eval_every:
        raise SystemExit("updates must be a multiple of eval_every")
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    curves: dict[str, list[list[float]]] = {"ours": [], "trl": []}
    rates: dict[str, list[float]] = {"ours": [], "trl": []}
    for seed in range(config.seeds):
        one = dataclasses.replace(config.train, seed=seed)
        for name, run in (("ours", ours), ("trl", with_trl)):
            curve, speed = run(one)
            curves[name].append(curve)
            rates[name].append(speed)
            print(f"seed {seed} {name:4s} {speed:7.1f} rollouts/s, pass@1", *curve, flush=True)
    ratio = np.array(rates["ours"]) / np.array(rates["trl"])
    means = {name: np.mean(some, axis=0) for name, some in curves.items()}
    errors = {
        name: np.std(some, axis=0, ddof=1) / len(some) ** 0.5 for name, some in curves.items()
    }
    gap = means["ours"] - means["trl"]
    error = np.hypot(errors["ours"], errors["trl"])
    print(f"ratio {np.median(ratio):.2f} [{ratio.min():.2f}, {ratio.max():.2f}]")
    for n, (difference, sigma) in enumerate(zip(gap, error, strict=True)):
        print(
            f"update {n * config.train.eval_every:4d}: {means['ours'][n]:.3f} here, "
            f"{means['trl'][n]:.3f} TRL, difference {difference:+.3f} +- {sigma:.3f}"
        )
    if config.save:
        record = {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "transformers", "trl")},
            "updates": config.train.updates,
            "eval_every": config.train.eval_every,
            "ratio": {
                "median": float(np.median(ratio)),
                "low": float(ratio.min()),
                "high": float(ratio.max()),
            },
            "rollouts_per_second": rates,
            "pass1": curves,
        }
        Path(__file__).with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n")
        docs = Path(__file__).parents[1] / "docs"
        save_numbers(docs, {"trl_speed_ratio": round(float(np.median(ratio)), 3)})


if __name__ == "__main__":
    main(tyro.cli(Config))
