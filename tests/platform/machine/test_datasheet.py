import pytest

from baton.platform.machine.datasheet import of_name


@pytest.mark.parametrize(
    ("name", "read_gb_s"),
    [("NVIDIA H200", 4800), ("NVIDIA H100 80GB HBM3", 3350), ("NVIDIA H100 PCIe", 2000)],
)
def test_a_known_device_is_found_by_its_name(name: str, read_gb_s: float) -> None:
    assert of_name(name).read_gb_s == read_gb_s


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA L40",
        "NVIDIA GH200 480GB",
        "NVIDIA H20",
        "NVIDIA H800 PCIe",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
    ],
)
def test_a_device_whose_name_is_alike_has_no_data_sheet_of_another(name: str) -> None:
    assert of_name(name).read_gb_s is None


def test_a_variant_with_other_rates_has_its_own() -> None:
    assert of_name("NVIDIA H200 NVL").bf16_tflop_s == 835
    assert of_name("NVIDIA H100 NVL").read_gb_s == 3900


def test_of_an_unknown_device_nothing_is_claimed() -> None:
    assert of_name("AMD EPYC").read_gb_s is None
    assert str(of_name("AMD EPYC")) == "AMD EPYC: unknown"
