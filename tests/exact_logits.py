"""What transformers' logits are before any rounding, and how far float32 may be from them.

float32 rounds each product and each sum by at most u = 2^-24 of it. The sum of n products that it
computes is so the exact sum of products each of which is off by a factor 1 + d, where
|d| <= LAMBDA sqrt(n) u but for a chance of 2 exp(-LAMBDA^2 / 2) (Higham and Mary, "A new approach
to probabilistic rounding error analysis", 2019). That is to say: what is computed in float32 are
the exact logits of weights and rotary frequencies that are so little off, on whatever machine and
however it cuts its sums. How far that moves the logits is a matter of the model alone: its depth,
the scale of its logits, how it amplifies. It is measured: `unit` is the root mean square of their
movement at a position when every weight and frequency is off by u times a normal number, all in
float64. What is so small moves them in proportion; hence

    |float32 - exact| <= LAMBDA sqrt(n) unit.

n is the length of most sums in tiny models, 32 to 64; longer ones are added up of such pieces.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import torch
from tests.kept_answers import digest, kept_tensors
from torch import Tensor
from torch.overrides import TorchFunctionMode

U = 2.0**-24
LAMBDA = 4.0
NUM_TERMS = 64
NUM_DRAWS = 3
SOURCE = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


@dataclass(frozen=True, slots=True)
class ExactLogits:
    values: Tensor  # [T, V], float64
    unit: Tensor  # [T], float64

    def __getitem__(self, positions: slice | Sequence[int]) -> ExactLogits:
        return ExactLogits(self.values[positions], self.unit[positions])

    @property
    def bound(self) -> Tensor:
        """[T]."""
        return LAMBDA * sqrt(NUM_TERMS) * self.unit


def exact_logits(folder: Path, prompt: Sequence[int]) -> ExactLogits:
    """At all positions of a prompt."""
    key = (SOURCE, digest(folder), list(prompt))
    return ExactLogits(**kept_tensors(key, lambda: _compute(folder, prompt)))


def times_the_bound(logits: Tensor, exact: ExactLogits) -> float:
    """How far the furthest of the logits is, in units of how far it may be."""
    assert logits.shape == exact.values.shape
    return float(((logits.double() - exact.values).abs().amax(1) / exact.bound).max())


def assert_rounded_only(logits: Tensor, exact: ExactLogits) -> None:
    assert logits.dtype is torch.float32
    assert times_the_bound(logits, exact) <= 1


class InFloat64(TorchFunctionMode):
    """Whoever asks for float32, as norms, softmaxes and rotary angles do, gets float64."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        func = torch.Tensor.double if func is torch.Tensor.float else func
        named = {name: _widened(value) for name, value in (kwargs or {}).items()}
        return func(*map(_widened, args), **named)


def _widened(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


def _compute(folder: Path, prompt: Sequence[int]) -> dict[str, Tensor]:
    from transformers import AutoModelForCausalLM  # seconds, which only a first run has to spend

    plain = {"attn_implementation": "eager", "experts_implementation": "eager"}
    with InFloat64(), torch.inference_mode():
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, **plain)
        model.eval()
        tokens = torch.tensor([list(prompt)])
        values = model(tokens).logits[0]
        assert values.dtype is torch.float64
        numbers = [n for n in (*model.parameters(), *model.buffers()) if n.is_floating_point()]
        assert all(each.dtype is torch.float64 for each in numbers)
        exact = [each.clone() for each in numbers]
        moved = []
        for seed in range(NUM_DRAWS):
            generator = torch.Generator().manual_seed(seed)
            for each, kept in zip(numbers, exact, strict=True):
                draw = torch.randn(kept.shape, generator=generator, dtype=torch.float64)
                each.copy_(kept * (1 + U * draw))
            moved.append(model(tokens).logits[0] - values)
    return {"values": values, "unit": torch.stack(moved).square().mean((0, 2)).sqrt()}
