"""Policies: schooling is deterministic, loading says what is wrong, bfloat16 keeps small steps."""

import shutil

import numpy as np
import pytest
import torch

from llm.optimizer import MasterAdamW
from llm.policy import chosen_device, load_policy
from llm.settings import TinyConfig
from llm.tasks import addition
from llm.warm_start import character_tokenizer, tiny_folder

CPU = torch.device("cpu")
SMALL = TinyConfig(
    layers=1, width=16, heads=2, warm_low=0.0, warm_high=1.0, warm_check_every=3, warm_batch=16
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Folder of a policy that had three supervised steps."""
    cache = tmp_path_factory.mktemp("policies")
    return tiny_folder(addition(1, 10), {}, SMALL, 3, cache, say=lambda line: None)


def weights(folder):
    return load_policy(str(folder), CPU).model.state_dict()


def test_schooling_is_a_function_of_the_config(saved, tmp_path):
    torch.manual_seed(123)
    again = tiny_folder(addition(1, 10), {}, SMALL, 3, tmp_path, say=lambda line: None)
    assert again.name == saved.name
    for name, weight in weights(saved).items():
        assert torch.equal(weight, weights(again)[name]), name


def test_cached_policy_is_not_schooled_again(saved):
    lines = []
    again = tiny_folder(addition(1, 10), {}, SMALL, 3, saved.parent, say=lines.append)
    assert again == saved
    assert not lines
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_accuracy_range_that_is_not_met(tmp_path):
    config = TinyConfig(layers=1, width=16, heads=2, warm_low=0.9, warm_max_steps=3)
    with pytest.raises(ValueError, match=r"warm start ended at pass@1 0.000, outside \[0.9, 0.4\]"):
        tiny_folder(addition(1, 10), {}, config, 3, tmp_path, say=lambda line: None)
    assert not list(tmp_path.iterdir())


def test_tokenizer_round_trip():
    tokenizer = character_tokenizer("0123456789+=")
    ids = tokenizer(["12+3=", "7"])["input_ids"]
    assert [len(row) for row in ids] == [5, 1]
    assert tokenizer.batch_decode(ids) == ["12+3=", "7"]
    ended = [*ids[1], tokenizer.eos_token_id, tokenizer.pad_token_id]
    assert tokenizer.batch_decode([ended], skip_special_tokens=True) == ["7"]


def test_loaded_policy_encodes_and_decodes(saved):
    policy = load_policy(str(saved), CPU)
    rows = policy.encoded(["1+2=", "3"])
    assert all(row.dtype == np.int32 for row in rows)
    assert policy.decoded(rows) == ["1+2=", "3"]
    assert policy.end_tokens == [policy.tokenizer.eos_token_id]


def test_unknown_model(tmp_path):
    with pytest.raises(ValueError, match="cannot be loaded"):
        load_policy(str(tmp_path / "nowhere"), CPU)


def test_tokenizer_without_pad_or_end_token(saved, tmp_path):
    folder = shutil.copytree(saved, tmp_path / "model")
    policy = load_policy(str(saved), CPU)
    policy.tokenizer.pad_token = None
    policy.tokenizer.save_pretrained(folder)
    with pytest.raises(ValueError, match="no pad token: name one with --pad-token"):
        load_policy(str(folder), CPU)
    assert load_policy(str(folder), CPU, pad_token="<end>").pad_token == 1
    with pytest.raises(ValueError, match="'<none>' is not a token"):
        load_policy(str(folder), CPU, pad_token="<none>")


def test_cuda_asked_for_and_absent(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert chosen_device("auto").type == "cpu"
    with pytest.raises(ValueError, match="device = 'cuda'"):
        chosen_device("cuda")


def test_steps_too_small_for_bfloat16_add_up():
    results = {}
    for dtype in (torch.float32, torch.bfloat16):
        weight = torch.nn.Parameter(torch.ones(4, dtype=dtype))
        optimizer = MasterAdamW([weight], learning_rate=1e-4, weight_decay=0.0)
        for _ in range(200):
            optimizer.zero_grad()
            (weight.sum() * 0.5).backward()
            assert optimizer.clipped_norm(10.0) == pytest.approx(1.0)
            optimizer.step()
        results[dtype] = weight.detach().float()
    assert results[torch.float32][0] == pytest.approx(0.98, abs=1e-4)
    torch.testing.assert_close(results[torch.bfloat16], results[torch.float32], atol=4e-3, rtol=0)
    # One step alone is lost in rounding.
    assert torch.tensor(1.0, dtype=torch.bfloat16) - 1e-4 == 1


def test_optimizer_state_goes_on_exactly():
    def trained(steps, state=None, start=None):
        weight = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
        optimizer = MasterAdamW([weight], 1e-3, 0.01)
        if state is not None:
            optimizer.load_state_dict(state)
            weight.data.copy_(start)
        for _ in range(steps):
            optimizer.zero_grad()
            (weight * torch.tensor([1.0, 2.0, 3.0])).square().sum().backward()
            optimizer.clipped_norm(1.0)
            optimizer.step()
        return weight.detach().clone(), optimizer.state_dict()

    whole, _ = trained(9)
    half, state = trained(4)
    assert torch.equal(trained(5, state, half)[0], whole)
