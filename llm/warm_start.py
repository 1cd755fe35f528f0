"""The tiny policy: a character-level Qwen2 taught by example until it is right now and then.

Reinforcement learning needs a policy that is sometimes right. Supervised steps on training
problems stop as soon as greedy accuracy on the test side reaches the stated range. The result is a
function of the config, kept in a cache folder under its hash.
"""

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from llm.evaluate import greedy_pass1
from llm.generate import Sampling
from llm.generate.torch_backend import TorchGenerator
from llm.policy import Policy
from llm.scoring import packed, response_log_probs
from llm.settings import TinyConfig
from llm.tasks import Task

PAD, END = "<pad>", "<end>"


def character_tokenizer(characters: str) -> Any:
    """Return a tokenizer with one token a character, and a padding and an end token."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: n for n, token in enumerate([PAD, END, *sorted(set(characters))])}
    rules = Tokenizer(models.WordLevel(vocabulary, unk_token=PAD))
    rules.pre_tokenizer = pre_tokenizers.Split(Regex(""), "isolated")
    rules.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=rules, pad_token=PAD, eos_token=END, clean_up_tokenization_spaces=False
    )


def untrained(config: TinyConfig, tokenizer: Any) -> Any:
    """Return a Qwen2 model with random weights."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    if config.width % config.heads:
        raise ValueError(f"heads = {config.heads} must divide width = {config.width}")
    torch.manual_seed(config.warm_seed)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=config.width,
            intermediate_size=4 * config.width,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.heads,
            max_position_embeddings=256,
            tie_word_embeddings=True,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
        )
    )


def supervised_step(
    policy: Policy, optimizer: torch.optim.Optimizer, task: Task, seed: int, indices: range
) -> float:
    """Take one step on the answers of training problems; the loss, nats a token."""
    problems = [task.train_problem(seed, index) for index in indices]
    prompts = policy.encoded([problem.prompt for problem in problems])
    answers = [
        np.append(row, np.int32(policy.tokenizer.eos_token_id))
        for row in policy.encoded([problem.answer for problem in problems])
    ]
    batch = packed(prompts, answers, policy.pad_token, policy.model.device)
    loss = -response_log_probs(policy.model, batch).sum() / batch.mask.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def schooled(
    task: Task, config: TinyConfig, max_new_tokens: int, say: Callable[[str], None]
) -> tuple[Policy, dict[str, float]]:
    """Return a policy taught to the stated accuracy, and what it took.

    Raises:
        ValueError: if the accuracy range is not met.
    """
    tokenizer = character_tokenizer(task.characters)
    policy = Policy(untrained(config, tokenizer), tokenizer)
    optimizer = torch.optim.Adam(policy.model.parameters(), lr=config.warm_learning_rate)
    generate = TorchGenerator(
        policy.model, policy.pad_token, policy.end_tokens, torch.Generator().manual_seed(0)
    )
    # Its stream of problems must not be that of any training run, whose seeds are >= 0.
    seed = 2**31 + config.warm_seed
    accuracy = 0.0
    for step in range(1, config.warm_max_steps + 1):
        first = (step - 1) * config.warm_batch
        loss = supervised_step(
            policy, optimizer, task, seed, range(first, first + config.warm_batch)
        )
        if step % config.warm_check_every == 0:
            accuracy = greedy_pass1(generate, policy, task, Sampling(max_new_tokens, 0.0))
            say(f"warm start: step {step}, loss {loss:.3f}, greedy pass@1 {accuracy:.3f}")
        if accuracy >= config.warm_low:
            break
    if not config.warm_low <= accuracy <= config.warm_high:
        raise ValueError(
            f"warm start ended at pass@1 {accuracy:.3f}, outside [{config.warm_low}, "
            f"{config.warm_high}]: change warm_learning_rate, warm_check_every or the range"
        )
    return policy, {"pass1": accuracy, "steps": step}


def tiny_folder(
    task: Task,
    task_record: dict[str, Any],
    config: TinyConfig,
    max_new_tokens: int,
    cache: Path,
    say: Callable[[str], None] = print,
) -> Path:
    """Return the folder of a task's tiny policy, schooled first if the cache has none.

    It loads like any local model; ``warm_start.json`` in it holds pass@1 and the steps it took.

    Args:
        task: what it is taught.
        task_record: the task's config, part of the cache key.
        config: shape and schooling.
        max_new_tokens: longest response, tokens.
        cache: folder of cached policies, made if missing.
        say: gets one line a check.

    Raises:
        ValueError: if the accuracy range is not met, or the task has no alphabet.
    """
    if not task.characters:
        raise ValueError(f"the tiny policy needs a task with an alphabet, not {task.name}")
    record = {
        "task": task_record,
        "tiny": dataclasses.asdict(config),
        "max_new_tokens": max_new_tokens,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }
    digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:10]
    folder = cache / f"tiny-{digest}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        policy, found = schooled(task, config, max_new_tokens, say)
        save_policy(policy, folder, {**record, **found})
    return folder


def save_policy(policy: Policy, folder: Path, record: dict[str, Any]) -> None:
    """Write a policy and its record so that the folder is whole or not there."""
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    policy.model.save_pretrained(partial)
    policy.tokenizer.save_pretrained(partial)
    (partial / "warm_start.json").write_text(json.dumps(record, indent=2) + "\n")
    try:
        os.rename(partial, folder)
    except OSError:
        # Another process finished the same schooling first.
        if not folder.exists():
            raise
        shutil.rmtree(partial)
