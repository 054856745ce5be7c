"""Updates block tables on a device: runs of entries, written in one launch.

    tables [R, M]    .  .  .  7  8  .  .  |  .  .  5  .  .  .  .        other entries are unchanged
    runs             (3, 2, 0), (9, 1, 2)         first entry of the flat tables, length, and the
    blocks           7  8  5                      index of its first block in `blocks`

Runs and blocks are uploaded as one array, so a step in which a few requests begin a block costs a
few bytes, whatever their contexts.
"""

from __future__ import annotations

from torch import Tensor

RUN_WORDS = 3


def write_runs(tables: Tensor, words: Tensor, num_runs: int, longest: int) -> None:
    """Writes to contiguous `tables`; `words` are int32 on their device: runs, then blocks."""
    if not tables.is_contiguous() or len(words) < RUN_WORDS * num_runs:
        raise ValueError(f"{num_runs} runs in {len(words)} words, for {tables.shape=}")
    if tables.is_cuda:
        from baton.kernels.paging.table_runs_gpu import write_runs as on_gpu

        on_gpu(tables, words, num_runs, longest)
    else:
        reference(tables, words, num_runs)


def reference(tables: Tensor, words: Tensor, num_runs: int) -> None:
    flat, blocks = tables.view(-1), words[RUN_WORDS * num_runs :]
    for first, length, start in words[: RUN_WORDS * num_runs].view(-1, RUN_WORDS).tolist():
        flat[first : first + length] = blocks[start : start + length]
