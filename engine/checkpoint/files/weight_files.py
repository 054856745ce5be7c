"""Finds the files of a model's weights. Does not import torch.

    model.safetensors     model.safetensors.index.json       preferred, if there are both
    pytorch_model.bin     pytorch_model.bin.index.json

All tensors are in the one file, or in the files that the index {"weight_map": {tensor: file}}
names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from baton.core.errors import CheckpointError
from baton.engine.checkpoint.files.safetensors_header import read_header
from baton.engine.models.config.description import architecture_of, read_json
from baton.engine.models.registry import check_architecture

SAFETENSORS, PICKLED = "model.safetensors", "pytorch_model.bin"


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """The files of a checkpoint's weights."""

    kind: str
    """SAFETENSORS or PICKLED."""
    paths: tuple[Path, ...]
    index: Path | None = None
    path_by_tensor: Mapping[str, Path] | None = None
    """The file of each tensor, by the index; None for a single file without an index."""

    def check_promises(self, found: Mapping[Path, Mapping[str, object]]) -> None:
        """Raise CheckpointError if a tensor is not in the file that the index names. `found`: the
        tensors of each file."""
        promised = self.path_by_tensor or {}
        if lost := [tensor for tensor, path in promised.items() if tensor not in found[path]]:
            raise CheckpointError(
                f"{self.index} lists tensors that are not in its files: {', '.join(lost)}; fetch "
                "the model again"
            )


def check_folder(folder: Path, *, wants_weights: bool = True) -> None:
    """Raise CheckpointError for what can be seen at once: an unknown architecture, and missing or
    cut-short files. Whether the tensors fit the model is not checked."""
    check_architecture(architecture_of(read_json(folder / "config.json")))
    if not wants_weights:
        return
    files = find_weight_files(folder)
    if files.kind == SAFETENSORS:
        files.check_promises({path: read_header(path) for path in files.paths})


def find_weight_files(folder: Path) -> WeightFiles:
    """The weight files of a folder. Raises CheckpointError if there are none, or if some are
    missing."""
    for kind in (SAFETENSORS, PICKLED):
        if (folder / kind).exists():
            return WeightFiles(kind, (folder / kind,))
        index = folder / f"{kind}.index.json"
        if index.exists():
            return _shards(kind, index)
    names = " nor ".join(f"{kind} nor {kind}.index.json" for kind in (SAFETENSORS, PICKLED))
    raise CheckpointError(f"{folder} holds neither {names}")


def _shards(kind: str, index: Path) -> WeightFiles:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, Mapping):
        raise CheckpointError(f"{index} has no `weight_map`")
    path_by_tensor = {
        tensor: index.parent / _checked(index, name) for tensor, name in weight_map.items()
    }
    paths = tuple(sorted(set(path_by_tensor.values())))
    if missing := [path.name for path in paths if not path.exists()]:
        do = "does" if len(missing) == 1 else "do"
        raise CheckpointError(
            f"{index} names {len(paths)} files, of which {', '.join(missing)} {do} not exist; "
            "fetch the model again"
        )
    return WeightFiles(kind, paths, index, path_by_tensor)


def _checked(index: Path, name: object) -> str:
    if not isinstance(name, str) or Path(name).name != name:
        raise CheckpointError(f"{index} names a file outside its folder: {name!r}")
    return name
