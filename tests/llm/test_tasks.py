"""Tasks: exact verifiers, disjoint sides, streams that are functions of (seed, index)."""

import itertools
import json
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

from llm.data_tasks import data_task, maths_reward
from llm.gym_tasks import gym_task
from llm.tasks import (
    Problem,
    addition,
    countdown,
    expression_reward,
    held_out,
    last_integer,
    modular,
    reachable,
)

MADE = {
    "addition": addition(2, 300),
    "addition of 5": addition(5, 300),
    "modular": modular(97, 300),
    "countdown": countdown(test_size=300),
    "words": addition(2, 300, "words"),
    "gym": gym_task("chain_sum", 50),
}


@pytest.mark.parametrize("task", MADE.values(), ids=MADE)
def test_sides_share_no_problem(task):
    test = {problem.key for problem in task.test_problems}
    train = {task.train_problem(seed, index).key for seed in (0, 1) for index in range(1000)}
    assert len(test) == len(task.test_problems)
    assert len(train) > 500
    assert not test & train
    assert all(held_out(key) for key in test)


@pytest.mark.parametrize("task", MADE.values(), ids=MADE)
def test_own_answers_are_right_and_others_wrong(task):
    problems = [*task.test_problems[:50], *(task.train_problem(3, i) for i in range(50))]
    for problem in problems:
        assert task.verify(problem, problem.answer) == 1
        assert task.verify(problem, f" {problem.answer} ") == 1
        assert task.verify(problem, "") < 1
        assert task.verify(problem, problem.answer + "1") < 1


@pytest.mark.parametrize("task", MADE.values(), ids=MADE)
def test_stream_is_a_function_of_seed_and_index(task):
    first = [task.train_problem(7, index).key for index in range(30)]
    assert [task.train_problem(7, index).key for index in reversed(range(30))] == first[::-1]
    assert [task.train_problem(8, index).key for index in range(30)] != first


@pytest.mark.parametrize("name", ["addition", "addition of 5", "modular", "countdown"])
def test_alphabet_covers_every_character(name):
    task = MADE[name]
    problems = [*task.test_problems, *(task.train_problem(0, i) for i in range(300))]
    used = set().union(*(problem.prompt + problem.answer for problem in problems))
    assert used == set(task.characters)


def test_answers_are_the_arithmetic_of_the_prompt():
    for index in range(200):
        left, right = MADE["addition"].train_problem(0, index).prompt.rstrip("=").split("+")
        assert MADE["addition"].train_problem(0, index).answer == str(int(left) + int(right))
        problem = MADE["modular"].train_problem(0, index)
        operation, _, modulus = problem.prompt.rstrip("=").partition("%")
        # Python's own evaluation, after leading zeros: the numbers are not padded here.
        assert problem.answer == str(eval(operation) % int(modulus))


def test_held_out_share():
    share = np.mean([held_out(f"key {n}") for n in range(20_000)])
    assert abs(share - 0.2) < 4 * np.sqrt(0.2 * 0.8 / 20_000)


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("2*3+4", 1),
        ("4+3*2", 1),
        ("(4)+(3*2)", 1),
        ("2*3", 0),  # a number unused
        ("2*3+4+0", 0),
        ("2+2+3+3", 0),  # numbers twice
        ("2*(3+4", 0),
        ("2**3+4-2", 0),
        ("24/3+2", 0),
        ("10", 0),
        ("-2*3+4", 0),
        ("3//2+4", 0),
        ("2*3+4=10", 0),
        ("2*3+4 # easy", 0),
        ("2*3+4" + "+0" * 200, 0),
        ("9" * 190, 0),
        ("4/(3-3)", 0),
        ("02*3+4", 0),
        ("(" * 90 + "4" + ")" * 90, 0),
        ("2(3)+4", 0),
        ("", 0),
    ],
)
def test_countdown_verifier(text, reward):
    assert expression_reward(Problem("", "", "", ((3, 4, 2), 10)), text) == reward


def test_countdown_agrees_with_python_fractions():
    rng = np.random.default_rng(0)
    for _ in range(300):
        given = [int(n) for n in rng.integers(1, 10, size=4)]
        value, text = reachable(given, rng)
        wrapped = "".join(
            f"Fraction({''.join(run)})" if digit else "".join(run)
            for digit, run in itertools.groupby(text, str.isdigit)
        )
        assert eval(wrapped, {"Fraction": Fraction}) == value, text


@pytest.mark.parametrize(
    ("text", "reward"),
    [("5", 1), ("It is 5", 1), ("2 + 3 = 5.", 1), ("5, no: 6", 0), ("five", 0), ("-5", 0)],
)
def test_last_integer(text, reward):
    assert last_integer(Problem("2+3", "5", ""), text) == reward
    assert last_integer(Problem("", "1234", ""), "1,234") == 1


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: addition(0), "digits = 0"),
        (lambda: addition(1, 500), "test_size = 500"),
        (lambda: modular(1), "modulus = 1"),
        (lambda: countdown(numbers=1), "numbers = 1"),
        (lambda: countdown(target=0), "target = 0"),
        (lambda: gym_task("no_such_set"), "no_such_set"),
    ],
)
def test_refusals(make, word):
    with pytest.raises(ValueError, match=word):
        make()


ROWS = [{"problem": f"What is {n} plus {n}?", "answer": str(2 * n)} for n in range(60)]


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_jsonl_rows_are_split_or_given(tmp_path):
    path = written(tmp_path / "rows.jsonl", ROWS)
    task = data_task(path)
    epoch = [task.train_problem(0, i).key for i in range(60 - len(task.test_problems))]
    assert len(set(epoch)) == len(epoch)
    assert {*epoch, *(p.key for p in task.test_problems)} == {row["problem"] for row in ROWS}
    test = written(tmp_path / "test.jsonl", ROWS[:10])
    given = data_task(path, test, test_size=5)
    assert [p.key for p in given.test_problems] == [row["problem"] for row in ROWS[:5]]
    trained = {given.train_problem(1, i).key for i in range(200)}
    assert trained == {row["problem"] for row in ROWS[10:]}


def test_saved_data_set_folder_gives_the_same_rows(tmp_path):
    # In a process of its own: its libraries warn at import.
    script = (
        "import datasets, sys; from pathlib import Path; from llm.data_tasks import rows_at\n"
        f"rows = {ROWS!r}\n"
        f"datasets.Dataset.from_list(rows).save_to_disk({str(tmp_path / 'saved')!r})\n"
        f"assert rows_at(Path({str(tmp_path / 'saved')!r})) == rows\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("not json\n", "line 1: not JSON"),
        ('{"problem": "a", "answer": "1"}\n[1]\n', "line 2: expected an object"),
        ('{"problem": "a"}\n', "row 1: needs one of problem"),
        ("", "0 training"),
    ],
)
def test_bad_rows(tmp_path, text, word):
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=word):
        data_task(path)


def test_missing_file(tmp_path):
    with pytest.raises(OSError, match="none"):
        data_task(tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("answer", "completion", "reward"),
    [
        (r"\frac{1}{2}", r"so it is $\boxed{0.5}$", 1),
        (r"\frac{1}{2}", r"so it is $\boxed{\frac{2}{3}}$", 0),
        ("12", "The answer is 12.", 1),
        ("12", "I do not know", 0),
        ("x^2+1", r"$1+x^2$", 1),
    ],
)
def test_maths_reward(answer, completion, reward):
    assert maths_reward(Problem("", answer, ""), completion) == reward
