"""Real maths problems from a file or folder on this machine, judged by math-verify.

Nothing is downloaded: the path is a JSONL file or a data-set folder saved by Hugging Face
``datasets`` (``save_to_disk``). Rows whose question is held out by ``llm.tasks.held_out`` are the
test side, unless a second path with test rows is given.
"""

import functools
import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from llm.tasks import Problem, Task, held_out

QUESTION_FIELDS = ("problem", "question", "prompt")
ANSWER_FIELDS = ("answer", "solution")
VERIFY_SECONDS = 5


def data_task(path: Path, test_path: Path | None = None, test_size: int = 500) -> Task:
    """Return a task of the rows at a path, in an order that the training seed shuffles.

    Args:
        path: JSONL file or saved data-set folder; rows with one of QUESTION_FIELDS and one of
            ANSWER_FIELDS, the answer as text that math-verify reads.
        test_path: the same for the test side; None holds out a share of the rows.
        test_size: at most so many test problems.

    Raises:
        ValueError: if there is no row for either side, or a row lacks a field.
        OSError: if a path cannot be read.
    """
    problems = [problem_of(row, f"{path}, row {n}") for n, row in enumerate(rows_at(path), 1)]
    if test_path is None:
        train = [problem for problem in problems if not held_out(problem.key)]
        test = [problem for problem in problems if held_out(problem.key)]
    else:
        rows = enumerate(rows_at(test_path), 1)
        test = [problem_of(row, f"{test_path}, row {n}") for n, row in rows]
        seen = {problem.key for problem in test}
        train = [problem for problem in problems if problem.key not in seen]
    if not train or not test:
        raise ValueError(f"{path}: {len(train)} training and {len(test)} test rows, both need >= 1")

    @functools.lru_cache(maxsize=2)
    def order(seed: int, epoch: int) -> np.ndarray:
        return np.random.default_rng([seed, epoch]).permutation(len(train))

    def train_problem(seed: int, index: int) -> Problem:
        epoch, place = divmod(index, len(train))
        return train[order(seed, epoch)[place]]

    return Task(f"data:{path.name}", train_problem, tuple(test[:test_size]), maths_reward, "")


def rows_at(path: Path) -> Iterable[Mapping[str, Any]]:
    """Return the rows of a JSONL file or of a saved data-set folder."""
    if path.is_dir():
        import datasets

        try:
            found: Any = datasets.load_from_disk(str(path))
        except FileNotFoundError as error:
            raise ValueError(f"{path} is not a saved data set: {error}") from None
        if isinstance(found, datasets.DatasetDict):
            names = ", ".join(map(str, found))
            raise ValueError(f"{path} holds the splits {names}: give the folder of one of them")
        return list(found)
    rows = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                rows.append(json_row(line, f"{path}, line {number}"))
    return rows


def json_row(line: str, place: str) -> Mapping[str, Any]:
    """Return one line of JSONL as a mapping, or say where it is not one."""
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{place}: not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ValueError(f"{place}: expected an object, got {type(row).__name__}")
    return row


def problem_of(row: Mapping[str, Any], place: str) -> Problem:
    """Return the problem of a row."""
    question = next((row[name] for name in QUESTION_FIELDS if row.get(name)), None)
    answer = next((row[name] for name in ANSWER_FIELDS if row.get(name) is not None), None)
    if question is None or answer is None:
        wanted = f"one of {'/'.join(QUESTION_FIELDS)} and one of {'/'.join(ANSWER_FIELDS)}"
        raise ValueError(f"{place}: needs {wanted}, has {', '.join(map(str, row))}")
    return Problem(str(question), str(answer), str(question))


def maths_reward(problem: Problem, completion: str) -> float:
    """Return 1 if math-verify finds the completion's answer equal to the problem's.

    It must run in the main thread: math-verify bounds its time, VERIFY_SECONDS, by a signal.
    """
    from math_verify import parse, verify

    # It logs whatever it cannot parse, which a policy produces all the time.
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    gold = parse(f"${problem.answer}$", parsing_timeout=VERIFY_SECONDS) or parse(
        problem.answer, parsing_timeout=VERIFY_SECONDS
    )
    if not gold:
        raise ValueError(f"math-verify cannot read the answer {problem.answer!r}")
    found = parse(completion, parsing_timeout=VERIFY_SECONDS)
    return float(bool(found) and verify(gold, found, timeout_seconds=VERIFY_SECONDS))
