"""What `nvidia-smi topo -m` prints on machines of several kinds."""

from __future__ import annotations

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""  # noqa: E501


def _table(header: str, rows: list[str]) -> str:
    """With tabs, as the program prints; the header is underlined on a terminal."""
    lines = [f"\t\x1b[4m{header}\x1b[0m", *rows]
    return "\n".join("\t".join(line.split("|")) for line in lines) + "\n" + LEGEND


def _eight_h100() -> str:
    """NVLink among all, a card of its own beside each."""
    devices = [f"GPU{i}" for i in range(8)] + [f"NIC{i}" for i in range(8)]
    header = "|".join([*devices, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])
    rows = []
    for row in range(16):
        cells = []
        for column in range(16):
            is_same_socket = (row % 8) // 4 == (column % 8) // 4
            if row == column:
                cells.append(" X ")
            elif row < 8 and column < 8:
                cells.append("NV18")
            elif row % 8 == column % 8:
                cells.append("PIX")
            else:
                cells.append("NODE" if is_same_socket else "SYS")
        socket = (row % 8) // 4
        cpus = ["0-55,112-167", "56-111,168-223"][socket]
        tail = [cpus, str(socket), "", "N/A"] if row < 8 else ["", "", "", ""]
        rows.append("|".join([devices[row], *cells, *tail]))
    legend = "\nNIC Legend:\n\n" + "".join(f"  NIC{i}: mlx5_{i}\n" for i in range(8)) + "\n"
    return _table(header, rows) + legend


EIGHT_H100_WITH_CARDS = _eight_h100()

FOUR_A100_PASTED = """\
        GPU0    GPU1    GPU2    GPU3    mlx5_0  CPU Affinity    NUMA Affinity
GPU0     X      NV4     NV4     NV4     SYS     24-31,88-95     3
GPU1    NV4      X      NV4     NV4     SYS     8-15,72-79      1
GPU2    NV4     NV4      X      NV4     PHB     48-55,112-119   6
GPU3    NV4     NV4     NV4      X      SYS     32-39,96-103    4
mlx5_0  SYS     SYS     PHB     SYS      X
"""

PCIE_ONLY = _table(
    "GPU0|GPU1|GPU2|GPU3|CPU Affinity|NUMA Affinity|GPU NUMA ID",
    [
        "GPU0| X |PIX|SYS|SYS|0-31|0||N/A",
        "GPU1|PIX| X |SYS|SYS|0-31|0||N/A",
        "GPU2|SYS|SYS| X |PHB|32-63|1||N/A",
        "GPU3|SYS|SYS|PHB| X |32-63|1||N/A",
    ],
)

ONE_GPU = _table("GPU0|CPU Affinity|NUMA Affinity|GPU NUMA ID", ["GPU0| X |0-15|0||N/A"])

CONTAINER_WITHOUT_AFFINITY = _table(
    "GPU0|GPU1|NIC0|CPU Affinity|NUMA Affinity|GPU NUMA ID",
    [
        "GPU0| X |NV12|NODE||||N/A",
        "GPU1|NV12| X |NODE||||N/A",
        "NIC0|NODE|NODE| X ||||",
    ],
)

MIG_WITHOUT_NVLINK = _table(
    "GPU0|GPU1|CPU Affinity|NUMA Affinity",
    ["GPU0| X |SYS|0-63|0", "GPU1|SYS| X |64-127|1"],
)

OLD_DRIVER = """\
        GPU0    GPU1    GPU2    CPU Affinity
GPU0     X      PSB     SOC     0-9,20-29
GPU1    PSB      X      SOC     0-9,20-29
GPU2    SOC     SOC      X      10-19,30-39
"""
