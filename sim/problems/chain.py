"""Autoregressive token chain with a band reward: the closest toy to a language model.

A rollout draws a prompt uniformly, then H tokens in 0..V-1, each from a softmax conditioned on the
token before it and on the segment of its position; the first follows token 0. The reward is 1 if
the sum of the tokens lies in the prompt's band, else 0, plus Gaussian noise. Objective
``J = mean_p P(sum in band_p) - kl * KL(pi || uniform)``, KL of whole sequences, exact by dynamic
programming over (token before, running sum). The logit of token 0 is 0, those of the others are
``scale * theta``. The advantage is frozen at generation: reward minus the prompt's exact value then
(num_generations = 1), or minus the mean reward of the other rollouts of its group. The KL term is
differentiated at the current policy with its exact mean as baseline.

A stale rollout is corrected by the ratio of its whole sequence (unbiased at any age), of each token
(GRPO) or by their geometric mean (GSPO): the last two are biased but never explode with H.
With one segment and V = 2 it is the bit chain of two parameters; a band up to 1 is a threshold.
"""

import math
from functools import partial
from typing import get_args

import jax
import numpy as np

from sim.problems import Problem
from sim.problems.chain_optimum import best_objective, chain_objective
from sim.problems.chain_policy import (
    ChainEnv,
    Level,
    forward,
    gradient,
    loss,
    noise,
    rollout,
)


def bands(
    length: int, vocabulary: int, prompts: int, centre: float, half_width: float, spread: float
) -> np.ndarray:
    """Return the reward of each token sum for each prompt, (P, H (V - 1) + 1) in {0, 1}."""
    largest = length * (vocabulary - 1)
    offsets = np.linspace(-spread / 2, spread / 2, prompts) if prompts > 1 else np.zeros(1)
    fraction = np.arange(largest + 1) / largest
    inside = np.abs(fraction - (centre + offsets)[:, None]) <= half_width + 1e-9
    for prompt, count in enumerate(inside.sum(axis=-1)):
        if not 0 < count <= largest:
            raise ValueError(
                f"band_half_width must leave some sums in and some out of the band at "
                f"{centre + offsets[prompt]:g}, got {half_width}: {count} of {largest + 1} in"
            )
    return inside.astype(float)


def chain(
    *,
    length: int = 8,
    vocabulary: int = 4,
    segments: int = 1,
    spectrum_power: float = 1.0,
    autoregressive: bool = True,
    prompts: int = 1,
    band_centre: float = 0.6,
    band_half_width: float = 0.05,
    centre_spread: float = 0.2,
    reward_noise: float = 0.0,
    kl: float = 0.1,
    ratio: Level = "sequence",
    truncation: float = math.inf,
    clip_low: float = math.inf,
    clip_high: float = math.inf,
    num_generations: int = 1,
) -> Problem:
    """Build a token chain, started at the uniform policy (theta = 0).

    Args:
        length: tokens of a rollout H, >= 1. The longer, the faster sequence ratios grow noisy and
            the biased levels go wrong.
        vocabulary: number of tokens V, >= 2.
        segments: parts of the chain with parameters of their own, in [1, length]; 1: the policy
            ignores the position. With more and kl > 0 the objective gets local optima.
        spectrum_power: a in the feature scales ``j^(-a/2)`` of a prompt's j-th parameter, counted
            by segment, then token before, then token, >= 0; the mean square is 1. The larger,
            the worse the conditioning.
        autoregressive: condition on the token before; else tokens are independent.
        prompts: number of prompts P, >= 1, each with a band and parameters of its own.
        band_centre: middle of the band as a fraction of the largest sum, in [0, 1].
        band_half_width: half its width, same unit, in [0, 1]; a narrow band is rarely hit, which
            raises the noise scale.
        centre_spread: the prompts' centres are evenly spaced over this width, in [0, 1].
        reward_noise: standard deviation of the noise added to rewards, >= 0.
        kl: weight of the KL term of whole sequences, >= 0. From 0.1 on the default chain has one
            optimum; much lower it has local ones. With 0 the best policy often lies at infinity,
            where the noise vanishes and few step sizes are too large.
        ratio: importance ratio of stale rollouts: ``sequence`` (unbiased), ``token``,
            ``geometric`` or ``none`` (biased).
        truncation: largest ratio used, > 0; infinite: no limit.
        clip_low: PPO's clip stops ratios below ``1 - clip_low``, > 0; infinite: never.
        clip_high: PPO's clip stops ratios above ``1 + clip_high``, > 0; infinite: never.
        num_generations: rollouts of one prompt that share a group baseline; 1: exact value.

    Returns:
        The problem; ``initial_loss`` is the gap of the uniform policy.

    Raises:
        ValueError: for a value outside the ranges above, or a band that holds no sum or all.
    """
    for name, value, least, most in [
        ("length", length, 1, math.inf),
        ("vocabulary", vocabulary, 2, math.inf),
        ("segments", segments, 1, length),
        ("prompts", prompts, 1, math.inf),
        ("num_generations", num_generations, 1, math.inf),
    ]:
        if not (least <= value <= most and value == int(value)):
            raise ValueError(f"{name} must be an integer in [{least}, {most}], got {value}")
    for name, value, most in [
        ("spectrum_power", spectrum_power, math.inf),
        ("band_centre", band_centre, 1.0),
        ("band_half_width", band_half_width, 1.0),
        ("centre_spread", centre_spread, 1.0),
        ("reward_noise", reward_noise, math.inf),
        ("kl", kl, math.inf),
    ]:
        if not (0 <= value <= most and math.isfinite(value)):
            raise ValueError(f"{name} must be finite and in [0, {most}], got {value}")
    for name, value in [
        ("truncation", truncation),
        ("clip_low", clip_low),
        ("clip_high", clip_high),
    ]:
        if not value > 0:
            raise ValueError(f"{name} must be > 0, got {value}")
    if ratio not in get_args(Level):
        raise ValueError(f"ratio must be one of {get_args(Level)}, got {ratio!r}")
    contexts = vocabulary if autoregressive else 1
    band = bands(length, vocabulary, prompts, band_centre, band_half_width, centre_spread)
    segment = np.arange(length) * segments // length
    uniform = np.zeros((segments, contexts, vocabulary - 1))
    scale = np.arange(1, uniform.size + 1) ** (-spectrum_power / 2)
    start = np.mean([chain_objective(uniform, one, segment, kl)[0] for one in band])
    best = np.mean([best_objective(one, segment, contexts, vocabulary, kl) for one in band])
    env = ChainEnv(
        band=jax.device_put(np.float32(band)),
        segment=jax.device_put(np.int32(segment)),
        scale=jax.device_put(np.float32(scale / np.sqrt(np.mean(scale**2))).reshape(uniform.shape)),
        **{
            name: jax.device_put(np.float32(value))
            for name, value in [
                ("reward_noise", reward_noise),
                ("kl", kl),
                ("best", best),
                ("truncation", truncation),
                ("clip_low", clip_low),
                ("clip_high", clip_high),
            ]
        },
    )
    return Problem(
        name="chain",
        env=env,
        theta0=np.zeros(prompts * uniform.size, np.float32),
        forward=forward,
        noise=partial(noise, length=length, num_generations=num_generations),
        rollout=partial(rollout, num_generations=num_generations),
        gradient=partial(gradient, ratio=ratio),
        loss=loss,
        initial_loss=float(best - start),
    )
