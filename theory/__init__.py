"""Closed forms: does replay pay, and with which replay ratio, buffer and GPU split?

Everything starts from mu = cost_gen / cost_train, what a rollout costs to generate over what it
costs to train on once. ``optimal_replay_ratio`` answers with one number, ``optimal_design`` with a
design in whole rollouts, a verdict and its warnings. The formulas, their ids and sources are
listed in docs/equations.md. Importing this room needs NumPy only.

>>> round(optimal_replay_ratio(5.28, 1), 6)
1.957669
"""

from theory.design import Design
from theory.plan import optimal_design
from theory.reuse import optimal_replay_ratio

__all__ = ["Design", "optimal_design", "optimal_replay_ratio"]
