import pytest
import torch
from torch import Tensor

from baton.kernels.cpu.memory_reading import reference, word_sum


def make_words(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randint(-(2**63), 2**63 - 1, (count,), generator=generator)


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 1000, (1 << 17) + 5, 5 << 17])
def test_words_are_summed_modulo_two_to_the_64(count: int) -> None:
    words = make_words(count)

    assert word_sum(words) == reference(words)


def test_other_than_contiguous_words_are_refused() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        word_sum(make_words(64)[::2])
    with pytest.raises(ValueError, match="int64"):
        word_sum(torch.zeros(8))
