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

DGX_1 = """\
        GPU0  GPU1  GPU2  GPU3  GPU4  GPU5  GPU6  GPU7  mlx5_0  mlx5_1  mlx5_2  mlx5_3  CPU Affinity
GPU0     X    NV1   NV1   NV2   NV2   SYS   SYS   SYS   PIX     PHB     SYS     SYS     0-19,40-59
GPU1    NV1    X    NV2   NV1   SYS   NV2   SYS   SYS   PIX     PHB     SYS     SYS     0-19,40-59
GPU2    NV1   NV2    X    NV2   SYS   SYS   NV1   SYS   PHB     PIX     SYS     SYS     0-19,40-59
GPU3    NV2   NV1   NV2    X    SYS   SYS   SYS   NV1   PHB     PIX     SYS     SYS     0-19,40-59
GPU4    NV2   SYS   SYS   SYS    X    NV1   NV1   NV2   SYS     SYS     PIX     PHB     20-39,60-79
GPU5    SYS   NV2   SYS   SYS   NV1    X    NV2   NV1   SYS     SYS     PIX     PHB     20-39,60-79
GPU6    SYS   SYS   NV1   SYS   NV1   NV2    X    NV2   SYS     SYS     PHB     PIX     20-39,60-79
GPU7    SYS   SYS   SYS   NV1   NV2   NV1   NV2    X    SYS     SYS     PHB     PIX     20-39,60-79
mlx5_0  PIX   PIX   PHB   PHB   SYS   SYS   SYS   SYS    X      PHB     SYS     SYS
mlx5_1  PHB   PHB   PIX   PIX   SYS   SYS   SYS   SYS   PHB      X      SYS     SYS
mlx5_2  SYS   SYS   SYS   SYS   PIX   PIX   PHB   PHB   SYS     SYS      X      PHB
mlx5_3  SYS   SYS   SYS   SYS   PHB   PHB   PIX   PIX   SYS     SYS     PHB      X
"""
"""Eight V100, joined in a cube: some by two NVLinks, some by one, some by none."""

PAIRED_A100_PCIE = _table(
    "GPU0|GPU1|GPU2|GPU3|NIC0|CPU Affinity|NUMA Affinity|GPU NUMA ID",
    [
        "GPU0| X |SYS|NV12|SYS|NODE|0-31,64-95|0||N/A",
        "GPU1|SYS| X |SYS|NV12|SYS|32-63,96-127|1||N/A",
        "GPU2|NV12|SYS| X |SYS|PHB|0-31,64-95|0||N/A",
        "GPU3|SYS|NV12|SYS| X |SYS|32-63,96-127|1||N/A",
        "NIC0|NODE|SYS|PHB|SYS| X ||||",
    ],
)
"""With NVLink bridges over two each."""

TWO_A100_AND_SLICES = """\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-7fdaf0a5-179b-f636-d15d-daf243e3ff16)
  MIG 3g.40gb     Device  0: (UUID: MIG-feb88891-0321-5fef-9c87-d4af3b54259e)
  MIG 3g.40gb     Device  1: (UUID: MIG-a25704ba-3a06-5299-a795-fd7cf4d13973)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-932bfb2c-849a-2a22-1e84-9eff6bc02b39)
"""
"""What `nvidia-smi -L` prints."""


def listing(num_gpus: int) -> str:
    """What `nvidia-smi -L` prints, of GPUs whose ids are theirs by `gpu_id`."""
    return "".join(
        f"GPU {gpu}: NVIDIA A100 80GB PCIe (UUID: GPU-{gpu_id(gpu)})\n" for gpu in range(num_gpus)
    )


def gpu_id(gpu: int) -> str:
    return f"{gpu:08x}-179b-f636-d15d-daf243e3ff16"
