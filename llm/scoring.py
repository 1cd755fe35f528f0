"""Log-probabilities of responses under the trainer's policy, in one forward pass.

Rollouts of a group share their prompt in training as they did in generation: it runs once, and
every response sees it and itself through an attention mask. Such trees of one prompt and its
responses are packed into rows of nearly equal length; what little padding is left is reported.
Where every row is one sequence of the same length, the model gets no mask at all.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

# Attention over a row grows with its square: up to here a shared prompt saves more than it costs.
LONGEST_TREE = 1024


class Packed(NamedTuple):
    """B rollouts as rows of trees, and where to read each response token's probability.

    ids, positions: tokens and their places in their sequence, int64 (rows, L). visible: whether the
    token of the third axis is seen by that of the second, bool (rows, 1, L, L), or None where each
    row is one whole sequence. columns: places of L whose logits are read, int64 (C,). source: for
    each response token, its place in (rows, C) flattened, int64 (n,). tokens: response tokens, one
    response after another, int64 (n,). mask: False behind a response's end, bool (B, T); its n
    true places take the tokens in order. filled: tokens in the rows, padding left out.
    """

    ids: Tensor
    positions: Tensor
    visible: Tensor | None
    columns: Tensor
    source: Tensor
    tokens: Tensor
    mask: Tensor
    filled: int


def trees(prompts: Sequence[np.ndarray], responses: Sequence[np.ndarray]) -> list[list[int]]:
    """Return the indices of rollouts in groups with one prompt, split where they get long.

    >>> a, b, r = np.array([1, 2]), np.array([3]), np.array([7, 8, 9])
    >>> trees([a, b, a], [r, r, r])
    [[0, 2], [1]]
    """
    open_tree: dict[bytes, list[int]] = {}
    length: dict[bytes, int] = {}
    found: list[list[int]] = []
    for index, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        key, more = prompt.tobytes(), len(response) - 1
        if key not in open_tree or length[key] + more > LONGEST_TREE:
            open_tree[key], length[key] = [], len(prompt)
            found.append(open_tree[key])
        open_tree[key].append(index)
        length[key] += more
    return found


def tree_length(
    tree: Sequence[int], prompts: Sequence[np.ndarray], responses: Sequence[np.ndarray]
) -> int:
    """Return the tokens that the model reads for a tree; the last of a response is not read."""
    return len(prompts[tree[0]]) + sum(len(responses[i]) - 1 for i in tree)


def packed(
    prompts: Sequence[np.ndarray],
    responses: Sequence[np.ndarray],
    pad_token: int,
    device: torch.device,
) -> Packed:
    """Return B prompts and their responses, int32 (T,) each and not empty, as rows of trees."""
    branches = trees(prompts, responses)
    lengths = [tree_length(tree, prompts, responses) for tree in branches]
    rows = bins(lengths, max(lengths))
    shape = (len(rows), max(lengths))
    ids = np.full(shape, pad_token, dtype=np.int64)
    positions = np.zeros(shape, dtype=np.int64)
    tree_of = np.full(shape, -1)
    response_of = np.full(shape, -1)
    places: list[np.ndarray] = [np.empty(0)] * len(prompts)
    for row, members in enumerate(rows):
        start = 0
        for number in members:
            tree = branches[number]
            prompt = prompts[tree[0]]
            end = start + len(prompt)
            ids[row, start:end] = prompt
            positions[row, start:end] = np.arange(len(prompt))
            tree_of[row, start : start + lengths[number]] = number
            last = row * shape[1] + end - 1
            for i in tree:
                more = len(responses[i]) - 1
                ids[row, end : end + more] = responses[i][:-1]
                positions[row, end : end + more] = np.arange(len(prompt), len(prompt) + more)
                response_of[row, end : end + more] = i
                first = row * shape[1] + end
                places[i] = np.append(last, np.arange(first, first + more))
                end += more
            start = end
    whole = len(rows) == len(prompts) and bool((tree_of >= 0).all())
    columns, source = logit_places(np.concatenate(places), shape[1])
    counts = np.array([len(response) for response in responses])
    return Packed(
        ids=torch.from_numpy(ids).to(device),
        positions=torch.from_numpy(positions).to(device),
        visible=None if whole else visible_tokens(tree_of, response_of, device),
        columns=torch.from_numpy(columns).to(device),
        source=torch.from_numpy(source).to(device),
        tokens=torch.from_numpy(np.concatenate(responses).astype(np.int64)).to(device),
        mask=torch.from_numpy(np.arange(counts.max()) < counts[:, None]).to(device),
        filled=sum(lengths),
    )


def bins(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Return the indices of items in bins that hold ``capacity``, longest first into the first fit.

    >>> bins([2, 5, 3], 5)
    [[1], [2, 0]]
    """
    found: list[list[int]] = []
    room: list[int] = []
    for item in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        place = next((n for n, free in enumerate(room) if free >= lengths[item]), None)
        if place is None:
            found.append([])
            room.append(capacity)
            place = len(room) - 1
        found[place].append(item)
        room[place] -= lengths[item]
    return found


def logit_places(places: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the columns of (rows, width) that hold ``places``, and these among the columns.

    >>> logit_places(np.array([2, 6]), 4)
    (array([2]), array([0, 1]))
    """
    columns = np.unique(places % width)
    source = places // width * len(columns) + np.searchsorted(columns, places % width)
    return columns, source


def visible_tokens(tree_of: np.ndarray, response_of: np.ndarray, device: torch.device) -> Tensor:
    """Return who sees whom, bool (rows, 1, L, L): what came before in prompt and own response."""
    tree, response = torch.from_numpy(tree_of).to(device), torch.from_numpy(response_of).to(device)
    length = tree.shape[1]
    before = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    same_tree = tree[:, :, None] == tree[:, None, :]
    own = (response[:, None, :] < 0) | (response[:, :, None] == response[:, None, :])
    return (before & same_tree & own)[:, None]


def response_log_probs(model: Any, batch: Packed, temperature: float = 1.0) -> Tensor:
    """Return log pi of the response tokens, float32 (B, T), 0 behind a response's end.

    Args:
        model: transformers causal language model whose layers all attend to everything before.
        batch: B rollouts.
        temperature: of the distribution that the tokens were drawn from, > 0.
    """
    logits = model(
        input_ids=batch.ids,
        attention_mask=None if batch.visible is None else attention_mask(model, batch.visible),
        position_ids=None if batch.visible is None else batch.positions,
        use_cache=False,
        logits_to_keep=batch.columns,
    ).logits
    chosen = logits.flatten(0, 1)[batch.source].float()
    if temperature != 1:
        chosen = chosen / temperature
    log_probs = chosen.gather(-1, batch.tokens[:, None])[:, 0] - chosen.logsumexp(dim=-1)
    return log_probs.new_zeros(batch.mask.shape).masked_scatter(batch.mask, log_probs)


def attention_mask(model: Any, visible: Tensor) -> Tensor:
    """Return who sees whom in the form that the model's attention takes.

    Raises:
        ValueError: if its attention takes no mask of that shape.
    """
    kind = model.config._attn_implementation
    if kind == "sdpa":
        return visible
    if kind == "eager":
        lowest = torch.finfo(model.dtype).min
        return torch.zeros_like(visible, dtype=model.dtype).masked_fill(~visible, lowest)
    raise ValueError(f"attention {kind!r} is not supported: load the model with sdpa or eager")


def rollout_batches(
    prompts: Sequence[np.ndarray], responses: Sequence[np.ndarray], max_tokens: int
) -> list[list[int]]:
    """Return the indices of rollouts in ``micro_batches`` that keep trees whole."""
    branches = trees(prompts, responses)
    lengths = [tree_length(tree, prompts, responses) for tree in branches]
    return [
        [i for tree in group for i in branches[tree]]
        for group in micro_batches(lengths, max_tokens)
    ]


def micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Return the indices of trees in groups of similar length, the longest group last.

    Args:
        lengths: tokens of every tree.
        max_tokens: bound on (longest in the group) x (trees in the group); a tree longer than that
            is a group of its own.

    >>> micro_batches([5, 9, 5, 6], 12)
    [[0, 2], [3], [1]]
    """
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if groups and lengths[index] * (len(groups[-1]) + 1) <= max_tokens:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups
