"""The catalogue of GPUs, as data.

`sold_gb` is the size on the datasheet, `reported_mib` what the driver reports (`nvidia-smi`), and `usable_mib`, where
it is known, the total that `cudaMemGetInfo` returns; the difference is reserved by the driver. Context and kernels are
measured on an H200 (`benchmarks/results/device_overhead_h200.json`) and estimated for the other generations.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Architecture:
    """What a process takes on this generation: context, kernels of the libraries, matrix-product workspace."""

    context_mib: int
    kernels_mib: int
    workspace_mib: int


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU of the catalogue. `also`: spellings that neither the key nor the name explains."""

    key: str
    name: str
    architecture: str
    sold_gb: int
    reported_mib: int
    usable_mib: int | None
    also: tuple[str, ...] = ()


ARCHITECTURES = {
    "volta": Architecture(320, 64, 8),
    "turing": Architecture(320, 64, 8),
    "ampere": Architecture(420, 76, 8),
    "ada": Architecture(420, 76, 8),
    "hopper": Architecture(527, 76, 32),  # measured
    "blackwell": Architecture(560, 90, 32),
    "cdna": Architecture(560, 150, 32),
}

# Of cards that share a name, the first is the one meant where no size is given.
CARDS = (
    Card("a10", "NVIDIA A10", "ampere", 24, 23028, 22589),
    Card("a100-80gb", "NVIDIA A100 80GB", "ampere", 80, 81920, 81051),
    Card("a100-40gb", "NVIDIA A100 40GB", "ampere", 40, 40960, 40338),
    Card("a10g", "NVIDIA A10G", "ampere", 24, 23028, 22589),
    Card("a16", "NVIDIA A16", "ampere", 16, 15356, None),
    Card("a2", "NVIDIA A2", "ampere", 16, 15356, None),
    Card("a30", "NVIDIA A30", "ampere", 24, 24576, 24062),
    Card("a40", "NVIDIA A40", "ampere", 48, 46068, 45489),
    Card("a800-80gb", "NVIDIA A800 80GB", "ampere", 80, 81920, 81051),
    Card("b200", "NVIDIA B200", "blackwell", 180, 183359, 182642),
    Card("b300", "NVIDIA B300", "blackwell", 288, 275040, None, also=("B300 SXM6 AC",)),
    Card("gb200", "NVIDIA GB200", "blackwell", 186, 189471, None),
    Card("gh200-96gb", "NVIDIA GH200 96GB", "hopper", 96, 97871, None, also=("GH200 480GB",)),
    Card("h100-80gb", "NVIDIA H100 80GB SXM", "hopper", 80, 81559, 81008),
    Card("h100-nvl", "NVIDIA H100 NVL", "hopper", 94, 95830, None),
    Card("h100-pcie", "NVIDIA H100 80GB PCIe", "hopper", 80, 81559, 81008, also=("H100 PCIe 80GB",)),
    Card("h20", "NVIDIA H20", "hopper", 96, 97871, None),
    Card("h200", "NVIDIA H200", "hopper", 141, 143771, 143156, also=("H200 NVL",)),
    Card("h800", "NVIDIA H800", "hopper", 80, 81559, 81008),
    Card("l20", "NVIDIA L20", "ada", 48, 46068, None),
    Card("l4", "NVIDIA L4", "ada", 24, 23034, 22563),
    Card("l40", "NVIDIA L40", "ada", 48, 46068, 45489),
    Card("l40s", "NVIDIA L40S", "ada", 48, 46068, 45489),
    Card("mi210", "AMD Instinct MI210", "cdna", 64, 65520, None),
    Card("mi300x", "AMD Instinct MI300X", "cdna", 192, 196592, 196592),
    Card("mi325x", "AMD Instinct MI325X", "cdna", 256, 262128, None),
    Card("mi355x", "AMD Instinct MI355X", "cdna", 288, 294896, None),
    Card("p100-16gb", "Tesla P100 16GB", "volta", 16, 16384, None),
    Card("rtx-2080-ti", "GeForce RTX 2080 Ti", "turing", 11, 11264, None),
    Card("rtx-3060", "GeForce RTX 3060 12GB", "ampere", 12, 12288, 12037),
    Card("rtx-3060-ti", "GeForce RTX 3060 Ti", "ampere", 8, 8192, None),
    Card("rtx-3070", "GeForce RTX 3070", "ampere", 8, 8192, None),
    Card("rtx-3070-ti", "GeForce RTX 3070 Ti", "ampere", 8, 8192, None),
    Card("rtx-3080", "GeForce RTX 3080 10GB", "ampere", 10, 10240, None),
    Card("rtx-3080-12gb", "GeForce RTX 3080 12GB", "ampere", 12, 12288, None),
    Card("rtx-3080-ti", "GeForce RTX 3080 Ti", "ampere", 12, 12288, None),
    Card("rtx-3090", "GeForce RTX 3090", "ampere", 24, 24576, 24258),
    Card("rtx-3090-ti", "GeForce RTX 3090 Ti", "ampere", 24, 24564, 24248),
    Card("rtx-4000-ada", "RTX 4000 Ada", "ada", 20, 20475, None),
    Card("rtx-4060", "GeForce RTX 4060", "ada", 8, 8188, None),
    Card("rtx-4060-ti-16gb", "GeForce RTX 4060 Ti 16GB", "ada", 16, 16380, None),
    Card("rtx-4060-ti-8gb", "GeForce RTX 4060 Ti 8GB", "ada", 8, 8188, None),
    Card("rtx-4070", "GeForce RTX 4070", "ada", 12, 12282, None),
    Card("rtx-4070-super", "GeForce RTX 4070 SUPER", "ada", 12, 12282, None),
    Card("rtx-4070-ti", "GeForce RTX 4070 Ti", "ada", 12, 12282, None),
    Card("rtx-4070-ti-super", "GeForce RTX 4070 Ti SUPER", "ada", 16, 16376, None),
    Card("rtx-4080", "GeForce RTX 4080", "ada", 16, 16376, 16079),
    Card("rtx-4080-super", "GeForce RTX 4080 SUPER", "ada", 16, 16376, 16079),
    Card("rtx-4090", "GeForce RTX 4090", "ada", 24, 24564, 24217),
    Card("rtx-4090-d", "GeForce RTX 4090 D", "ada", 24, 24564, 24217),
    Card("rtx-5000-ada", "RTX 5000 Ada", "ada", 32, 32760, None),
    Card("rtx-5060", "GeForce RTX 5060", "blackwell", 8, 8151, None),
    Card("rtx-5060-ti-16gb", "GeForce RTX 5060 Ti 16GB", "blackwell", 16, 16311, None),
    Card("rtx-5060-ti-8gb", "GeForce RTX 5060 Ti 8GB", "blackwell", 8, 8151, None),
    Card("rtx-5070", "GeForce RTX 5070", "blackwell", 12, 12227, None),
    Card("rtx-5070-ti", "GeForce RTX 5070 Ti", "blackwell", 16, 16303, None),
    Card("rtx-5080", "GeForce RTX 5080", "blackwell", 16, 16303, None),
    Card("rtx-5090", "GeForce RTX 5090", "blackwell", 32, 32607, 32112),
    Card("rtx-6000-ada", "RTX 6000 Ada", "ada", 48, 49140, 48670),
    Card("rtx-a4000", "RTX A4000", "ampere", 16, 16376, None),
    Card("rtx-a5000", "RTX A5000", "ampere", 24, 24564, 24248),
    Card("rtx-a6000", "RTX A6000", "ampere", 48, 49140, 48670),
    Card(
        "rtx-pro-6000",
        "RTX PRO 6000 Blackwell",
        "blackwell",
        96,
        97887,
        97250,
        also=(
            "RTX PRO 6000 Blackwell Workstation",
            "RTX PRO 6000 Blackwell Server",
            "RTX PRO 6000 Blackwell Max-Q Workstation",
        ),
    ),
    Card("t4", "Tesla T4", "turing", 16, 15360, 14910),
    Card("titan-rtx", "TITAN RTX", "turing", 24, 24576, None),
    Card("v100-16gb", "Tesla V100 16GB", "volta", 16, 16384, 16151),
    Card("v100-32gb", "Tesla V100 32GB", "volta", 32, 32768, 32495),
)

# Cards sold with the same size differ by up to a sixteenth (ECC bits inside the memory). The card meant by a size;
# where none is listed, it is the one with the least memory for a model.
CLASSES = {
    8: "rtx-4060",
    12: "rtx-4070",
    16: "rtx-4080",
    24: "rtx-4090",
    32: "rtx-5090",
    48: "l40s",
    80: "h100-80gb",
    96: "rtx-pro-6000",
}
