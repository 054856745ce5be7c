import pytest

from baton.platform.machine.datasheet import of_name


@pytest.mark.parametrize(
    ("name", "read_gb_s"),
    [("NVIDIA H200", 4800), ("NVIDIA H100 80GB HBM3", 3350), ("NVIDIA H100 PCIe", 2000)],
)
def test_a_known_device_is_found_by_its_name(name: str, read_gb_s: float) -> None:
    assert of_name(name).read_gb_s == read_gb_s


def test_of_an_unknown_device_nothing_is_claimed() -> None:
    assert of_name("AMD EPYC").read_gb_s is None
    assert str(of_name("AMD EPYC")) == "AMD EPYC: unknown"
