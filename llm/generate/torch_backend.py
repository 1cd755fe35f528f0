"""Generation with a transformers model in this process.

Prompts are padded on the left and run once; their keys and values are then repeated for the G
rollouts of a group in a static cache that the decoding loop writes in place. Rows that have ended
leave the batch when half of it has; the loop stops when all have.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache

from llm.generate import Generation, Sampling

MAX_ROWS = 1024
STEPS_BETWEEN_CHECKS = {"cpu": 1}
DEFAULT_STEPS_BETWEEN_CHECKS = 8  # looking whether rows have ended waits for a GPU


class TorchGenerator:
    """The backend of ``llm.generate`` that runs the trainer's own weights.

    Args:
        model: a transformers causal language model whose layers all attend to everything before.
        pad_token: id that fills the left of short prompts.
        end_tokens: ids that end a response.
        rng: source of randomness, on the model's device.
        max_rows: rollouts decoded at a time; more are done in turns.

    Raises:
        ValueError: if the model has layers with a window or without a key-value cache.
    """

    def __init__(
        self,
        model: Any,
        pad_token: int,
        end_tokens: Sequence[int],
        rng: torch.Generator,
        max_rows: int = MAX_ROWS,
    ):
        """Keep what decoding needs."""
        kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"}:
            raise ValueError(f"layers of the kinds {sorted(kinds)} are not supported")
        self.model, self.rng, self.max_rows = model, rng, max_rows
        self.pad_token = pad_token
        self.end_tokens = torch.tensor(list(end_tokens), device=model.device)
        self.policy_version = 0

    def __call__(
        self, prompts: Sequence[np.ndarray], num_generations: int, sampling: Sampling
    ) -> Generation:
        """Return ``num_generations`` responses to every prompt, int32 (T,) each."""
        by_length = sorted(range(len(prompts)), key=lambda p: len(prompts[p]))
        step = max(1, self.max_rows // num_generations)
        rollouts: list[Any] = [None] * (len(prompts) * num_generations)
        training = self.model.training
        self.model.eval()
        with torch.inference_mode():
            for start in range(0, len(prompts), step):
                chosen = by_length[start : start + step]
                found = self._decoded([prompts[p] for p in chosen], num_generations, sampling)
                for row, rollout in enumerate(found):
                    place, member = divmod(row, num_generations)
                    rollouts[chosen[place] * num_generations + member] = rollout
        self.model.train(training)
        tokens, log_probs, entropies, ended = zip(*rollouts, strict=True)
        return Generation(
            list(tokens), list(log_probs), list(entropies), np.array(ended), self.policy_version
        )

    def _decoded(
        self, prompts: list[np.ndarray], num_generations: int, sampling: Sampling
    ) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, bool]]:
        """Decode one batch; rollouts (tokens, log_probs, entropies, ended) in prompt order."""
        device, rows = self.model.device, len(prompts) * num_generations
        width = max(len(prompt) for prompt in prompts)
        length = width + sampling.max_new_tokens
        logits, cache, mask = self._prefilled(prompts, num_generations, width, length)
        position = mask.sum(dim=1, keepdim=True)
        shape = (rows, sampling.max_new_tokens)
        tokens = torch.full(shape, self.pad_token, device=device)
        log_probs = torch.zeros(shape, device=device)
        entropies = torch.zeros(shape, device=device)
        live = torch.arange(rows, device=device)
        ended = torch.zeros(rows, dtype=torch.bool, device=device)
        check = STEPS_BETWEEN_CHECKS.get(device.type, DEFAULT_STEPS_BETWEEN_CHECKS)
        for t in range(sampling.max_new_tokens):
            token, log_prob, entropy = drawn_token(logits, sampling, self.rng)
            running = ~ended[live]
            tokens[live, t] = torch.where(running, token, self.pad_token)
            log_probs[live, t] = log_prob
            entropies[live, t] = entropy
            ended[live] |= torch.isin(token, self.end_tokens)
            if t + 1 == sampling.max_new_tokens:
                break
            if t % check == 0:
                running = ~ended[live]
                count = int(running.sum())
                if count == 0:
                    break
                if 2 * count <= len(live):
                    live, token = live[running], token[running]
                    mask, position = mask[running], position[running]
                    keep_rows(cache, running)
            mask[:, width + t] = 1
            logits = self.model(
                input_ids=token[:, None],
                attention_mask=mask,
                position_ids=position,
                cache=cache,
                use_cache=True,
            ).logits[:, -1]
            position = position + 1
        return self._cut(tokens, log_probs, entropies, ended)

    def _prefilled(
        self, prompts: list[np.ndarray], num_generations: int, width: int, length: int
    ) -> tuple[Tensor, Any, Tensor]:
        """Run each prompt once; next-token logits, cache and attention mask of all G P rows."""
        device = self.model.device
        ids = np.full((len(prompts), width), self.pad_token)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = prompt
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        mask = (torch.arange(width, device=device) >= width - lengths[:, None]).long()
        prefill = DynamicCache(config=self.model.config)
        out = self.model(
            input_ids=torch.from_numpy(ids).to(device),
            attention_mask=mask,
            position_ids=(mask.cumsum(dim=1) - 1).clamp(min=0),
            cache=prefill,
            use_cache=True,
            logits_to_keep=1,
        )
        full_mask = mask.new_zeros(len(prompts) * num_generations, length)
        full_mask[:, :width] = mask.repeat_interleave(num_generations, dim=0)
        cache = repeated_cache(self.model.config, prefill, num_generations, length)
        return out.logits[:, -1].repeat_interleave(num_generations, dim=0), cache, full_mask

    def _cut(
        self, tokens: Tensor, log_probs: Tensor, entropies: Tensor, ended: Tensor
    ) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, bool]]:
        """Cut every row behind its end token."""
        ends = torch.isin(tokens, self.end_tokens).int()
        width = tokens.shape[1]
        lengths = torch.where(ended, ends.argmax(dim=1) + 1, width).tolist()
        ids = tokens.to(torch.int32).cpu().numpy()
        chances, nats = log_probs.cpu().numpy(), entropies.cpu().numpy()
        return [
            (ids[i, :n].copy(), chances[i, :n].copy(), nats[i, :n].copy(), bool(done))
            for i, (n, done) in enumerate(zip(lengths, ended.tolist(), strict=True))
        ]


def drawn_token(
    logits: Tensor, sampling: Sampling, rng: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens drawn from logits (rows, V), their log-probabilities, the entropies (rows,)."""
    if sampling.temperature == 0:
        log_probs = logits.float().log_softmax(dim=-1)
        token = log_probs.argmax(dim=-1)
    else:
        log_probs = (logits.float() / sampling.temperature).log_softmax(dim=-1)
        if sampling.top_p < 1:
            log_probs = nucleus(log_probs, sampling.top_p)
        # The argmax of p / Exponential(1) is a draw from p.
        noise = torch.empty_like(log_probs).exponential_(generator=rng)
        token = (log_probs - noise.log()).argmax(dim=-1)
    chosen = log_probs.gather(-1, token[:, None])[:, 0]
    entropy = torch.special.entr(log_probs.exp()).sum(dim=-1)
    return token, chosen, entropy


def nucleus(log_probs: Tensor, top_p: float) -> Tensor:
    """Return log-probabilities (rows, V) of the smallest set of tokens with mass >= top_p."""
    ordered, order = log_probs.sort(dim=-1, descending=True)
    before = ordered.exp().cumsum(dim=-1) - ordered.exp()
    dropped = torch.zeros_like(before, dtype=torch.bool).scatter(-1, order, before >= top_p)
    return log_probs.masked_fill(dropped, -torch.inf).log_softmax(dim=-1)


def repeated_cache(config: Any, prefill: Any, repeats: int, length: int) -> Any:
    """Return a static cache with room for ``length`` tokens, each row of the prefill repeated."""
    cache: Any = StaticCache(config=config, max_cache_len=length)
    for static, dynamic in zip(cache.layers, prefill.layers, strict=True):
        keys = dynamic.keys.repeat_interleave(repeats, dim=0)
        values = dynamic.values.repeat_interleave(repeats, dim=0)
        static.update(keys, values)
    return cache


def keep_rows(cache: Any, rows: Tensor) -> None:
    """Drop the rows of a cache that are not in a bool mask."""
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[rows], layer.values[rows]
