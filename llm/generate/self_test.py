"""Does the sampler's log-probability equal the trainer's, on rollouts of age 0?

Where weights are equal the ratio is 1 up to rounding. What is left is mismatch between sampler and
trainer, and must not be mistaken for staleness, which is what the ratio shows at later ages.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from llm.generate import Generate, Sampling
from llm.policy import Policy
from llm.scoring import packed, response_log_probs


class Mismatch(NamedTuple):
    """Probability ratio trainer / sampler over the tokens of fresh rollouts.

    worst: largest |ratio - 1|. mean_ratio: mean over tokens. second_moment: mean squared log
    ratio. tokens: how many.
    """

    worst: float
    mean_ratio: float
    second_moment: float
    tokens: int


def mismatch(
    policy: Policy,
    generate: Generate,
    prompts: Sequence[np.ndarray],
    num_generations: int,
    sampling: Sampling,
) -> Mismatch:
    """Generate, score with the trainer's forward pass, and compare.

    Args:
        policy: the trainer's policy.
        generate: the backend, with the same weights.
        prompts: int32 (T,) each.
        num_generations: rollouts a prompt.
        sampling: as in training: temperature > 0, top_p 1.
    """
    found = generate(prompts, num_generations, sampling)
    repeated = [prompt for prompt in prompts for _ in range(num_generations)]
    batch = packed(repeated, found.tokens, policy.pad_token, policy.model.device)
    with torch.no_grad():
        scores = response_log_probs(policy.model, batch, sampling.temperature)
    stored = torch.from_numpy(np.concatenate(found.log_probs)).double()
    log_ratio = scores[batch.mask].double().cpu() - stored
    ratio = log_ratio.exp()
    return Mismatch(
        worst=float((ratio - 1).abs().max()),
        mean_ratio=float(ratio.mean()),
        second_moment=float(log_ratio.square().mean()),
        tokens=len(stored),
    )
