"""The labels of a classifier, as `config.json` names them. Engines count them, gateways show them.

Transformers writes `id2label` down where it differs from two labels of no particular name.
"""

from __future__ import annotations

from collections.abc import Mapping

from baton.core.errors import CheckpointError

DEFAULT_NUM = 2


def labels_of(config: Mapping[str, object]) -> tuple[str, ...]:
    """The labels in the order of the logits. Raises CheckpointError, naming the key, on what is no
    table."""
    names, num = config.get("id2label"), config.get("num_labels")
    if names is None:
        count = DEFAULT_NUM if num is None else num
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise CheckpointError(f"config.json: `num_labels` must be a positive integer: {num!r}")
        return tuple(f"LABEL_{i}" for i in range(count))
    try:
        by_index = {int(str(key)): str(name) for key, name in dict(names).items()}  # type: ignore[call-overload]
    except (TypeError, ValueError):
        by_index = {}
    if not by_index or sorted(by_index) != list(range(len(by_index))):
        raise CheckpointError(
            f"config.json: `id2label` must name the labels 0, 1, ... in a row, not {names!r}"
        )
    return tuple(by_index[i] for i in range(len(by_index)))
