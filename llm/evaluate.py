"""Accuracy on the test side: greedy pass@1 and unbiased pass@k."""

from collections.abc import Sequence
from math import comb

import numpy as np

from llm.generate import Generate, Sampling
from llm.policy import Policy
from llm.tasks import Problem, Task


def sampled_rewards(
    generate: Generate,
    policy: Policy,
    task: Task,
    problems: Sequence[Problem],
    num_generations: int,
    sampling: Sampling,
    chat: bool = False,
) -> np.ndarray:
    """Return the rewards of ``num_generations`` responses to every problem, (P, G)."""
    prompts = policy.encoded([problem.prompt for problem in problems], chat)
    texts = policy.decoded(generate(prompts, num_generations, sampling).tokens)
    return rewards_of(task, problems, texts)


def rewards_of(task: Task, problems: Sequence[Problem], texts: Sequence[str]) -> np.ndarray:
    """Return the rewards (P, G) of responses to P problems, G in turn to each."""
    members = len(texts) // len(problems)
    flat = [task.verify(problems[i // members], text) for i, text in enumerate(texts)]
    return np.array(flat, dtype=float).reshape(len(problems), members)


def greedy_pass1(
    generate: Generate, policy: Policy, task: Task, sampling: Sampling, chat: bool = False
) -> float:
    """Return the share of test problems whose one response is right."""
    rewards = sampled_rewards(generate, policy, task, task.test_problems, 1, sampling, chat)
    return float(np.mean(rewards >= 1))


def pass_at_k(correct: np.ndarray, samples: int, k: int) -> float:
    """Return the mean over problems of 1 - C(n - c, k) / C(n, k), unbiased for k draws.

    Source: Chen et al., arXiv 2107.03374, equation 1.

    Args:
        correct: c, right responses of every problem, whole numbers (P,).
        samples: n, responses of every problem, >= k.
        k: draws, >= 1.

    Raises:
        ValueError: if k is not in 1..n.

    >>> pass_at_k(np.array([1, 0]), 2, 1)
    0.25
    """
    if not 1 <= k <= samples:
        raise ValueError(f"k = {k} is not allowed: it must be 1 to the {samples} samples")
    wrong = [comb(samples - int(c), k) / comb(samples, k) for c in correct]
    return float(1 - np.mean(wrong))
