"""`baton plan`: what layouts cost, and how many accelerators a load takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.platform.topologies import PAIRED_A100_PCIE
from tests.tiny_checkpoints import make_deepseek_v3, make_llama, make_mixtral
from typer.testing import CliRunner, Result

from baton.engine.cache_plan import CPU_CACHE_BYTES
from baton.platform.cli.main import app
from baton.platform.config.deployment import DeploymentConfig, override, read_config
from baton.platform.doctor.demand import demand_of
from baton.platform.layout_plan.report import shown
from baton.platform.models.model_folder import find_model
from baton.platform.simulator.fleet.devices import devices_in


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return without_weights(make_llama(tmp_path_factory.mktemp("model")))


def without_weights(folder: Path) -> Path:
    for weights in folder.glob("*.safetensors"):
        weights.unlink()
    return folder


def baton(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["plan", "layout", *map(str, arguments)])


def planned(*arguments: object) -> dict[str, Any]:
    result = baton(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def sized(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["plan", "size", *map(str, arguments)])


def of_tensor(layouts: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Those along the tensor axis alone, by their ranks."""
    return {
        each["ranks"]: each
        for each in layouts
        if each["tensor"] == each["ranks"] and each["expert"] == 1
    }


def test_all_layouts_that_a_model_takes_are_side_by_side_and_others_have_a_reason(
    folder: Path,
) -> None:
    found = planned(folder, "--ranks", 8)

    assert list(of_tensor(found["layouts"])) == [1, 2, 4]
    refused = of_tensor(found["refused"])
    assert "must divide `num_attention_heads`, which is 4" in refused.pop(8)["reason"]
    assert refused == {}


def test_what_a_draft_model_takes_is_told() -> None:
    few, many = (
        planned("demo", "--speculate", "draft", *more) for more in ((), ("--draft-gib", 3))
    )

    assert many["draft"]["kv_bytes"] == 3 << 30
    assert 0 < few["draft"]["kv_bytes"] <= 1 << 29
    assert few["draft"]["weight_bytes"] > 1 << 20
    assert "the draft model: 3.3 MiB of weights" in baton("demo", "--speculate", "draft").stdout
    assert "the heads of eagle:" in baton("demo", "--speculate", "eagle").stdout


def test_what_no_model_could_take_is_not_told_of(folder: Path) -> None:
    found = planned(folder, "--ranks", 4)

    never = [each for each in found["refused"] if each["context"] > 1 and each["pipeline"] > 1]
    assert found["refused"] and never == []
    assert all("data" not in each["reason"] for each in found["refused"])
    assert all(each["expert"] == 1 for each in found["refused"])  # there are no experts


def test_more_ranks_keep_less_each_and_send_more(folder: Path) -> None:
    by_size = of_tensor(planned(folder, "--ranks", 4)["layouts"])

    one, two, four = (by_size[size] for size in (1, 2, 4))
    assert one["weight_bytes"] > two["weight_bytes"] > four["weight_bytes"]
    assert one["kv_token_bytes"] == 2 * two["kv_token_bytes"]
    assert two["kv_token_bytes"] == four["kv_token_bytes"]  # two ranks have each head
    assert one["decode"]["transfers"] == one["prefill"]["transfers"] == []
    sent = [
        sum(each["sent_bytes"] for each in layout["prefill"]["transfers"]) for layout in (two, four)
    ]
    assert 0 < sent[0] < sent[1]


def test_a_rank_without_others_has_a_screen_as_the_doctor_counts_it() -> None:
    by_size = of_tensor(planned("demo", "--ranks", 2)["layouts"])
    one_replica = override(DeploymentConfig(), {"prefill.replicas": 0})
    demand = demand_of(one_replica, find_model("demo"), is_on_gpu=False)

    assert by_size[1]["weight_bytes"] == demand.memory_bytes - CPU_CACHE_BYTES
    assert 2 * by_size[2]["weight_bytes"] < by_size[1]["weight_bytes"]


def test_one_layout_is_shown_transfer_by_transfer(folder: Path) -> None:
    sizes = ("--requests", 3, "--tokens", 40, "--context", 50, "--link-gbps", 10)

    result = baton(folder, "--tensor-parallel", 2, *sizes)

    assert result.exit_code == 0, result.output
    for word in ("decode pass", "prefill pass", "attention", "all-reduce", "logits", "TP2"):
        assert word in result.output
    assert "the 10 GB/s that you gave" in " ".join(result.output.split())
    assert "…" not in result.output  # all of it on 80 columns


def test_stages_send_what_goes_from_one_to_the_next(folder: Path) -> None:
    found = planned(folder, "--pipeline-parallel", 2, "--requests", 5)

    [layout] = found["layouts"]
    whats = {each["what"]: each["kind"] for each in layout["decode"]["transfers"]}
    assert layout["pipeline"] == 2
    assert whats["activations"] in ("send", "receive")
    assert "attention" not in whats


def test_data_places_share_the_requests_of_a_replica(tmp_path: Path) -> None:
    folder = without_weights(make_mixtral(tmp_path))
    options = ("--data-parallel", 2, "--expert-parallel", 2, "--requests", 9)

    [layout] = planned(folder, *options)["layouts"]
    result = baton(folder, *options)

    assert layout["kv_bytes"] == 5 * 4096 * layout["kv_token_bytes"]
    whats = {each["what"]: each["kind"] for each in layout["decode"]["transfers"]}
    assert whats["rows to experts"] == "all-to-all"
    assert "on each data place" in " ".join(result.output.split())


def test_latents_are_kept_by_all_ranks(tmp_path: Path) -> None:
    folder = without_weights(make_deepseek_v3(tmp_path))

    one, two = of_tensor(planned(folder, "--ranks", 2)["layouts"]).values()

    assert one["kv_token_bytes"] == two["kv_token_bytes"]
    kinds = {each["what"] for each in two["decode"]["transfers"]}
    assert {"attention", "feed-forward", "experts"} <= kinds


def test_what_does_not_fit_a_device_is_refused(folder: Path) -> None:
    fits = planned(folder, "--ranks", 2, "--requests", 1, "--context", 64, "--device-gib", 1)
    too_small = planned(folder, "--ranks", 2, "--requests", 8000, "--device-gib", 1)

    assert list(of_tensor(fits["layouts"])) == [1, 2]
    assert too_small["layouts"] == []
    assert "8000 requests of 4096 tokens" in too_small["refused"][0]["reason"]


def test_a_layout_that_is_asked_for_and_cannot_be_is_an_error(folder: Path) -> None:
    result = baton(folder, "--tensor-parallel", 3)

    assert result.exit_code == 2
    assert "2 KV heads; the number of ranks must divide it" in " ".join(result.output.split())


def test_a_link_matrix_tells_where_each_rank_would_sit(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "topology.txt"
    file.write_text(PAIRED_A100_PCIE)

    layouts = planned(folder, "--ranks", 8, "--topology", file)["layouts"]
    shown = baton(folder, "--tensor-parallel", 4, "--topology", file)

    gpus = {size: each.get("gpus") for size, each in of_tensor(layouts).items()}
    assert gpus == {1: None, 2: ["GPU0", "GPU1"], 4: ["GPU0", "GPU1", "GPU2", "GPU3"]}
    assert "tensor over NV12 and SYS" in shown.output
    file.write_text("no matrix")
    assert baton(folder, "--topology", file).exit_code == 2


def test_a_table_is_made_for_people(folder: Path) -> None:
    result = baton(folder, "--ranks", 2)

    assert "one rank" in result.output and "TP2" in result.output


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (10 << 20, "10 MiB"), (3 << 30, "3.0 GiB")],
)
def test_bytes_are_told_in_the_unit_that_fits(num_bytes: int, text: str) -> None:
    assert shown(num_bytes) == text


def test_the_configuration_of_a_sized_load_is_one_that_serve_takes(
    folder: Path, tmp_path: Path
) -> None:
    files = tmp_path / "baton.yaml", tmp_path / "device.json"

    result = sized(
        folder, "--accelerator", "a100-80gb", "--dtype", "bfloat16", "--apart", "--rate", 400,
        "--input", 500, "--yaml", files[0], "--device-file", files[1], "--explain",
        "--price", 2, "--simulate", 10,
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    served = read_config(files[0])
    assert served.prefill.replicas >= 1 and served.decode.resources.num_gpus == 1
    assert devices_in(files[1].read_bytes(), "it").decode.step_times.is_known
    for word in ("weights", "ridge", "forecast", "simulated", "Erlang", "a million tokens in"):
        assert word in result.output


def test_a_load_is_that_of_a_trace_if_one_is_given(folder: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [(0, 100, 7), (1000, 300, 9), (2000, 200, 5)]
    trace.write_text(
        "\n".join(
            json.dumps({"timestamp": at, "input_length": long, "output_length": out})
            for at, long, out in lines
        )
    )

    result = sized(folder, "--dtype", "bfloat16", "--trace", trace, "--json")

    load = json.loads(result.stdout)["load"]
    assert (load["rate"], load["prompt_tokens"], load["output_tokens"]) == (1.5, 200, 7)
    assert load["prompt_cv2"] == pytest.approx(1 / 6)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--accelerator", "h1000"), "--accelerator h1000: give one of a100-40gb"),
        (("--precision", "fp4"), "h100-sxm multiplies bf16, fp8"),
        (("--dtype", "float32"), "give --dtype bfloat16"),
        (("--accelerator", "l4", "--max-ranks", 1, "--input", 10**9), "no layout on up to 1 l4"),
    ],
)
def test_what_cannot_be_sized_is_refused_with_the_remedy(
    folder: Path, options: tuple[object, ...], told: str
) -> None:
    result = sized(folder, "--dtype", "bfloat16", *options)

    assert result.exit_code == 2
    assert told in " ".join(result.output.split())


def test_what_is_sized_in_few_bits_is_served_so_or_not_at_all(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "baton.yaml"
    asked = ("--dtype", "bfloat16", "--precision", "fp8", "--max-ranks", 1)

    refused = sized(folder, *asked, "--yaml", file)
    told = json.loads(sized(folder, *asked, "--json").stdout)
    rounded = sized(folder, *asked, "--quantize", "int8", "--yaml", file)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    stored = json.loads(sized(tmp_path, *asked, "--json").stdout)

    assert refused.exit_code == 2
    assert "round its weights by --quantize int8 or" in " ".join(refused.output.split())
    assert told["config"] is None and "16 bits a weight" in told["why_no_config"]
    assert rounded.exit_code == 0, rounded.output
    assert read_config(file).quantize == "int8"
    assert stored["config"]["model"] == str(tmp_path) and stored["why_no_config"] == ""
