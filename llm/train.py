"""GRPO with a replay buffer, synchronous: the loop of P1, top to bottom in this file.

Every update: R new rollouts from the current policy go into a buffer that keeps the newest N, with
the log-probabilities and advantages they were generated with; B rollouts are drawn; one forward and
one backward pass over them gives ratio, loss and gradient; one optimizer step. With R = N = B this
is on-policy GRPO. Formulas: P1 (arXiv 2604.08706) for what it costs.

A run is a folder ``<results>/<id>/``: config.json, log.jsonl (one line an update), tensorboard/,
checkpoint.pt, figure.png, summary.json. Killed at any moment, it goes on from the checkpoint when
the same command is given again, on a CPU bit for bit.
"""

import dataclasses
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from llm import loss as losses
from llm.buffer import ReplayBuffer, Rollout, Use
from llm.evaluate import pass_at_k, rewards_of, sampled_rewards
from llm.figure import draw_run
from llm.generate import Sampling
from llm.generate.self_test import mismatch
from llm.generate.torch_backend import TorchGenerator
from llm.loss import TokenBatch, token_weights
from llm.measures import by_age, counts, group_advantages, zero_variance_share
from llm.optimizer import MasterAdamW
from llm.policy import Policy, chosen_device, load_policy
from llm.run_folder import (
    RunLog,
    load_checkpoint,
    opened,
    read_log,
    save_checkpoint,
)
from llm.scoring import packed, response_log_probs, rollout_batches
from llm.settings import (
    TrainConfig,
    build_task,
    check,
    config_record,
    resolved,
    run_name,
)
from llm.tasks import Problem, Task
from llm.warm_start import tiny_folder
from theory.command import run_command
from theory.run_folder import replace_text

FINAL_EVALUATIONS = 5
SELF_TEST_PROMPTS = 8


@dataclass
class Totals:
    """What a run has done so far; all of it is in the checkpoint."""

    updates: int = 0
    task_position: int = 0
    rollouts_generated: int = 0
    rollouts_trained: int = 0
    generate_seconds: float = 0.0
    reward_seconds: float = 0.0
    train_seconds: float = 0.0


@dataclass
class Run:
    """Everything the loop works on."""

    config: TrainConfig
    task: Task
    policy: Policy
    generate: TorchGenerator
    evaluate: TorchGenerator
    optimizer: MasterAdamW
    buffer: ReplayBuffer
    rng: np.random.Generator
    totals: Totals = field(default_factory=Totals)


class Fresh(NamedTuple):
    """What generation brought: rewards (P, G), mean entropy in nats, counts of evicted by uses."""

    rewards: np.ndarray
    entropy: float
    truncated_share: float
    mean_length: float
    evicted: Counter[int]


class Step(NamedTuple):
    """What an update saw: loss, gradient norm, and per rollout log ratios and cut tokens (T_i,)."""

    loss: float
    gradient_norm: float
    log_ratios: list[np.ndarray]
    cut: list[np.ndarray]
    padding_share: float


Tested = Callable[[dict[str, Any]], None]


def train(
    run: Run, folder: Path, log: RunLog, show_progress: bool = True, tested: Tested | None = None
) -> None:
    """Train to ``config.updates``, logging every update and saving checkpoints.

    Args:
        run: everything the loop works on.
        folder: of the run.
        log: open log of the run.
        show_progress: show a bar.
        tested: called with each line of the log that holds pass@1, those of an earlier process
            too; what it raises ends the run.
    """
    from tqdm import tqdm

    config, totals = run.config, run.totals
    if not (folder / "checkpoint.pt").exists():
        log.write({**record_of(run), **evaluated(run), "self_test": self_test(run)})
        checkpoint(run, folder, log)
    if tested is not None:
        for row in read_log(log.path):
            if "pass1" in row:
                tested(row)
    progress = tqdm(
        total=config.updates,
        initial=totals.updates,
        unit="update",
        desc=folder.name,
        disable=not show_progress,
    )
    with progress:
        while totals.updates < config.updates:
            seconds: dict[str, float] = {}
            fresh = [add_rollouts(run, seconds)]
            while not filled(run):
                fresh.append(add_rollouts(run, seconds))
            with phase(seconds, "train"):
                uses = run.buffer.sample(run.rng, config.batch_size, totals.updates)
                step = updated(run, uses, folder)
            totals.updates += 1
            totals.rollouts_trained += len(uses)
            totals.generate_seconds += seconds["generate"]
            totals.reward_seconds += seconds["reward"]
            totals.train_seconds += seconds["train"]
            with phase(seconds, "evaluate"):
                scores = evaluated(run) if evaluation_due(run) else {}
            row = {**record_of(run), **measured(run, fresh, uses, step), **scores}
            log.write({**row, "seconds": seconds})
            if totals.updates % config.checkpoint_every == 0 or totals.updates == config.updates:
                checkpoint(run, folder, log)
            show(progress, fresh, scores)
            if tested is not None and scores:
                tested(row)


@contextmanager
def phase(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Add the time that what happens inside takes; a GPU is waited for."""
    start = time.perf_counter()
    yield
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start


def add_rollouts(run: Run, seconds: dict[str, float]) -> Fresh:
    """Generate R rollouts with the current policy, judge them, and store them."""
    config, totals = run.config, run.totals
    groups = config.rollouts_per_update // config.num_generations
    first = totals.task_position
    problems = [run.task.train_problem(config.seed, first + i) for i in range(groups)]
    prompts = encoded(run, problems)
    run.generate.policy_version = totals.updates
    with phase(seconds, "generate"):
        found = run.generate(prompts, config.num_generations, training_sampling(config))
    with phase(seconds, "reward"):
        rewards = rewards_of(run.task, problems, run.policy.decoded(found.tokens))
    advantages = group_advantages(rewards, config.scale_rewards == "group").ravel()
    evicted = run.buffer.add(
        [
            Rollout(
                prompt=prompts[i // config.num_generations],
                tokens=tokens,
                log_probs=found.log_probs[i],
                reward=float(rewards.flat[i]),
                advantage=float(advantages[i]),
                policy_version=found.policy_version,
            )
            for i, tokens in enumerate(found.tokens)
        ]
    )
    totals.task_position += groups
    totals.rollouts_generated += len(found.tokens)
    return Fresh(
        rewards=rewards,
        entropy=float(np.concatenate(found.entropies).mean()),
        truncated_share=float(1 - found.ended.mean()),
        mean_length=float(np.mean([len(tokens) for tokens in found.tokens])),
        evicted=evicted,
    )


def filled(run: Run) -> bool:
    """Whether training may begin, or go on.

    Raises:
        ValueError: if the byte bound leaves no room for a batch.
    """
    config, generated = run.config, run.totals.rollouts_generated
    wanted = config.buffer_size if config.start == "full" else config.batch_size
    if generated < wanted:
        return False
    if config.draw != "with" and len(run.buffer) < config.batch_size:
        raise ValueError(
            f"max_buffer_bytes = {config.max_buffer_bytes} holds only {len(run.buffer)} rollouts, "
            f"a batch needs {config.batch_size}"
        )
    return True


def updated(run: Run, uses: list[Use], folder: Path) -> Step:
    """Take one optimizer step on a batch of rollouts, in micro-batches of similar length.

    Raises:
        ValueError: if loss or gradient is not finite; the weights are then as they were.
    """
    config, device = run.config, run.policy.model.device
    rollouts = [use.rollout for use in uses]
    prompts, responses = [r.prompt for r in rollouts], [r.tokens for r in rollouts]
    tokens = sum(len(response) for response in responses)
    objective = loss_function(config)
    log_ratios: list[Any] = [None] * len(rollouts)
    cut: list[Any] = [None] * len(rollouts)
    total, cells, filled = 0.0, 0, 0
    run.optimizer.zero_grad()
    for members in rollout_batches(prompts, responses, config.micro_batch_tokens):
        part = [rollouts[i] for i in members]
        batch = packed(
            [r.prompt for r in part], [r.tokens for r in part], run.policy.pad_token, device
        )
        log_probs = response_log_probs(run.policy.model, batch, config.temperature)
        value, metrics = objective(
            TokenBatch(
                log_probs=log_probs,
                old_log_probs=stored_log_probs(part, batch.mask),
                advantages=torch.tensor([r.advantage for r in part], device=device).float(),
                weights=token_weights(batch.mask, config.token_weighting, len(rollouts), tokens),
            )
        )
        value.backward()
        total += value.item()
        cells += batch.ids.numel()
        filled += batch.filled
        logs, cuts = metrics.log_ratio.cpu().numpy(), metrics.cut.cpu().numpy()
        for row, i in enumerate(members):
            log_ratios[i] = logs[row, : len(rollouts[i].tokens)]
            cut[i] = cuts[row, : len(rollouts[i].tokens)]
    norm = run.optimizer.clipped_norm(config.max_grad_norm)
    if not (np.isfinite(total) and np.isfinite(norm)):
        raise ValueError(
            f"update {run.totals.updates + 1}: loss {total:g}, gradient norm {norm:g}: stopped; "
            f"the last good checkpoint is {folder / 'checkpoint.pt'}"
        )
    run.optimizer.step()
    return Step(total, norm, log_ratios, cut, 1 - filled / cells)


def stored_log_probs(rollouts: list[Rollout], mask: torch.Tensor) -> torch.Tensor:
    """Return the log-probabilities stored at generation, (B, T), 0 behind a response's end."""
    stored = np.zeros(mask.shape, dtype=np.float32)
    for row, rollout in enumerate(rollouts):
        stored[row, : len(rollout.log_probs)] = rollout.log_probs
    return torch.from_numpy(stored).to(mask.device)


def loss_function(config: TrainConfig) -> losses.Loss:
    """Return the loss of a config."""
    level = config.importance_sampling_level
    clipped = partial(
        losses.grpo, clip_low=config.clip_low, clip_high=config.clip_high, level=level
    )
    return {
        "grpo": clipped,
        "dual_clip": partial(clipped, dual_clip=config.dual_clip),
        "reinforce": losses.reinforce,
        "asymre": partial(losses.asymre, offset=config.asymre_offset),
        "cispo": partial(losses.cispo, ratio_cap=config.ratio_cap, level=level),
        "m2po": partial(losses.m2po, threshold=config.m2_threshold),
    }[config.loss]


def training_sampling(config: TrainConfig) -> Sampling:
    """Return how training rollouts are sampled: never from a nucleus, whose ratio is biased."""
    return Sampling(config.max_completion_length, config.temperature)


def encoded(run: Run, problems: list[Problem]) -> list[np.ndarray]:
    """Return the prompts as token ids, int32 (T,) each.

    Raises:
        ValueError: if one is longer than ``max_prompt_length``.
    """
    prompts = run.policy.encoded([problem.prompt for problem in problems], run.config.chat)
    longest = max(range(len(prompts)), key=lambda p: len(prompts[p]))
    if len(prompts[longest]) > run.config.max_prompt_length:
        raise ValueError(
            f"a prompt of {len(prompts[longest])} tokens is longer than max_prompt_length = "
            f"{run.config.max_prompt_length}: {problems[longest].prompt[:60]!r}"
        )
    return prompts


def evaluation_due(run: Run) -> bool:
    """Whether this update is one after which the policy is tested."""
    done, config = run.totals.updates, run.config
    return done % config.eval_every == 0 or done == config.updates


def evaluated(run: Run) -> dict[str, Any]:
    """Return pass@1 and, where it is due, pass@k on the test side."""
    config, done = run.config, run.totals.updates
    # A stream of its own, fixed by the update: testing does not change training.
    run.evaluate.rng.manual_seed(2**32 * config.seed + done)
    tested = partial(sampled_rewards, run.evaluate, run.policy, run.task, chat=config.chat)
    problems = list(run.task.test_problems)
    encoded(run, problems)
    sampling = Sampling(config.max_completion_length, config.eval_temperature, config.eval_top_p)
    scores: dict[str, Any] = {"pass1": float((tested(problems, 1, sampling) >= 1).mean())}
    if config.passk_every and (done % config.passk_every == 0 or done == config.updates):
        sampling = dataclasses.replace(sampling, temperature=1.0)
        rewards = tested(problems[: config.passk_problems], config.passk_samples, sampling)
        correct = (rewards >= 1).sum(axis=1)
        scores["passk"] = {
            str(k): pass_at_k(correct, config.passk_samples, k) for k in config.passk
        }
    return scores


def self_test(run: Run) -> dict[str, float]:
    """Return the mismatch of sampler and trainer at age 0, which is not staleness."""
    run.evaluate.rng.manual_seed(run.config.seed)
    prompts = encoded(run, list(run.task.test_problems[:SELF_TEST_PROMPTS]))
    sampling = training_sampling(run.config)
    found = mismatch(run.policy, run.evaluate, prompts, run.config.num_generations, sampling)
    return found._asdict()


def record_of(run: Run) -> dict[str, Any]:
    """Return what every line of the log holds: totals and what they cost."""
    totals = run.totals
    return {
        "update": totals.updates,
        "rollouts_generated": totals.rollouts_generated,
        "rollouts_trained": totals.rollouts_trained,
        "cost": {
            f"{mu:g}": totals.rollouts_trained + mu * totals.rollouts_generated
            for mu in run.config.gen_train_ratios
        },
        "busy_seconds": {
            "generate": totals.generate_seconds,
            "reward": totals.reward_seconds,
            "train": totals.train_seconds,
        },
    }


def measured(run: Run, fresh: list[Fresh], uses: list[Use], step: Step) -> dict[str, Any]:
    """Return what one update measured."""
    rewards = np.concatenate([part.rewards for part in fresh])
    ages = np.array([use.age for use in uses])
    logs = np.concatenate(step.log_ratios, dtype=np.float64)
    evicted = sum((part.evicted for part in fresh), Counter())
    first = ["new" if use.since_last_use is None else use.since_last_use for use in uses]
    return {
        "reward": float(rewards.mean()),
        "zero_variance_share": zero_variance_share(rewards),
        "entropy": float(np.mean([part.entropy for part in fresh])),
        "completion_length": float(np.mean([part.mean_length for part in fresh])),
        "truncated_share": float(np.mean([part.truncated_share for part in fresh])),
        "loss": step.loss,
        "gradient_norm": step.gradient_norm,
        "padding_share": step.padding_share,
        "clip_share": float(np.concatenate(step.cut).mean()),
        "log_ratio_mean": float(logs.mean()),
        "log_ratio_second_moment": float(np.square(logs).mean()),
        "age_mean": float(ages.mean()),
        "buffer": {
            "rollouts": len(run.buffer),
            "bytes": run.buffer.nbytes,
            "empty_places": run.buffer.empty_places,
        },
        "by_age": by_age(ages, step.log_ratios, step.cut),
        "histograms": {
            "age": counts(ages.tolist()),
            "uses_when_evicted": counts(evicted.elements()),
            "updates_since_last_use": counts(first),
        },
    }


def checkpoint(run: Run, folder: Path, log: RunLog) -> None:
    """Put the log and then everything the run needs to go on on disk."""
    log.sync()
    save_checkpoint(folder / "checkpoint.pt", run_state(run))


def run_state(run: Run) -> dict[str, Any]:
    """Return the state of a run: model, optimizer, buffer, random streams, totals."""
    buffer = {name: torch.from_numpy(array) for name, array in run.buffer.state().items()}
    return {
        "model": run.policy.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "buffer": buffer,
        "rng": run.rng.bit_generator.state,
        "generate_rng": run.generate.rng.get_state(),
        "torch_rng": torch.get_rng_state(),
        "totals": dataclasses.asdict(run.totals),
    }


def restore(run: Run, state: dict[str, Any]) -> None:
    """Set a run to a saved state."""
    run.policy.model.load_state_dict(state["model"])
    run.optimizer.load_state_dict(state["optimizer"])
    run.buffer.restore({name: tensor.numpy() for name, tensor in state["buffer"].items()})
    run.rng.bit_generator.state = state["rng"]
    run.generate.rng.set_state(state["generate_rng"])
    torch.set_rng_state(state["torch_rng"])
    run.totals = Totals(**state["totals"])


def built(config: TrainConfig) -> Run:
    """Return a run at update 0."""
    task = build_task(config.task)
    device = chosen_device(config.device)
    model = config.model
    if model == "tiny":
        record = dataclasses.asdict(config.task)
        model = str(
            tiny_folder(
                task, record, config.tiny, config.max_completion_length, config.results / "policies"
            )
        )
    policy = load_policy(
        model, device, config.dtype, config.gradient_checkpointing, config.pad_token
    )
    torch.manual_seed(config.seed)
    backend = partial(TorchGenerator, policy.model, policy.pad_token, policy.end_tokens)
    return Run(
        config=config,
        task=task,
        policy=policy,
        generate=backend(torch.Generator(device).manual_seed(config.seed)),
        evaluate=backend(torch.Generator(device)),
        optimizer=MasterAdamW(policy.model.parameters(), config.learning_rate, config.weight_decay),
        buffer=ReplayBuffer(
            config.buffer_size,
            config.draw,
            config.positive_share,
            config.max_buffer_bytes or None,
        ),
        rng=np.random.default_rng(config.seed),
    )


def show(progress: Any, fresh: list[Fresh], scores: dict[str, Any]) -> None:
    """Advance the progress bar."""
    progress.update()
    progress.set_postfix(
        {"reward": f"{fresh[-1].rewards.mean():.2f}"}
        | {name: f"{scores[name]:.3f}" for name in ("pass1",) if name in scores},
        refresh=False,
    )


def summary_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the numbers of a finished run: pass@1 at start and end, its cost and seconds."""
    tested = [row["pass1"] for row in rows if "pass1" in row]
    last = rows[-1]
    passk = [row["passk"] for row in rows if "passk" in row]
    return {
        "updates": last["update"],
        "pass1_start": tested[0],
        "pass1_final": float(np.mean(tested[-FINAL_EVALUATIONS:])),
        "pass1_best": max(tested),
        "passk_final": passk[-1] if passk else None,
        "rollouts_generated": last["rollouts_generated"],
        "rollouts_trained": last["rollouts_trained"],
        "cost": last["cost"],
        "busy_seconds": last["busy_seconds"],
        "self_test": rows[0]["self_test"],
    }


def run_training(config: TrainConfig, progress: bool = True, tested: Tested | None = None) -> Path:
    """Run or resume a training and return its folder; no bar and no figure without ``progress``.

    ``tested`` is called at every test of pass@1; see ``train``.
    """
    check(config)
    if config.threads:
        torch.set_num_threads(config.threads)
    run = built(config)
    with opened(config.results / run_name(config), config_record(config)) as folder:
        state = load_checkpoint(folder / "checkpoint.pt")
        if state is not None:
            restore(run, state)
        done = None if state is None else run.totals.updates
        with RunLog(folder, done, not config.no_tensorboard) as log:
            train(run, folder, log, progress, tested)
        rows = read_log(folder / "log.jsonl")
        text = json.dumps(summary_of(rows), indent=2) + "\n"
        replace_text(folder / "summary.json", text)
        if progress:
            draw_run(rows, folder / "figure.png")
    return folder


def main_command(config: TrainConfig) -> None:
    """Run or resume a training and print what came of it."""
    folder = run_training(resolved(config))
    found = json.loads((folder / "summary.json").read_text())
    print(
        f"greedy pass@1 {found['pass1_start']:.3f} -> {found['pass1_final']:.3f} (best "
        f"{found['pass1_best']:.3f}) in {found['updates']} updates, {found['rollouts_generated']} "
        f"rollouts generated, {found['rollouts_trained']} trained"
    )
    print(f"results: {folder}")


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return run_command((TrainConfig, main_command), argv, "python -m llm.train")


if __name__ == "__main__":
    sys.exit(main())
