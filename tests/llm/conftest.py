"""Two cores are shared: torch runs on one thread, and one small policy serves all tests."""

import numpy as np
import pytest
import torch
import transformers

from llm.policy import Policy
from llm.warm_start import TinyConfig, character_tokenizer, untrained

torch.set_num_threads(1)
transformers.logging.disable_progress_bar()


@pytest.fixture(scope="session")
def policy():
    """An untrained character policy over digits and signs."""
    tokenizer = character_tokenizer("0123456789+=")
    return Policy(untrained(TinyConfig(layers=2, width=32, heads=2), tokenizer), tokenizer)


@pytest.fixture
def prompts():
    """Prompts of three lengths, int32."""
    rng = np.random.default_rng(0)
    return [rng.integers(2, 14, size=n).astype(np.int32) for n in (6, 3, 6, 8)]
