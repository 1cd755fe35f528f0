"""Best objective of the token chain, by dynamic programming and BFGS in float64.

One band alone: prompts share no parameter. With the logits as parameters the scales of the
features do not matter. The objective is not concave, so the search starts from several points.
"""

import numpy as np

STARTS = 8


def shifted(tail: np.ndarray, vocabulary: int) -> np.ndarray:
    """Return ``tail[v, s + v]``, the value after token v at running sum s, 0 beyond the end."""
    width = tail.shape[-1]
    ahead = np.zeros((vocabulary, width))
    for v in range(vocabulary):
        ahead[v, : width - v] = tail[min(v, len(tail) - 1), v:]
    return ahead


def chain_objective(
    logits: np.ndarray, band: np.ndarray, segment: np.ndarray, kl: float
) -> tuple[float, np.ndarray]:
    """Return the objective of one prompt and its gradient, exact.

    ``W_h(c, s) = sum_v pi(v|c) (W_{h+1}(v, s + v) - kl log(pi(v|c) V))`` with ``W_H = band`` is
    the value still to come in context c at running sum s; the objective is ``W_0(0, 0)``.

    Args:
        logits: of every token but token 0, whose logit is 0, (S, C, V - 1); C is V or 1.
        band: reward of each sum, (H (V - 1) + 1,).
        segment: segment of each position, (H,).
        kl: weight of the KL term of the whole sequence, >= 0.

    Returns:
        Objective, and its gradient (S, C, V - 1).
    """
    _, contexts, others = logits.shape
    vocabulary = others + 1
    full = np.concatenate([np.zeros_like(logits[..., :1]), logits], axis=-1)
    logp = full - np.logaddexp.reduce(full, axis=-1, keepdims=True)
    prob, cost = np.exp(logp), kl * (logp + np.log(vocabulary))
    value = np.broadcast_to(band, (contexts, len(band)))
    gains = []
    for part in segment[::-1]:
        ahead = shifted(value, vocabulary)[None] - cost[part][..., None]
        value = np.einsum("cv,cvs->cs", prob[part], ahead)
        gains.append(ahead - value[:, None])
    objective = value[0, 0]
    flow = np.zeros_like(value)
    flow[0, 0] = 1.0
    slope = np.zeros_like(full)
    for part, gain in zip(segment, gains[::-1], strict=True):
        slope[part] += prob[part] * np.einsum("cs,cvs->cv", flow, gain)
        moved = prob[part].T @ flow
        for v in range(1, vocabulary):
            moved[v] = np.concatenate([np.zeros(v), moved[v, :-v]])
        flow = moved if contexts > 1 else moved.sum(axis=0, keepdims=True)
    return float(objective), slope[..., 1:]


def best_objective(
    band: np.ndarray, segment: np.ndarray, contexts: int, vocabulary: int, kl: float
) -> float:
    """Return the largest objective of one prompt that BFGS reaches from several starts.

    With kl = 0 the supremum may lie at infinity; the search then ends where the slope vanishes.

    Args:
        band: reward of each sum, (H (V - 1) + 1,).
        segment: segment of each position, (H,).
        contexts: C, V or 1.
        vocabulary: V.
        kl: weight of the KL term, >= 0.

    Returns:
        The objective reached.
    """
    from scipy.optimize import minimize

    shape = (segment[-1] + 1, contexts, vocabulary - 1)

    def negative(logits):
        value, slope = chain_objective(logits.reshape(shape), band, segment, kl)
        return -value, -slope.ravel()

    def search(start, tolerance):
        return minimize(negative, start, jac=True, method="BFGS", options={"gtol": tolerance})

    size = int(np.prod(shape))
    rng = np.random.default_rng(0)
    starts = [np.zeros(size), *rng.standard_normal((STARTS - 1, size))]
    found = min((search(start, 1e-5) for start in starts), key=lambda end: end.fun)
    return float(-search(found.x, 1e-9).fun)
