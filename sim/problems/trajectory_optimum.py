"""Best objective of the trajectory problem: exact values in float64, searched by L-BFGS-B."""

from typing import NamedTuple

import numpy as np


class Objective(NamedTuple):
    """The exact objective in float64, for the search of the best policy; arrays as in the env."""

    transition: np.ndarray
    mean_reward: np.ndarray
    start: np.ndarray
    alive: np.ndarray
    horizon: int
    discount: float
    kl: float
    features: np.ndarray | None

    def __call__(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """Return J at theta (F,) or (S A,), and its gradient of the same shape.

        ``dJ / dlogits[s, a] = pi(a|s) sum_t gamma^t P(s_t = s) (Q_t(s, a) - V_t(s))``.
        """
        states, actions = self.mean_reward.shape
        logits = theta if self.features is None else self.features @ theta
        logits = logits.reshape(states, actions)
        logp = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
        prob = np.exp(logp)
        gain = self.mean_reward - self.kl * (logp + np.log(actions)) * self.alive[:, None]
        now = np.sum(prob * gain, axis=-1)
        onward = self.discount * np.einsum("sa,san->sn", prob, self.transition)
        value = np.zeros((self.horizon + 1, states))
        for t in reversed(range(self.horizon)):
            value[t] = now + onward @ value[t + 1]
        visited = np.empty((self.horizon, states))
        visited[0] = self.start
        for t in range(1, self.horizon):
            visited[t] = visited[t - 1] @ onward
        # The sum over t is taken before next states are: following[s] = sum_t visited_t(s) V_t+1.
        following = visited.T @ value[1:]
        advantage = visited.sum(axis=0)[:, None] * gain
        advantage += self.discount * np.einsum("san,sn->sa", self.transition, following)
        advantage -= np.sum(visited * value[:-1], axis=0)[:, None]
        score = (prob * advantage).ravel()
        slope = score if self.features is None else score @ self.features
        return float(self.start @ value[0]), slope


def best_objective(objective: Objective, dim: int) -> float:
    """Return the largest J found by `searched` from theta = 0 and from random thetas.

    The best policy that is the same at every step has no closed form, may have to be random, and
    J can have several maxima: sixteen random starts are searched for a while, the best to the end.
    """
    starts = 3 * np.random.default_rng(0).standard_normal((16, dim))
    short = [searched(objective, start, iterations=200) for start in starts]
    most = max(short, key=lambda found: found[0])
    return max(searched(objective, start)[0] for start in (np.zeros(dim), most[1]))


def searched(
    objective: Objective, start: np.ndarray, iterations: int = 5_000
) -> tuple[float, np.ndarray]:
    """Return the J and the theta that L-BFGS-B reaches from a start, (F,) or (S A,).

    With kl = 0 the supremum may lie at infinity; parameters are then searched within +-50.
    """
    from scipy.optimize import minimize

    def negative(theta):
        value, slope = objective(theta)
        return -value, -slope

    found = minimize(
        negative,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=None if objective.kl > 0 else [(-50.0, 50.0)] * len(start),
        options={"maxiter": iterations, "maxfun": 20_000, "ftol": 1e-12, "gtol": 1e-8},
    )
    return -float(found.fun), found.x
