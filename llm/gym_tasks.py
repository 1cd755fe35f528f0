"""Tasks of reasoning-gym, each with its own verifier."""

import functools
from typing import Any

from llm.tasks import TRIES_PER_PROBLEM, Problem, Task, held_out

STREAM = 10**9


def gym_task(dataset: str, test_size: int = 500) -> Task:
    """Return a reasoning-gym data set as a task; rewards lie in [0, 1].

    Its problems are functions of (seed, index) already; the test side is told apart by a hash of
    the question, so that the two sides share no question.

    Args:
        dataset: the data set's name, for example ``"chain_sum"``.
        test_size: problems on the test side.

    Raises:
        ValueError: if there is no such data set, or it has too few different questions.
    """
    import reasoning_gym

    @functools.cache
    def opened(seed: int) -> Any:
        # The library keys problem i by seed + i: far-apart seeds keep the streams apart.
        return reasoning_gym.create_dataset(dataset, seed=seed * STREAM, size=STREAM)

    try:
        tests = opened(0)
    except ValueError as error:
        raise ValueError(f"reasoning-gym: {error}") from None

    def problem_of(entry: Any) -> Problem:
        return Problem(entry["question"], str(entry["answer"]), entry["question"], entry)

    def train_problem(seed: int, index: int) -> Problem:
        stream = opened(seed + 1)
        for place in range(TRIES_PER_PROBLEM):
            entry = stream[(index * TRIES_PER_PROBLEM + place) % STREAM]
            if not held_out(entry["question"]):
                return problem_of(entry)
        raise ValueError(f"reasoning-gym {dataset}: every question drawn is held out for the test")

    def verify(problem: Problem, completion: str) -> float:
        return float(tests.score_answer(completion.strip(), problem.facts))

    test: dict[str, Problem] = {}
    for index in range(TRIES_PER_PROBLEM * test_size):
        if held_out(tests[index]["question"]):
            test.setdefault(tests[index]["question"], problem_of(tests[index]))
        if len(test) == test_size:
            break
    else:
        raise ValueError(
            f"test_size = {test_size}: reasoning-gym {dataset} has only about {len(test)}"
        )
    return Task(f"gym:{dataset}", train_problem, tuple(test.values()), verify, "")
