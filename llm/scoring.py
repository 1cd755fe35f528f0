"""Log-probabilities of responses under the trainer's policy, in one forward pass.

Prompts are padded on the left and responses on the right, so logits are computed for response
tokens only. Rollouts of similar length share a micro-batch: what little padding is left is
reported, and where there is none the model gets no mask at all.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class Padded(NamedTuple):
    """B sequences as tensors: ids and attended (B, P + T), tokens and mask (B, T).

    ids: prompt and response. attended: False on padding. tokens: the responses. mask: False behind
    a response's end.
    """

    ids: Tensor
    attended: Tensor
    tokens: Tensor
    mask: Tensor


def padded(
    prompts: Sequence[np.ndarray],
    responses: Sequence[np.ndarray],
    pad_token: int,
    device: torch.device,
) -> Padded:
    """Return B prompts and their responses, int32 (T,) each and not empty, as tensors."""
    width = max(len(prompt) for prompt in prompts)
    length = max(len(response) for response in responses)
    ids = np.full((len(prompts), width + length), pad_token, dtype=np.int64)
    attended = np.zeros(ids.shape, dtype=bool)
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        start, end = width - len(prompt), width + len(response)
        ids[row, start:width], ids[row, width:end] = prompt, response
        attended[row, start:end] = True
    both = torch.from_numpy(ids).to(device), torch.from_numpy(attended).to(device)
    return Padded(*both, both[0][:, width:], both[1][:, width:])


def response_log_probs(model: Any, batch: Padded, temperature: float = 1.0) -> Tensor:
    """Return log pi of the response tokens, float32 (B, T), 0 behind a response's end.

    Args:
        model: transformers causal language model.
        batch: B sequences.
        temperature: of the distribution that the tokens were drawn from, > 0.
    """
    length = batch.tokens.shape[1]
    whole = bool(batch.attended[:, :-1].all())
    attended = batch.attended[:, :-1].long()
    logits = model(
        input_ids=batch.ids[:, :-1],
        attention_mask=None if whole else attended,
        position_ids=None if whole else (attended.cumsum(dim=1) - 1).clamp(min=0),
        use_cache=False,
        logits_to_keep=length,
    ).logits.float()
    if temperature != 1:
        logits = logits / temperature
    chosen = logits.gather(-1, batch.tokens[..., None])[..., 0]
    return (chosen - logits.logsumexp(dim=-1)).masked_fill(~batch.mask, 0.0)


def micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Return the indices of sequences in groups of similar length, the longest group last.

    Args:
        lengths: tokens of every sequence.
        max_tokens: bound on (longest in the group) x (sequences in the group); a sequence longer
            than that is a group of its own.

    >>> micro_batches([5, 9, 5, 6], 12)
    [[0, 2], [3], [1]]
    """
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if groups and lengths[index] * (len(groups[-1]) + 1) <= max_tokens:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups
