"""Adapters that cannot be served are refused with a reason; others change the fingerprint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.peft_adapters import ATTENTION, make_adapter
from tests.tiny_checkpoints import make_deepseek_v3, make_llama

from baton.core.errors import CheckpointError, InvalidRequest
from baton.core.sampling import SamplingParams
from baton.engine.assemble import assemble_engine
from baton.engine.checkpoint.load import check_model, load_model
from baton.engine.config import CacheConfig, EngineConfig
from baton.engine.request.request import Request

QUERIES = "base_model.model.model.layers.0.self_attn.q_proj"


def setting(**changed: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))

    return change


def tensors(**changed: torch.Tensor | None) -> Callable[[Path], None]:
    """None removes a tensor; dots of names are written as two underscores."""

    def change(folder: Path) -> None:
        path = folder / "adapter_model.safetensors"
        found = load_file(path)
        for name, tensor in changed.items():
            name = name.replace("__", ".")
            if tensor is None:
                del found[name]
            else:
                found[name] = tensor
        save_file(found, path)

    return change


def layer(name: str, rows: int, width: int) -> Callable[[Path], None]:
    prefix = f"base_model.model.{name}".replace(".", "__")
    a, b = torch.ones(2, width), torch.ones(rows, 2)
    return tensors(**{f"{prefix}__lora_A__weight": a, f"{prefix}__lora_B__weight": b})


A, B = (f"{QUERIES}.lora_{matrix}.weight".replace(".", "__") for matrix in "AB")
WRONG: dict[str, tuple[Callable[[Path], None], str]] = {
    "another kind": (setting(peft_type="LOHA"), "peft_type LOHA is not served"),
    "DoRA": (setting(use_dora=True), "`use_dora` is not supported"),
    "whole modules": (setting(modules_to_save=["lm_head"]), "`modules_to_save` is not supported"),
    "biases": (setting(bias="lora_only"), "train with bias none"),
    "PiSSA": (setting(init_lora_weights="pissa_niter_4"), "changes the base model, too"),
    "no alpha": (setting(lora_alpha=None), "lora_alpha of .*_proj is None"),
    "half a layer": (tensors(**{B: None}), r"q_proj.lora_B.weight is missing"),
    "ranks that differ": (tensors(**{B: torch.ones(32, 3)}), r"A is \[4, 32\] and B is \[32, 3\]"),
    "another width": (tensors(**{A: torch.ones(4, 48)}), r"B A is \[32, 48\], and the layer"),
    "integers": (tensors(**{A: torch.ones(4, 32, dtype=torch.int8)}), "is I8, not one of F32"),
    "an embedding": (
        tensors(base_model__model__model__embed_tokens__lora_embedding_A=torch.ones(2, 96)),
        "neither A nor B of a linear layer",
    ),
    "the head": (layer("lm_head", 96, 32), "lm_head: adapters change linear layers of"),
    "a layer of another model": (
        layer("model.layers.7.self_attn.q_proj", 32, 32),
        r"layers.7.self_attn.q_proj: the model has no such layer",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_served_is_refused_before_weights_are_read(
    case: str, tmp_path: Path
) -> None:
    change, reason = WRONG[case]
    base = make_llama(tmp_path / "base")
    folder = make_adapter(base, tmp_path / "sql", ATTENTION)
    check_model(base, adapters={"sql": folder})

    change(folder)

    for read in (check_model, load_model):
        with pytest.raises(CheckpointError, match=f"adapter `sql`: .*{reason}"):
            read(base, adapters={"sql": folder})


def test_the_expansion_of_latents_takes_no_adapter(tmp_path: Path) -> None:
    base = make_deepseek_v3(tmp_path / "base")
    folder = make_adapter(base, tmp_path / "sql", ["kv_b_proj"])

    with pytest.raises(CheckpointError, match=r"kv_b_proj: .* the KV expansion of MLA"):
        check_model(base, adapters={"sql": folder})


def test_a_folder_without_tensors_is_named(tmp_path: Path) -> None:
    base = make_llama(tmp_path / "base")
    folder = make_adapter(base, tmp_path / "sql", ATTENTION)
    (folder / "adapter_model.safetensors").unlink()

    with pytest.raises(CheckpointError, match=r"adapter `sql`: .* holds neither adapter_model"):
        check_model(base, adapters={"sql": folder})


def test_a_bin_file_is_read_as_well_and_any_change_has_another_fingerprint(tmp_path: Path) -> None:
    base = make_llama(tmp_path / "base")
    folder = make_adapter(base, tmp_path / "sql", ATTENTION)
    names = {load_model(base).info.fingerprint}
    names.add(load_model(base, adapters={"sql": folder}).info.fingerprint)

    stored = load_file(folder / "adapter_model.safetensors")
    (folder / "adapter_model.safetensors").unlink()
    torch.save(stored, folder / "adapter_model.bin")
    names.add(load_model(base, adapters={"sql": folder}).info.fingerprint)
    assert len(names) == 2  # the format is not part of it

    names.add(load_model(base, adapters={"other": folder}).info.fingerprint)
    setting(lora_alpha=13)(folder)
    names.add(load_model(base, adapters={"sql": folder}).info.fingerprint)
    stored[A.replace("__", ".")][3, 31] += 1
    torch.save(stored, folder / "adapter_model.bin")
    names.add(load_model(base, adapters={"sql": folder}).info.fingerprint)
    assert len(names) == 5


def test_the_order_in_which_adapters_are_listed_makes_no_difference(tmp_path: Path) -> None:
    base = make_llama(tmp_path / "base")
    folders = {name: make_adapter(base, tmp_path / name, ["q_proj"]) for name in ("fr", "sql")}
    folders["sql"] = make_adapter(base, tmp_path / "other", ["q_proj"], seed=1)

    one, other = (
        load_model(base, adapters=dict(order)).info
        for order in (folders.items(), reversed(folders.items()))
    )

    assert one == other and one.adapters == ("fr", "sql")


def test_an_adapter_that_an_engine_does_not_have_is_refused(tmp_path: Path) -> None:
    base = make_llama(tmp_path / "base")
    folder = make_adapter(base, tmp_path / "sql", ATTENTION)
    config = EngineConfig(cache=CacheConfig(block_size=4, num_blocks=16))
    engine = assemble_engine(base, config, adapters={"sql": folder})
    request = Request("one", [2, 3], sampling=SamplingParams(), adapter="poems")

    with pytest.raises(InvalidRequest, match=r"adapter `poems`, which .* it has sql") as refused:
        engine.add(request)

    assert refused.value.field == "model"
