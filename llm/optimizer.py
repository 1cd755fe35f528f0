"""AdamW that keeps float32 weights where the model's are shorter.

A step of 1e-6 on a bfloat16 weight of size 1 is lost in rounding; on a float32 copy it adds up.
"""

from collections.abc import Iterable
from typing import Any

import torch


class MasterAdamW:
    """AdamW over the trainable weights of a model.

    Args:
        weights: parameters, of any floating type.
        learning_rate: step size.
        weight_decay: decoupled decay.
    """

    def __init__(
        self, weights: Iterable[torch.nn.Parameter], learning_rate: float, weight_decay: float
    ):
        """Copy weights that are not float32."""
        self.weights = [weight for weight in weights if weight.requires_grad]
        self.masters = [
            weight if weight.dtype == torch.float32 else weight.detach().float().requires_grad_()
            for weight in self.weights
        ]
        self.adam = torch.optim.AdamW(
            self.masters, lr=learning_rate, weight_decay=weight_decay, fused=True
        )

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for weight in self.weights:
            weight.grad = None

    def clipped_norm(self, max_norm: float) -> float:
        """Return the gradient's norm, and scale the gradient down to ``max_norm`` if it is above.

        A norm that is not finite leaves the weights alone until ``step`` is called.
        """
        for master, weight in zip(self.masters, self.weights, strict=True):
            if master is not weight and weight.grad is not None:
                master.grad = weight.grad.float()
        return float(torch.nn.utils.clip_grad_norm_(self.masters, max_norm))

    def step(self) -> None:
        """Take one step and copy the result back to the model."""
        self.adam.step()
        with torch.no_grad():
            for master, weight in zip(self.masters, self.weights, strict=True):
                if master is not weight:
                    weight.copy_(master)

    def state_dict(self) -> dict[str, Any]:
        """Return the moments, and the float32 copies where there are some."""
        copies = [
            master.detach()
            for master, weight in zip(self.masters, self.weights, strict=True)
            if master is not weight
        ]
        return {"adam": self.adam.state_dict(), "copies": copies}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        self.adam.load_state_dict(state["adam"])
        copied = [
            master
            for master, weight in zip(self.masters, self.weights, strict=True)
            if master is not weight
        ]
        with torch.no_grad():
            for master, saved in zip(copied, state["copies"], strict=True):
                master.copy_(saved)
