"""Compressed entries of a context (DeepSeek V4): one vector per window of m tokens.

A token's x gives values c and gates z, in one series or in two (a, b). Entry w is a mean, weighted
per dimension, of the values of series b in window w and, if there are two, of a in window w - 1:

    weights = softmax over the 2m (or m) tokens of  z + bias[position % m]
    e[w]    = rope(norm(sum of weights * c), at position w m)

Cached for each token, in one row of its slot of the paged cache, for s series:

    row    c, s H items | z, s H items

The token that closes a window, (position + 1) % m = 0, is the last to need its own c of the last
series, so entry w overwrites it. So entries are at every m-th slot, an open window's data is in its
tokens' slots, and a slot depends only on the tokens up to its own, not on chunks or on the origin
of a cached prefix.

C windows that close, H items of an entry.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.cache_write import compress_cpu as cpu
from baton.kernels.cache_write.windows import EntryNorm, RotaryFrequencies, Windows
from baton.kernels.cpu import operators
from baton.kernels.paging.paged_rows import owners_of, put_rows, rows_at
from baton.kernels.paging.sequences import Sequences
from baton.kernels.positions.rope_tail import rope_tail
from baton.kernels.positions.rotary_angles import rotary_angles
from baton.kernels.residual.rms_norm import rms_norm


def close_windows(  # noqa: PLR0913  # where, and how entries are made
    arena: Tensor,
    windows: Windows,
    bias: Tensor,
    norm: EntryNorm,
    rotary: RotaryFrequencies,
    sequences: Sequences,
    num_tokens: int,
) -> None:
    """Write the entries of the windows that the new tokens close. The tokens' rows are in the arena
    already.

    bias is [m, s H] float32.
    """
    rows = windows.num_series * windows.width
    if arena.shape[1:] != (1, sequences.block_size, windows.row_width) or bias.shape != (
        windows.num_tokens,
        rows,
    ):
        raise ValueError(f"shapes do not fit: {arena.shape=} {bias.shape=} {windows}")
    if operators.runs(arena, norm.weight):
        cpu.close_windows(arena, windows, bias, norm, rotary, sequences, num_tokens)
        return
    positions = sequences.positions[:num_tokens]
    closing = ((positions + 1) % windows.num_tokens == 0).nonzero().flatten()
    owners, last = owners_of(sequences, num_tokens)[closing], positions[closing]
    if not len(last):
        return
    mean = reference(arena, windows, bias, owners, last, sequences).to(arena.dtype)
    first = last - (windows.num_tokens - 1)
    cos, sin = rotary_angles(first, rotary.frequencies, rotary.factor)
    entries = rope_tail(rms_norm(mean, norm.weight, norm.eps).unsqueeze(1), cos, sin).squeeze(1)
    put_rows(entries, arena[..., windows.entry], owners, last, sequences)


def reference(
    arena: Tensor,
    windows: Windows,
    bias: Tensor,
    owners: Tensor,
    last: Tensor,
    sequences: Sequences,
) -> Tensor:
    """The weighted means, float32 [C, H], of the windows that the tokens at `last` [C] close."""
    size, width = windows.num_tokens, windows.width
    num_read = size * windows.num_series
    steps = torch.arange(num_read, device=arena.device) - (num_read - 1)
    positions = last.unsqueeze(1) + steps  # [C, num_read]; below 0: there is no window before
    everybody = owners.unsqueeze(1).expand_as(positions)
    rows = rows_at(arena, everybody, positions.clamp(min=0), sequences).float()
    values, gates = rows.chunk(2, dim=-1)  # [C, num_read, s H] each
    gates = gates + bias.repeat(windows.num_series, 1)
    if windows.num_series == 2:
        values, gates = _of_series(values, size, width), _of_series(gates, size, width)
    weights = gates.masked_fill((positions < 0).unsqueeze(-1), -torch.inf).softmax(1)
    return (weights * values).sum(1)


def _of_series(rows: Tensor, size: int, width: int) -> Tensor:
    """[C, 2m, 2H] -> [C, 2m, H]: series a of the previous window, series b of this one."""
    return torch.cat((rows[:, :size, :width], rows[:, size:, width:]), dim=1)


def entries_of(
    arena: Tensor, windows: Windows, request: int, count: int, sequences: Sequences
) -> Tensor:
    """The first `count` entries of a request, [count, H]."""
    positions = torch.arange(1, count + 1, device=arena.device) * windows.num_tokens - 1
    owners = torch.full_like(positions, request)
    return rows_at(arena[..., windows.entry], owners, positions, sequences)
