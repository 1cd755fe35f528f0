"""Functions of the token chain over one lane: policy, exact outcome, rollouts, gradient.

The model is in `sim.problems.chain`. Shapes: P prompts, S segments, C contexts (V, or 1 where
tokens are independent), V tokens, H tokens a rollout, K rollouts.
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from sim.estimators import (
    clipped,
    geometric_ratio,
    importance_corrected,
    importance_ratio,
    sequence_ratio,
    truncated,
)
from sim.problems import Array, StreamKeys
from sim.streams import uniforms

Level = Literal["sequence", "token", "geometric", "none"]
RATIOS: dict[Level, Callable[[Array, Array], Array]] = {
    "sequence": sequence_ratio,
    "token": importance_ratio,
    "geometric": geometric_ratio,
    "none": lambda logp, behaviour_logp: jnp.ones_like(logp),
}


class ChainEnv(NamedTuple):
    """Arrays of a chain.

    band (P, H (V - 1) + 1), 1 for the sums that are rewarded; segment (H,) int32, that of each
    position; scale (S, C, V - 1); the rest are scalars, the last three infinite where unused.
    """

    band: Array
    segment: Array
    scale: Array
    reward_noise: Array
    kl: Array
    best: Array
    truncation: Array
    clip_low: Array
    clip_high: Array


class View(NamedTuple):
    """The policy at theta: logp and prob (P, S, C, V); success probability and KL, (P,) each."""

    logp: Array
    prob: Array
    success: Array
    divergence: Array


class Rollouts(NamedTuple):
    """Stored rollouts: prompt (K,) and tokens (K, H) int32, logp (K, H), advantage (K,)."""

    prompt: Array
    tokens: Array
    logp: Array
    advantage: Array


class Noise(NamedTuple):
    """Numbers that decide a rollout: start one a group and action (K, H) uniform, reward normal."""

    start: Array
    action: Array
    reward: Array


def forward(env: ChainEnv, theta: Array) -> View:
    """Return the policy table of theta (P S C (V - 1),) and what it earns."""
    shape = (len(env.band), *env.scale.shape)
    free = theta.reshape(shape) * env.scale
    logits = jnp.concatenate([jnp.zeros_like(free[..., :1]), free], axis=-1)
    logp = jax.nn.log_softmax(logits, axis=-1)
    prob = jnp.exp(logp)
    return View(logp, prob, *exact_outcome(env, logp, prob))


def exact_outcome(env: ChainEnv, logp: Array, prob: Array) -> tuple[Array, Array]:
    """Return the probability of the band and KL(pi || uniform) of each prompt, (P,) each.

    ``flow[c, s]``, the probability of context c and running sum s, is moved token by token.
    """
    prompts, _, contexts, vocabulary = prob.shape
    sums = env.band.shape[-1]
    per_context = jnp.sum(prob * (logp + math.log(vocabulary)), axis=-1)

    def step(flow: Array, segment: Array) -> tuple[Array, Array]:
        spent = jnp.sum(flow.sum(axis=-1) * per_context[:, segment], axis=-1)
        chosen = jnp.einsum("pcs,pcv->pvs", flow, prob[:, segment])
        moved = [jnp.pad(chosen[:, v], [(0, 0), (v, 0)])[:, :sums] for v in range(vocabulary)]
        after = jnp.stack(moved, axis=1)
        return (after if contexts > 1 else after.sum(axis=1, keepdims=True)), spent

    start = jnp.zeros((prompts, contexts, sums)).at[:, 0, 0].set(1.0)
    flow, spent = jax.lax.scan(step, start, env.segment)
    return jnp.sum(flow * env.band[:, None], axis=(1, 2)), spent.sum(axis=0)


def loss(env: ChainEnv, view: View) -> Array:
    """Return the gap ``best - J(theta)``, exact."""
    return env.best - jnp.mean(view.success - env.kl * view.divergence)


def noise(keys: StreamKeys, shape: tuple[int, ...], *, length: int, num_generations: int) -> Noise:
    """Return the random numbers of rollouts with leading axes ``shape``."""
    *lead, width = shape
    return Noise(
        start=uniforms(keys.start, (*lead, width // num_generations)),
        action=uniforms(keys.action, (*shape, length)),
        reward=jax.random.normal(keys.reward, shape),
    )


def cells(env: ChainEnv, view: View, prompt: Array, tokens: Array) -> Array:
    """Return the flat place of each token in the policy table, (K, H)."""
    _, segments, contexts, vocabulary = view.prob.shape
    before = jnp.pad(tokens[:, :-1], [(0, 0), (1, 0)]) if contexts > 1 else jnp.zeros_like(tokens)
    context = (prompt[:, None] * segments + env.segment) * contexts + before
    return context * vocabulary + tokens


def sampled_tokens(env: ChainEnv, view: View, prompt: Array, action: Array) -> Array:
    """Return tokens (K, H) int32 drawn from the policy in view.

    The token that would follow each context is found first, for all positions at once; walking
    the chain then only picks among them.
    """
    contexts = view.prob.shape[2]
    below = jnp.cumsum(view.prob, axis=-1)[..., :-1]
    table = below[:, env.segment] if len(below) == 1 else below[prompt][:, env.segment]
    following = jnp.sum(action[..., None, None] >= table, axis=-1, dtype=jnp.int32)
    if contexts == 1:
        return following[..., 0]

    def step(before: Array, choices: Array) -> tuple[Array, Array]:
        token = jnp.sum(choices * (before[:, None] == jnp.arange(contexts)), axis=-1)
        return token, token

    first = jnp.zeros(len(prompt), jnp.int32)
    return jax.lax.scan(step, first, jnp.moveaxis(following, 1, 0))[1].T


def rollout(env: ChainEnv, view: View, noise: Noise, *, num_generations: int) -> Rollouts:
    """Sample K rollouts from the policy in view."""
    prompt = (noise.start * len(env.band)).astype(jnp.int32)
    prompt = jnp.repeat(prompt, num_generations, axis=-1)
    tokens = sampled_tokens(env, view, prompt, noise.action)
    logp = view.logp.ravel()[cells(env, view, prompt, tokens)]
    reward = env.band[prompt, tokens.sum(axis=-1)] + env.reward_noise * noise.reward
    if num_generations == 1:
        baseline = view.success[prompt]
    else:
        groups = reward.reshape(-1, num_generations)
        others = groups.sum(axis=-1, keepdims=True) - groups
        baseline = (others / (num_generations - 1)).ravel()
    return Rollouts(prompt, tokens, logp, reward - baseline)


def gradient(
    env: ChainEnv, view: View, rollouts: Rollouts, age: Array, weight: Array, *, ratio: Level
) -> Array:
    """Return the corrected policy gradient, (P S C (V - 1),), summed over tokens.

    Every level gives the same gradient on fresh rollouts: no level divides by H.
    """
    place = cells(env, view, rollouts.prompt, rollouts.tokens)
    logp = view.logp.ravel()[place]
    cost = logp.sum(axis=-1) + logp.shape[-1] * math.log(view.prob.shape[-1])
    advantage = rollouts.advantage - env.kl * (cost - view.divergence[rollouts.prompt])
    corrected = truncated(RATIOS[ratio](logp, rollouts.logp), env.truncation)
    corrected = clipped(corrected, advantage[:, None], env.clip_low, env.clip_high)
    pull = weight[:, None] * importance_corrected(corrected, advantage[:, None])
    table = jnp.zeros(view.prob.size).at[place].add(jnp.broadcast_to(pull, place.shape))
    table = table.reshape(view.prob.shape)
    score = table - view.prob * table.sum(axis=-1, keepdims=True)
    return (score[..., 1:] * env.scale).ravel()
