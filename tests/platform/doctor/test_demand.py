"""What a deployment will want of a machine, told from its configuration and its model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.tiny_checkpoints import make_deepseek_v3, make_llama, make_mixtral

from baton.core.errors import InvalidConfig
from baton.core.replicas import Role
from baton.engine.assemble import assemble_engine
from baton.engine.checkpoint.load import load_model, read_config
from baton.engine.memory.kv_cache import KvCache
from baton.engine.speculation.head_drafter import HeadDrafter
from baton.kernels.products import vocabulary_screen
from baton.kernels.products.vocabulary_screen import num_bytes
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.doctor.demand import demand_of, kv_bytes, weight_bytes
from baton.platform.doctor.node_checks import GIB
from baton.platform.models.model_folder import built_in_folder, find_model

DEMO = find_model("demo")


def config(**changes: object) -> DeploymentConfig:
    paths = {path.replace("__", "."): value for path, value in changes.items()}
    return override(DeploymentConfig(), paths)


def demo_screen() -> int:
    """The bytes in which an engine of the demo screens tokens."""
    model = read_config(DEMO)
    count = num_bytes((model.vocab_size, model.hidden_size), torch.float32)
    assert count
    return count


def test_every_replica_has_weights_and_kv_of_its_own() -> None:
    three = config(prefill__replicas=2, decode__cache__memory_gib=2.0)

    found = demand_of(three, DEMO, is_on_gpu=False)

    assert found.num_replicas == 3
    weights = weight_bytes(three, read_config(DEMO))
    assert found.memory_bytes == 3 * (weights + demo_screen()) + 2 * GIB + 2 * GIB


def test_each_decode_engine_has_the_draft_model_and_its_kv_besides() -> None:
    plain = config(decode__replicas=2)
    draft = {"method": "draft", "model": str(find_model("draft")), "memory_gib": 3.0}
    drafting = config(decode__replicas=2, decode__speculation=draft)

    more = (
        demand_of(drafting, DEMO, is_on_gpu=False).memory_bytes
        - demand_of(plain, DEMO, is_on_gpu=False).memory_bytes
    )

    weights = weight_bytes(plain, read_config(find_model("draft")))
    assert more == 2 * (weights + 3 * GIB)


def test_the_lead_of_tensor_ranks_reads_ends_of_the_model_whole_for_its_head() -> None:
    heads = {"method": "p-eagle", "model": str(built_in_folder("p-eagle")), "memory_gib": 1.0}
    model, more = read_config(DEMO), {}
    for tensor in (1, 2):
        ranks: dict[str, object] = {"decode__parallel__tensor": tensor}
        plain, drafting = config(**ranks), config(**ranks, decode__speculation=heads)
        more[tensor] = (
            demand_of(drafting, DEMO, is_on_gpu=False).memory_bytes
            - demand_of(plain, DEMO, is_on_gpu=False).memory_bytes
        )

    assert more[2] - more[1] == 4 * model.vocab_size * model.hidden_size


@pytest.mark.parametrize("method", ["eagle", "p-eagle", "medusa"])
def test_heads_and_features_are_counted_as_the_engine_has_them(method: str) -> None:
    heads = {"method": method, "model": str(built_in_folder(method)), "features": "on"}
    sized: dict[str, object] = {"decode__cache__num_blocks": 100, "prefill__cache__num_blocks": 70}
    plain, drafting = config(**sized), config(**sized, decode__speculation=heads)

    more = (
        demand_of(drafting, DEMO, is_on_gpu=False).memory_bytes
        - demand_of(plain, DEMO, is_on_gpu=False).memory_bytes
    )

    engine = assemble_engine(DEMO, drafting.engine(Role.DECODE))
    reader = engine.speculation.reader if engine.speculation is not None else None
    (file,) = built_in_folder(method).glob("*.safetensors")
    own = 4 * sum(tensor.numel() for tensor in load_file(file).values())
    if isinstance(reader, HeadDrafter):
        own += sum(plane.nbytes for plane in reader._passes._cache.planes)
    if engine.features is not None:
        assert isinstance(engine.runner.cache, KvCache) and engine.runner.cache.features is not None
        own += engine.runner.cache.features.nbytes * 170 // 100
    assert (engine.features is not None) == (method != "medusa")
    assert engine.info.dtype == "float32"
    assert more == own


def test_a_pool_of_blocks_is_as_large_as_its_blocks() -> None:
    model = read_config(DEMO)
    small, large = (
        kv_bytes(config(decode__cache__num_blocks=n).decode.cache, model, "float32")
        for n in (10, 20)
    )
    half = kv_bytes(config(decode__cache__num_blocks=10).decode.cache, model, "bfloat16")

    assert large == 2 * small == 4 * half


def test_latents_take_one_vector_a_token_and_stay_wide(tmp_path: Path) -> None:
    model = read_config(make_deepseek_v3(tmp_path))
    ten = config(decode__cache__num_blocks=10).decode.cache
    small = config(decode__cache__num_blocks=10, decode__cache__kv_dtype="int8").decode.cache

    assert kv_bytes(ten, model, "float32") == 10 * 16 * model.num_layers * (24 + 8) * 4
    with pytest.raises(InvalidConfig, match="set it to auto"):
        kv_bytes(small, model, "float32")


def test_on_a_gpu_only_tiers_want_the_hosts_memory() -> None:
    tiered = config(tiers__host__gib=4.0)

    assert demand_of(tiered, DEMO, is_on_gpu=True).memory_bytes == 2 * 4 * GIB


def test_a_disk_tier_wants_its_room_for_every_replica() -> None:
    tiered = config(tiers__disk__folder="/var/kv", tiers__disk__gib=8.0)

    assert demand_of(tiered, DEMO, is_on_gpu=False).disk_bytes == {"/var/kv": 2 * 8 * GIB}


def test_engines_that_share_experts_have_tiers_of_their_own(tmp_path: Path) -> None:
    shared = {"decode__parallel__data": 2, "decode__parallel__expert": 2, "prefill__replicas": 0}
    tiered = config(**shared, tiers__host__gib=4.0)

    found = demand_of(tiered, make_mixtral(tmp_path), is_on_gpu=True)

    assert found.num_replicas == 2
    assert found.memory_bytes == 2 * 4 * GIB


def test_engines_that_share_experts_have_a_screen_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_mixtral(tmp_path)
    model = read_config(folder)
    shared = {"decode__parallel__data": 2, "decode__parallel__expert": 2, "prefill__replicas": 0}
    without = demand_of(config(**shared), folder, is_on_gpu=False).memory_bytes
    monkeypatch.setattr(vocabulary_screen, "MIN_BYTES", 0)

    with_screens = demand_of(config(**shared), folder, is_on_gpu=False).memory_bytes

    of_one = num_bytes((model.vocab_size, model.hidden_size), torch.float32)
    assert with_screens - without == 2 * of_one > 0


def test_threads_are_counted_as_they_are_set() -> None:
    wide = config(decode__resources__num_threads=6)

    assert demand_of(wide, DEMO, is_on_gpu=False).num_threads == 6 + 1


def test_each_rank_has_a_share_of_the_weights_a_cache_and_threads() -> None:
    one = config(decode__cache__num_blocks=100, decode__resources__num_threads=3)
    two = override(one, {"decode.parallel.tensor": 2})

    of_one, of_two = (demand_of(each, DEMO, is_on_gpu=False) for each in (one, two))

    assert of_two.num_threads == 2 * 3 + 1
    alike = of_one.memory_bytes - demo_screen()  # of two ranks neither has all logits
    assert alike <= of_two.memory_bytes < 1.01 * alike  # norms twice
    sized = override(two, {"decode.cache.num_blocks": None, "decode.cache.memory_gib": 5.0})
    found = demand_of(sized, DEMO, is_on_gpu=False).memory_bytes - of_two.memory_bytes
    assert found == pytest.approx(2 * 5 * GIB, rel=0.02)


def test_stages_have_the_weights_and_the_kv_of_their_layers_alone(tmp_path: Path) -> None:
    folder = make_llama(tmp_path, num_hidden_layers=3, tie_word_embeddings=False)
    one = config(decode__cache__num_blocks=100, prefill__replicas=0)
    two = override(one, {"decode.parallel.pipeline": 2})

    of_one, of_two = (demand_of(each, folder, is_on_gpu=False) for each in (one, two))

    assert of_two.num_threads == 2 * of_one.num_threads
    assert of_two.memory_bytes == of_one.memory_bytes


def test_ranks_that_share_prompts_have_all_weights_and_a_cache_each() -> None:
    one = config(prefill__cache__num_blocks=100, decode__cache__num_blocks=100)
    three = override(one, {"prefill.parallel.context": 2})

    of_two, of_three = (demand_of(each, DEMO, is_on_gpu=False) for each in (one, three))

    assert of_three.num_threads == 3
    two_alike = of_two.memory_bytes - 2 * demo_screen()
    three_alike = of_three.memory_bytes - demo_screen()  # of ranks none has the screen
    assert 2 * three_alike == 3 * two_alike


def test_dummy_weights_take_as_much_memory_as_others() -> None:
    with_weights = demand_of(config(), DEMO, is_on_gpu=False).memory_bytes
    dummy = demand_of(config(load_format="dummy"), DEMO, is_on_gpu=False).memory_bytes

    assert dummy == with_weights


def test_weights_that_are_still_to_be_downloaded_are_counted(tmp_path: Path) -> None:
    (tmp_path / "config.json").symlink_to(DEMO / "config.json")

    assert (
        demand_of(config(), tmp_path, is_on_gpu=False).memory_bytes
        == demand_of(config(), DEMO, is_on_gpu=False).memory_bytes
    )


@pytest.mark.parametrize("quantize", ["int8", "int4"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rounded_weights_are_counted_as_they_are_kept(
    quantize: str, dtype: str, tmp_path: Path
) -> None:
    folder = make_llama(tmp_path)
    rounded = config(quantize=quantize, dtype=dtype)

    loaded = load_model(folder, dtype=dtype, quantize=quantize)

    kept = {  # a table that is also the head counts once
        id(tensor): tensor.nbytes
        for module in loaded.model.modules()
        for tensor in (getattr(module, "weight", None), getattr(module, "bias", None))
        if tensor is not None
    }
    assert weight_bytes(rounded, read_config(folder)) == sum(kept.values())


def test_a_dtype_half_as_wide_takes_half_of_the_memory() -> None:
    model = read_config(DEMO)

    wide, half = (weight_bytes(config(dtype=name), model) for name in ("float32", "bfloat16"))

    assert wide == 2 * half
