"""Tabular Markov decision processes: gridworlds with walls and random Garnets.

From state s action a leads to one of b successors ``successor[s, a, k]`` with probability
``probability[s, a, k]`` and mean reward ``reward[s, a, k]``. In a state that is not alive (the
goal) the episode is over: it stays there and earns nothing. A time limit is not a property of the
process: a path cut by one ends in a state that is still alive.
Sizes: S states, A actions, b successors; a cell is a (state, action) pair.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
WALL, FREE, START, GOAL = "#.SG"
ROOMS = (
    "..#...",
    "..#.#.",
    "....#.",
    "###.#G",
    "......",
)


@dataclass(frozen=True)
class MDP:
    """A process in float64: successor, probability, reward (S, A, b); start, alive (S,)."""

    name: str
    successor: np.ndarray
    probability: np.ndarray
    reward: np.ndarray
    start: np.ndarray
    alive: np.ndarray

    @property
    def mean_reward(self) -> np.ndarray:
        """Expected reward of every cell, (S, A)."""
        return np.sum(self.probability * self.reward, axis=-1)

    @property
    def transition(self) -> np.ndarray:
        """Probability of every next state, (S, A, S)."""
        states, actions, _ = self.successor.shape
        dense = np.zeros((states, actions, states))
        s, a, _ = np.indices(self.successor.shape)
        np.add.at(dense, (s, a, self.successor), self.probability)
        return dense


def power_law(count: int, power: float) -> np.ndarray:
    """Return the probabilities proportional to ``rank^-power``, (count,)."""
    weight = np.arange(1, count + 1) ** -float(power)
    return weight / weight.sum()


def random_layout(*, size: int = 6, walls: float = 0.2, problem_seed: int = 0) -> tuple[str, ...]:
    """Return a square map with a goal in a corner; a cell cut off from the goal is a wall too.

    Args:
        size: cells of a side, >= 2.
        walls: fraction of the other cells that are walls, in [0, 1); the goal keeps a neighbour.
        problem_seed: seed of the walls, >= 0.

    Raises:
        ValueError: for a value outside the ranges above.

    >>> random_layout(size=3, walls=0.2)
    ('...', '..#', '..G')
    """
    if size < 2:
        raise ValueError(f"size must be an integer >= 2, got {size}")
    if not 0 <= walls < 1:
        raise ValueError(f"walls must be in [0, 1), got {walls}")
    if problem_seed < 0:
        raise ValueError(f"problem_seed must be an integer >= 0, got {problem_seed}")
    rng = np.random.default_rng(problem_seed)
    cells = [(r, c) for r in range(size) for c in range(size)][:-2]
    built = rng.choice(len(cells), size=round(walls * len(cells)), replace=False)
    blocked = {cells[i] for i in built}
    goal = (size - 1, size - 1)
    open_cells = {(r, c) for r in range(size) for c in range(size)} - blocked
    linked = connected(open_cells, goal)
    marks = {cell: FREE for cell in linked} | {goal: GOAL}
    return tuple("".join(marks.get((r, c), WALL) for c in range(size)) for r in range(size))


def connected(cells: set[tuple[int, int]], origin: tuple[int, int]) -> set[tuple[int, int]]:
    """Return the cells that can be walked to from origin, itself included."""
    found, frontier = {origin}, [origin]
    while frontier:
        row, column = frontier.pop()
        near = {(row + down, column + right) for down, right in MOVES} & cells - found
        found |= near
        frontier.extend(near)
    return found


def checked_layout(layout: Sequence[str]) -> dict[tuple[int, int], str]:
    """Return the mark of every cell that is not a wall, by (row, column).

    Raises:
        ValueError: unless it is a rectangle of the four marks, one goal, every cell linked to it.
    """
    if len({len(row) for row in layout}) != 1:
        raise ValueError(f"layout must have rows of one length, got {tuple(layout)}")
    strange = set("".join(layout)) - {WALL, FREE, START, GOAL}
    if strange:
        raise ValueError(f"layout may hold only # . S G, got {sorted(strange)}")
    marks = {
        (r, c): mark for r, row in enumerate(layout) for c, mark in enumerate(row) if mark != WALL
    }
    goals = [cell for cell, mark in marks.items() if mark == GOAL]
    if len(goals) != 1 or len(marks) < 2:
        raise ValueError(f"layout must have one G and a cell to start from, got {tuple(layout)}")
    cut_off = sorted(set(marks) - connected(set(marks), goals[0]))
    if cut_off:
        raise ValueError(f"every cell of layout must be linked to G, got {cut_off} cut off")
    return marks


def gridworld(
    *,
    layout: Sequence[str] = ROOMS,
    slip: float = 0.0,
    goal_reward: float = 1.0,
    step_reward: float = 0.0,
    visit_power: float = 0.0,
    problem_seed: int = 0,
) -> MDP:
    """Build a gridworld: moves up, right, down, left; into a wall or the edge one stays.

    Args:
        layout: rows of ``#`` wall, ``.`` free, ``S`` start, ``G`` goal (one); with no S every
            free cell is a start.
        slip: probability that a uniformly random move replaces the chosen one, in [0, 1].
        goal_reward: reward on reaching the goal, finite; the episode is then over.
        step_reward: reward of every move, finite; the move that reaches the goal included.
        visit_power: p >= 0; starts are drawn with probability ``rank^-p`` in an order drawn from
            problem_seed. The larger, the rarer some states: worse conditioning.
        problem_seed: seed of that order, >= 0.

    Raises:
        ValueError: for a value outside the ranges above, or a goal that some cell cannot reach.

    >>> gridworld(layout=["S.G"]).successor[:, 1, 0]
    array([1, 2, 2])
    """
    if not 0 <= slip <= 1:
        raise ValueError(f"slip must be in [0, 1], got {slip}")
    for name, value in [("goal_reward", goal_reward), ("step_reward", step_reward)]:
        if not np.isfinite(value):
            raise ValueError(f"{name} must be finite, got {value}")
    check_skew(visit_power, problem_seed)
    marks = checked_layout(layout)
    number = {cell: i for i, cell in enumerate(marks)}
    moved = np.array(
        [[number.get((r + down, c + right), i) for down, right in MOVES]
         for (r, c), i in number.items()]
    )  # fmt: skip
    alive = np.array([mark != GOAL for mark in marks.values()])
    moved[~alive] = np.flatnonzero(~alive)[:, None]
    if slip:
        successor = np.repeat(moved[:, None, :], len(MOVES), axis=1)
        probability = np.eye(len(MOVES)) * (1 - slip) + slip / len(MOVES)
        probability = np.broadcast_to(probability, successor.shape)
    else:
        successor, probability = moved[..., None], np.ones((*moved.shape, 1))
    reward = np.where(alive[successor], 0.0, goal_reward) + step_reward
    origins = [i for i, mark in enumerate(marks.values()) if mark == START] or list(
        np.flatnonzero(alive)
    )
    start = np.zeros(len(marks))
    order = np.random.default_rng(problem_seed).permutation(origins)
    start[order] = power_law(len(origins), visit_power)
    return MDP(
        name="gridworld",
        successor=successor,
        probability=probability,
        reward=reward * alive[:, None, None],
        start=start,
        alive=alive,
    )


def garnet(
    *,
    states: int = 16,
    actions: int = 4,
    successors: int = 3,
    reward_spread: float = 1.0,
    visit_power: float = 0.0,
    problem_seed: int = 0,
) -> MDP:
    """Build a Garnet: random successors with random probabilities, random mean rewards, no end.

    Args:
        states: S, >= 2.
        actions: A, >= 2.
        successors: distinct successors of a cell b, in [1, S]; 1 is deterministic.
        reward_spread: mean rewards of cells are uniform within +- reward_spread / 2, > 0.
        visit_power: p >= 0; starts and successors are drawn with probability ``rank^-p``. The
            larger, the rarer some states: worse conditioning.
        problem_seed: seed of all of it, >= 0.

    Raises:
        ValueError: for a value outside the ranges above.
    """
    for name, value, least in [("states", states, 2), ("actions", actions, 2)]:
        if value < least:
            raise ValueError(f"{name} must be an integer >= {least}, got {value}")
    if not 1 <= successors <= states:
        raise ValueError(f"successors must be in [1, states = {states}], got {successors}")
    if not (np.isfinite(reward_spread) and reward_spread > 0):
        raise ValueError(f"reward_spread must be finite and > 0, got {reward_spread}")
    check_skew(visit_power, problem_seed)
    rng = np.random.default_rng(problem_seed)
    start = power_law(states, visit_power)
    shape = (states, actions, successors)
    cells = range(states * actions)
    successor = np.array([rng.choice(states, successors, replace=False, p=start) for _ in cells])
    cuts = np.sort(rng.random((states, actions, successors - 1)), axis=-1)
    reward = reward_spread * (rng.random((states, actions, 1)) - 0.5)
    return MDP(
        name="garnet",
        successor=successor.reshape(shape),
        probability=np.diff(cuts, axis=-1, prepend=0.0, append=1.0),
        reward=np.broadcast_to(reward, shape),
        start=start,
        alive=np.ones(states, bool),
    )


def check_skew(visit_power: float, problem_seed: int) -> None:
    """Raise ValueError unless both are in the ranges of `gridworld` and `garnet`."""
    if not (np.isfinite(visit_power) and visit_power >= 0):
        raise ValueError(f"visit_power must be finite and >= 0, got {visit_power}")
    if problem_seed < 0:
        raise ValueError(f"problem_seed must be an integer >= 0, got {problem_seed}")
