"""What a training run does: its flags, presets and checks. Importing this needs no torch."""

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from llm.buffer import Draw, positive_places
from llm.tasks import Style, Task, addition, countdown, modular
from theory.command import with_preset
from theory.run_folder import check_plain_name

TaskName = Literal["addition", "modular", "countdown", "gym", "data"]
LossName = Literal["grpo", "dual_clip", "reinforce", "asymre", "cispo", "m2po"]
Level = Literal["token", "sequence", "sequence_mean"]
Weighting = Literal["rollout_mean", "token_mean", "rollout_sum"]


@dataclass(frozen=True)
class TaskConfig:
    """What to train on."""

    name: TaskName = "addition"
    """Generated arithmetic; gym: a reasoning-gym data set; data: a file or folder of your own."""
    digits: int = 2
    """addition: digits of the operands."""
    modulus: int = 97
    """modular: the modulus."""
    numbers: int = 3
    """countdown: numbers given."""
    style: Style = "compact"
    """Prompts as bare symbols, or in words for a model that reads English."""
    dataset: str = "chain_sum"
    """gym: name of the data set."""
    path: str = ""
    """data: JSONL file, or folder saved by Hugging Face datasets, with questions and answers."""
    test_path: str = ""
    """data: the same for the test side; empty: a share of the rows is held out."""
    test_size: int = 500
    """Test problems."""


@dataclass(frozen=True)
class TinyConfig:
    """Shape and schooling of the tiny policy."""

    layers: int = 3
    """Decoder layers."""
    width: int = 144
    """Hidden size."""
    heads: int = 4
    """Attention heads; they divide the width."""
    warm_batch: int = 128
    """Problems in a supervised step."""
    warm_learning_rate: float = 1e-3
    """Adam step size of the supervised steps."""
    warm_low: float = 0.34
    """Schooling stops at the first check with at least this greedy test accuracy ..."""
    warm_high: float = 0.4
    """... which must not be above this."""
    warm_check_every: int = 5
    """Supervised steps between checks."""
    warm_max_steps: int = 5000
    """Give up after so many supervised steps."""
    warm_seed: int = 0
    """Seed of the first weights and of the examples."""


@dataclass(frozen=True)
class TrainConfig:
    """GRPO with a replay buffer: R new rollouts an update, B drawn from the newest N."""

    preset: Literal["tiny", "paper"] = "tiny"
    """tiny: minutes on a CPU. paper: the settings of arXiv 2604.08706 for a model given by
    --model, one that reads English. Flags given beside it win over it."""
    model: str = "tiny"
    """tiny, or a local folder or hub name of a causal language model."""
    task: TaskConfig = field(default_factory=TaskConfig)
    """What to train on."""
    tiny: TinyConfig = field(default_factory=TinyConfig)
    """The tiny policy."""
    batch_size: int = 64
    """Rollouts trained on per update (B)."""
    rollouts_per_update: int = 64
    """New rollouts per update (R), a multiple of num_generations."""
    buffer_size: int = 64
    """Rollouts the buffer holds (N)."""
    num_generations: int = 8
    """Rollouts per prompt (G)."""
    draw: Draw = "without"
    """Draw a batch without or with replacement; without_reuse and unused_first also avoid repeats
    across batches."""
    start: Literal["growing", "full"] = "growing"
    """Train once max(B, R) rollouts are generated, or once N are."""
    positive_share: float = 0.0
    """Share of the buffer kept for older rollouts with reward > 0 (delta of positive bias)."""
    max_buffer_bytes: int = 0
    """Bound on the bytes of stored rollouts; 0 for none."""
    updates: int = 3000
    """Optimizer updates of the whole run; a finished run goes on if more are asked for."""
    learning_rate: float = 3e-5
    """AdamW step size, constant."""
    weight_decay: float = 0.0
    """AdamW weight decay."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    loss: LossName = "grpo"
    """Loss; see llm.loss."""
    scale_rewards: Literal["group", "none"] = "group"
    """Divide reward minus group mean by the group's standard deviation, or do not."""
    importance_sampling_level: Level = "token"
    """Ratio of a token, of the whole rollout, or its geometric mean over tokens."""
    token_weighting: Weighting = "rollout_mean"
    """Average over a rollout's tokens first, over all tokens, or sum over a rollout's tokens."""
    clip_low: float = 0.2
    """The ratio is clipped below 1 - clip_low."""
    clip_high: float = 0.2
    """The ratio is clipped above 1 + clip_high."""
    dual_clip: float = 3.0
    """dual_clip: bound on the ratio where the advantage is negative, > 1."""
    asymre_offset: float = -0.1
    """asymre: how far the baseline is moved; needs scale_rewards none."""
    ratio_cap: float = 2.0
    """cispo: cap of the ratio."""
    m2_threshold: float = 0.04
    """m2po: largest second moment of log ratios."""
    temperature: float = 1.0
    """Sampling temperature in training, > 0."""
    max_prompt_length: int = 64
    """Longest prompt, tokens; a longer one stops the run."""
    max_completion_length: int = 5
    """Longest response, tokens, end token included."""
    chat: bool = False
    """Wrap prompts in the tokenizer's chat template."""
    eval_every: int = 20
    """Updates between measurements of pass@1 on the test side."""
    eval_temperature: float = 0.0
    """Temperature for pass@1; 0 is greedy."""
    eval_top_p: float = 1.0
    """Nucleus for pass@1 and pass@k."""
    passk_every: int = 200
    """Updates between measurements of pass@k; 0 for never."""
    passk: tuple[int, ...] = (1, 2, 4, 8)
    """k of pass@k."""
    passk_samples: int = 16
    """Responses per problem for the unbiased estimate of pass@k, at temperature 1."""
    passk_problems: int = 100
    """Test problems that pass@k is measured on."""
    gen_train_ratios: tuple[float, ...] = (1.0, 5.28, 20.0)
    """cost_gen / cost_train to price the run at: cost of generating one rollout in units of
    training on it once."""
    seed: int = 0
    """Seed of problems, sampling and buffer."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model runs."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the weights; the optimizer keeps float32 copies of shorter ones."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass to save memory."""
    micro_batch_tokens: int = 16384
    """Tokens, padding included, in one forward and backward pass."""
    pad_token: str = ""
    """Padding token for tokenizers that name none."""
    threads: int = 0
    """CPU threads; 0 leaves it to torch. Results are bit-identical for one number of threads."""
    checkpoint_every: int = 100
    """Updates between checkpoints."""
    no_tensorboard: bool = False
    """Write no TensorBoard files."""
    results: Path = Path("results")
    """Folder that holds one folder a run, and policies/, the cache of schooled tiny policies."""
    id: str = ""
    """Name of the run's folder; empty: the task and a hash of the config."""


PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {},
    "paper": {
        "task": TaskConfig(style="words"),
        "batch_size": 64,
        "num_generations": 16,
        "learning_rate": 3.37e-7,
        "token_weighting": "token_mean",
        "max_prompt_length": 512,
        "max_completion_length": 1024,
        "chat": True,
        "eval_temperature": 0.1,
        "eval_top_p": 0.95,
        "passk": (1, 2, 4, 8, 16, 32),
        "passk_samples": 32,
        "dtype": "bfloat16",
        "gradient_checkpointing": True,
    },
}
NOT_IDENTITY = (
    "preset",
    "updates",
    "threads",
    "checkpoint_every",
    "no_tensorboard",
    "results",
    "id",
)


def resolved(config: TrainConfig) -> TrainConfig:
    """Return the config with the preset's values where the flags were left at their defaults."""
    return with_preset(config, PRESETS[config.preset])


def config_record(config: TrainConfig) -> dict[str, Any]:
    """Return what defines a run's results, as plain data."""
    fields = dataclasses.asdict(config)
    for name in (*NOT_IDENTITY, *(() if config.model == "tiny" else ("tiny",))):
        del fields[name]
    return json.loads(json.dumps(fields))


def run_name(config: TrainConfig) -> str:
    """Return the name of the run's folder."""
    text = json.dumps(config_record(config), sort_keys=True)
    return config.id or f"{config.task.name}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def build_task(config: TaskConfig) -> Task:
    """Return the task of a config."""
    if config.test_size < 1:
        raise ValueError(f"test_size must be an integer >= 1, got {config.test_size}")
    if config.name == "addition":
        return addition(config.digits, config.test_size, config.style)
    if config.name == "modular":
        return modular(config.modulus, config.test_size, config.style)
    if config.name == "countdown":
        return countdown(config.numbers, test_size=config.test_size, style=config.style)
    if config.name == "gym":
        from llm.gym_tasks import gym_task

        return gym_task(config.dataset, config.test_size)
    from llm.data_tasks import data_task

    if not config.path:
        raise ValueError("task data needs --task.path, a JSONL file or a data-set folder")
    test_path = Path(config.test_path) if config.test_path else None
    return data_task(Path(config.path), test_path, config.test_size)


AT_LEAST_ONE = (
    "batch_size",
    "rollouts_per_update",
    "buffer_size",
    "num_generations",
    "updates",
    "max_prompt_length",
    "max_completion_length",
    "eval_every",
    "passk_samples",
    "passk_problems",
    "micro_batch_tokens",
    "checkpoint_every",
)
POSITIVE = ("learning_rate", "max_grad_norm", "temperature", "ratio_cap", "m2_threshold")
NON_NEGATIVE = ("weight_decay", "clip_low", "clip_high", "eval_temperature")


def check(config: TrainConfig) -> None:
    """Raise ValueError, naming value and range, for what no run can start with."""
    for name in AT_LEAST_ONE:
        if getattr(config, name) < 1:
            raise ValueError(f"{name} must be an integer >= 1, got {getattr(config, name)}")
    for name in POSITIVE:
        if not 0 < getattr(config, name) < math.inf:
            raise ValueError(f"{name} must be finite and > 0, got {getattr(config, name)}")
    for name in NON_NEGATIVE:
        if not 0 <= getattr(config, name) < math.inf:
            raise ValueError(f"{name} must be finite and >= 0, got {getattr(config, name)}")
    for name in ("max_buffer_bytes", "passk_every", "threads", "seed"):
        if not 0 <= getattr(config, name) < 2**31:
            raise ValueError(f"{name} must be in [0, 2^31), got {getattr(config, name)}")
    if not 0 < config.eval_top_p <= 1:
        raise ValueError(f"eval_top_p must be in (0, 1], got {config.eval_top_p}")
    for ratio in config.gen_train_ratios:
        if not 0 < ratio < math.inf:
            raise ValueError(f"gen_train_ratios must be finite and > 0, got {ratio}")
    for k in config.passk:
        if not 1 <= k <= config.passk_samples:
            raise ValueError(
                f"passk must be from 1 to passk_samples = {config.passk_samples}, got {k}"
            )
    check_plain_name("id", config.id)
    if config.preset == "paper" and config.model == "tiny":
        raise ValueError("preset = 'paper' needs --model, a model that reads English")
    check_design(config)
    check_loss(config)


def check_design(config: TrainConfig) -> None:
    """Raise ValueError where B, R, N and G do not fit together."""
    generations, batch, size = config.num_generations, config.batch_size, config.buffer_size
    if config.rollouts_per_update % generations:
        raise ValueError(
            f"rollouts_per_update must be a multiple of num_generations = {generations}, "
            f"got {config.rollouts_per_update}"
        )
    if size < config.rollouts_per_update:
        raise ValueError(
            f"buffer_size = {size} must be at least rollouts_per_update = "
            f"{config.rollouts_per_update}: new rollouts would be lost unused"
        )
    if not 0 <= config.positive_share < 1:
        raise ValueError(f"positive_share must be in [0, 1), got {config.positive_share}")
    newest = size - positive_places(config.positive_share, size)
    if config.draw != "with" and newest < batch:
        share = f" less the share for older right ones, {newest}," if newest < size else ""
        raise ValueError(
            f"buffer_size = {size}{share} is less than batch_size = {batch}: "
            "drawing without replacement needs N >= B"
        )


def check_loss(config: TrainConfig) -> None:
    """Raise ValueError where the loss, the advantage and the group do not fit together."""
    if config.scale_rewards == "group" and config.num_generations == 1:
        raise ValueError(
            "num_generations = 1 with scale_rewards = 'group' is not allowed: one rollout has no "
            "standard deviation"
        )
    if config.num_generations == 1:
        raise ValueError("num_generations = 1 is not allowed: reward minus group mean is always 0")
    if config.loss == "asymre" and config.scale_rewards != "none":
        raise ValueError("loss = 'asymre' needs scale_rewards = 'none': its offset is in rewards")
    if config.loss == "dual_clip" and not 1 < config.dual_clip < math.inf:
        raise ValueError(f"dual_clip must be finite and > 1, got {config.dual_clip}")
    if not math.isfinite(config.asymre_offset):
        raise ValueError(f"asymre_offset must be finite, got {config.asymre_offset}")
    if config.clip_low >= 1:
        raise ValueError(f"clip_low must be in [0, 1), got {config.clip_low}")
