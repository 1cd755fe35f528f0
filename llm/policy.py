"""Policies: a causal language model with its tokenizer, from a folder or by hub name."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Policy:
    """A model on its device and the tokenizer that goes with it."""

    model: Any
    tokenizer: Any

    @property
    def pad_token(self) -> int:
        """Id of the padding token."""
        return self.tokenizer.pad_token_id

    @property
    def end_tokens(self) -> list[int]:
        """Ids that end a response: the tokenizer's, and the model's where it names more."""
        named = getattr(self.model.generation_config, "eos_token_id", None)
        more = named if isinstance(named, list) else [named]
        return sorted({self.tokenizer.eos_token_id, *more} - {None})

    def encoded(self, prompts: Sequence[str], chat: bool = False) -> list[np.ndarray]:
        """Return the prompts as int32 token ids (T,), as a user's turn if ``chat``."""
        if chat:
            prompts = [
                self.tokenizer.apply_chat_template(
                    [{"role": "user", "content": prompt}],
                    tokenize=False,
                    add_generation_prompt=True,
                )
                for prompt in prompts
            ]
        ids = self.tokenizer(list(prompts), add_special_tokens=not chat)["input_ids"]
        return [np.array(row, dtype=np.int32) for row in ids]

    def decoded(self, tokens: Sequence[np.ndarray]) -> list[str]:
        """Return responses as text, without special tokens."""
        return self.tokenizer.batch_decode(list(tokens), skip_special_tokens=True)


def chosen_device(device: Device) -> torch.device:
    """Return the device asked for; auto takes a GPU if there is one.

    Raises:
        ValueError: if cuda is asked for and there is none.
    """
    present = torch.cuda.is_available()
    if device == "cuda" and not present:
        raise ValueError("device = 'cuda' is not available on this machine")
    return torch.device("cuda" if device == "cuda" or (device == "auto" and present) else "cpu")


def load_policy(
    model: str,
    device: torch.device,
    dtype: Dtype = "float32",
    gradient_checkpointing: bool = False,
    pad_token: str = "",
) -> Policy:
    """Return a causal language model by local path or hub name.

    Args:
        model: folder or hub name, as ``from_pretrained`` takes it.
        device: where it goes.
        dtype: of the weights.
        gradient_checkpointing: recompute activations in the backward pass to save memory.
        pad_token: token that pads, for tokenizers that name none.

    Raises:
        ValueError: if it cannot be loaded, or there is no padding or end token.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
        loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"model = {model!r} cannot be loaded: {reason}") from None
    if pad_token:
        if pad_token not in tokenizer.get_vocab():
            raise ValueError(f"pad_token = {pad_token!r} is not a token of {model}")
        tokenizer.pad_token = pad_token
    if tokenizer.pad_token_id is None:
        raise ValueError(f"the tokenizer of {model} has no pad token: name one with --pad-token")
    if tokenizer.eos_token_id is None:
        raise ValueError(f"the tokenizer of {model} has no end token")
    if gradient_checkpointing:
        loaded.activation_checkpointing_enable()
        loaded.train()
        remove_dropout(loaded)
    return Policy(loaded.to(device), tokenizer)


def remove_dropout(model: Any) -> None:
    """Switch dropout off: it would put noise into every probability ratio.

    A model not in training mode has none, but checkpointing of activations needs that mode.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            setattr(module, "attention_dropout", 0.0)  # noqa: B010
