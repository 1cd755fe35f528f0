"""Seconds to price 1,000 designs x 20 step sizes x 200 modes exactly, and 1e6 closed forms.

Run by hand: ``python -m benchmarks.dynamics_speed``.
"""

import time

import numpy as np

from theory.optimum import power_law_optimum
from theory.pricing import step_size_grid, updates_to_target
from theory.quadratic import initial_loss, power_law_quadratic
from theory.sampling import replay_design
from theory.staleness import OffsetPowerLaw

DESIGNS, RATES, MODES, CLOSED_FORMS = 1000, 20, 200, 1_000_000


def designs():
    """Random B, R and N with R <= B <= N, R dividing N or not, horizons up to 1,000."""
    rng = np.random.default_rng(0)
    batch = 2 ** rng.integers(3, 9, DESIGNS)
    fresh = np.maximum(batch // 2 ** rng.integers(0, 5, DESIGNS), 1)
    size = np.minimum(batch * 2 ** rng.integers(0, 7, DESIGNS) + fresh // 2, 1000 * fresh)
    return replay_design(batch, fresh, size, rng.random(DESIGNS) < 0.5)


def report(name, start, found):
    reached = np.isfinite(found)
    print(
        f"{name}: {time.perf_counter() - start:.2f} s, {found.size:,} prices, "
        f"{reached.mean():.0%} reached, median {np.median(found[reached]):.0f} updates"
    )


def main():
    for power, noise, profile in [
        (1.0, 0.3, 1.0),
        (1.0, 3.0, 1.0),
        (1.5, 0.3, 1.0),
        (1.5, 1.0, OffsetPowerLaw(0.9, 0.1, 0.5)),
    ]:
        problem = power_law_quadratic(MODES, power, noise)
        start = time.perf_counter()
        found = np.asarray(
            updates_to_target(
                problem,
                step_size_grid(problem, RATES),
                designs(),
                0.02 * initial_loss(problem),
                profile=profile,
            )
        )
        report(f"spectrum i^-{power}, noise {noise}, {profile}", start, found)
    rng = np.random.default_rng(1)
    mu, rho, alpha = rng.uniform(0.1, 100, CLOSED_FORMS), rng.random(CLOSED_FORMS), 0.1
    start = time.perf_counter()
    power_law_optimum(mu, rho, alpha)
    print(f"{CLOSED_FORMS:,} closed forms (P10): {time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    main()
