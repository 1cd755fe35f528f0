"""The simulator as a study's objective: the cost it reports is that of the lane it runs."""

import math

import pytest

from sim.lanes import run_lanes
from sim.objective import cost_to_target, prepared
from sim.train import Lane

ENVIRONMENT = "quadratic-6d0ee54d"


class Watch:
    def __init__(self, max_cost):
        self.max_cost, self.seen, self.notes = max_cost, [], []

    def __call__(self, cost, score):
        self.seen.append((cost, score))

    def note(self, text):
        self.notes.append(text)


def point(**changes):
    chosen, *_ = prepared(ENVIRONMENT)
    size = chosen.batch_size
    return {
        "batch_size": size,
        "rollouts_per_update": size // 2,
        "buffer_size": 2 * size,
        "learning_rate": 2.0 ** (chosen.step_index / 2),
        "draw": "without",
        "loss": "reinforce",
        "num_generations": chosen.num_generations,
        **changes,
    }


def test_cost_is_that_of_the_lane_with_the_growing_fill():
    chosen, problem, allocation, runner = prepared(ENVIRONMENT)
    one, watch = point(), Watch(1e7)
    cost_to_target(one, 3, watch, 5.0, ENVIRONMENT)
    lane = Lane(
        one["batch_size"], one["rollouts_per_update"], one["buffer_size"], one["learning_rate"],
        False, True, chosen.target * problem.initial_loss, 10**5, 3, 0,
    )  # fmt: skip
    [[end]] = list(run_lanes(problem, [lane], allocation, workers=1, runner=runner))
    assert end.status == "reached"
    # A growing buffer starts once a batch is there: two updates' worth of new rollouts here.
    generated = one["batch_size"] + (end.updates - 1) * one["rollouts_per_update"]
    expected = end.updates * one["batch_size"] + 5.0 * generated
    assert watch.seen == [(0.0, 0.0), (pytest.approx(expected), 1.0)]
    assert watch.notes == [ENVIRONMENT]


def test_a_run_ends_at_the_compute_it_may_cost_below_the_target():
    watch = Watch(2000.0)
    cost_to_target(point(), 3, watch, 5.0, ENVIRONMENT)
    cost, score = watch.seen[-1]
    assert score < 1
    assert 2000 <= cost < 2000 + 5.0 * point()["buffer_size"]
    assert math.isfinite(score)


@pytest.mark.parametrize(
    ("changes", "environment", "message"),
    [
        ({"loss": "grpo"}, ENVIRONMENT, "the simulator runs loss reinforce"),
        ({"draw": "unused_first"}, ENVIRONMENT, "drawn with or without, got reinforce and unused"),
        ({"num_generations": 7}, ENVIRONMENT, "num_generations of quadratic-6d0ee54d is "),
        ({}, "nowhere", "environment must be an id of sim/validation/suite.json: 'nowhere'"),
    ],
)
def test_refused(changes, environment, message):
    with pytest.raises(ValueError, match=message):
        cost_to_target(point(**changes), 0, Watch(1e6), 5.0, environment)
