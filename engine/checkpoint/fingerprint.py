"""A model's fingerprint: equal only for equal architecture, weights, serving dtype and rounding.

It guards the KV cache: blocks are shared and handed over only between replicas with equal
fingerprints. It covers the parsed configuration, the rotary frequencies for the served length, and
the name, dtype, shape and bytes of every tensor. Paths, times, file format and the split into files
do not matter. Of a tensor larger than WHOLE_BYTES only NUM_SAMPLES evenly spread samples are read,
so that a large model takes seconds. Any training changes every sample, but an edit of a few single
weights by hand may not be noticed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from hashlib import blake2b

from baton.engine.checkpoint.files.tensor_files import TensorEntry
from baton.engine.models.config.model_config import ModelConfig

WHOLE_BYTES = 1 << 16
SAMPLE_BYTES = 1 << 12
NUM_SAMPLES = WHOLE_BYTES // SAMPLE_BYTES
DIGEST_BYTES = 32


def fingerprint(
    config: ModelConfig,
    entries: Mapping[str, TensorEntry],
    dtype: str,
    rounding: str,
    adapters: Sequence[bytes] = (),
) -> bytes:
    """The fingerprint, 32 bytes. `rounding` says what is rounded when the model computes,
    `adapters` are the fingerprints of its adapters. Raises CheckpointError if a file cannot be
    read."""
    architecture = {**asdict(config), "dtype": dtype, "rounding": rounding}
    del architecture["eos_token_ids"]  # decides when to stop, not what is computed
    del architecture["num_labels"]  # is the shape of a tensor, which is covered
    del architecture["max_model_len"]  # only matters for the frequencies below
    architecture["frequencies"] = [
        rope.frequencies(config.max_model_len).tolist() for rope in config.ropes
    ]
    digest = blake2b(json.dumps(architecture, sort_keys=True).encode(), digest_size=DIGEST_BYTES)
    for name, entry in sorted(entries.items()):
        digest.update(json.dumps([name, entry.dtype, entry.shape]).encode())
        for piece in _pieces(entry):
            digest.update(piece)
    for adapter in adapters:
        digest.update(adapter)
    return digest.digest()


def _pieces(entry: TensorEntry) -> Iterator[bytes]:
    if entry.num_bytes <= WHOLE_BYTES:
        yield entry.piece(0, entry.num_bytes)
        return
    last = entry.num_bytes - SAMPLE_BYTES
    for i in range(NUM_SAMPLES):
        yield entry.piece(last * i // (NUM_SAMPLES - 1), SAMPLE_BYTES)
