"""The catalogue of GPUs and other accelerators, as data.

`sold_gb` is the size on the datasheet, `reported_mib` what the driver reports (`nvidia-smi`), and `usable_mib`, where
it is known, the total that `cudaMemGetInfo` returns; the difference is reserved by the driver. Context and kernels are
measured on an H200 (`benchmarks/results/device_overhead_h200.json`) and estimated for the other generations. Where
`published` is set nobody has told us what a driver reports: the size is that of the datasheet, and what is usable of
memory that is shared with a CPU is its platform's rule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Vendor(StrEnum):
    """Who makes a device, and whose libraries run on it."""

    NVIDIA = "NVIDIA"
    AMD = "AMD"
    INTEL = "Intel"
    APPLE = "Apple"
    GOOGLE = "Google"
    HUAWEI = "Huawei"


class DeviceClass(StrEnum):
    """Devices that are chosen among each other."""

    DATACENTER = "datacenter"
    WORKSTATION = "workstation"
    CONSUMER = "consumer"
    LAPTOP = "laptop"
    UNIFIED = "unified"  # memory shared with a CPU


@dataclass(frozen=True, slots=True)
class Architecture:
    """What a process takes on this generation: context, kernels of the libraries, matrix-product workspace."""

    context_mib: int
    kernels_mib: int
    workspace_mib: int
    vendor: Vendor = Vendor.NVIDIA
    year: int = 0


@dataclass(frozen=True, slots=True)
class CatalogueCard:
    """A device of the catalogue. `also`: spellings that neither the key nor the name explains."""

    key: str
    name: str
    architecture: str
    sold_gb: int
    reported_mib: int
    usable_mib: int | None
    also: tuple[str, ...] = ()
    kind: DeviceClass = DeviceClass.DATACENTER
    published: bool = False  # from a datasheet; what a driver reports is not known


ARCHITECTURES = {
    "pascal": Architecture(320, 64, 8, year=2016),
    "volta": Architecture(320, 64, 8, year=2017),
    "turing": Architecture(320, 64, 8, year=2018),
    "ampere": Architecture(420, 76, 8, year=2020),
    "ada": Architecture(420, 76, 8, year=2022),
    "hopper": Architecture(527, 76, 32, year=2022),  # measured
    "blackwell": Architecture(560, 90, 32, year=2024),
    "cdna2": Architecture(560, 150, 32, Vendor.AMD, 2021),
    "cdna3": Architecture(560, 150, 32, Vendor.AMD, 2023),
    "cdna4": Architecture(560, 150, 32, Vendor.AMD, 2025),
    "rdna3": Architecture(420, 150, 32, Vendor.AMD, 2022),
    "rdna4": Architecture(420, 150, 32, Vendor.AMD, 2025),
    "xe2": Architecture(420, 150, 32, Vendor.INTEL, 2024),
    "gaudi": Architecture(560, 150, 32, Vendor.INTEL, 2022),
    "metal": Architecture(64, 64, 0, Vendor.APPLE, 2020),
    "tpu": Architecture(256, 150, 32, Vendor.GOOGLE, 2020),
    "ascend": Architecture(560, 150, 32, Vendor.HUAWEI, 2023),
}

# Of cards that share a name, the first is the one meant where no size is given.
_DATACENTER = (
    CatalogueCard("a10", "NVIDIA A10", "ampere", 24, 23028, 22589),
    CatalogueCard("a100-80gb", "NVIDIA A100 80GB", "ampere", 80, 81920, 81051),
    CatalogueCard("a100-40gb", "NVIDIA A100 40GB", "ampere", 40, 40960, 40338),
    CatalogueCard("a10g", "NVIDIA A10G", "ampere", 24, 23028, 22589),
    CatalogueCard("a16", "NVIDIA A16", "ampere", 16, 15356, None),
    CatalogueCard("a2", "NVIDIA A2", "ampere", 16, 15356, None),
    CatalogueCard("a30", "NVIDIA A30", "ampere", 24, 24576, 24062),
    CatalogueCard("a40", "NVIDIA A40", "ampere", 48, 46068, 45489),
    CatalogueCard("a800-80gb", "NVIDIA A800 80GB", "ampere", 80, 81920, 81051),
    CatalogueCard("b200", "NVIDIA B200", "blackwell", 180, 183359, 182642),
    CatalogueCard("b300", "NVIDIA B300", "blackwell", 288, 275040, None, also=("B300 SXM6 AC",)),
    CatalogueCard("gb200", "NVIDIA GB200", "blackwell", 186, 189471, None),
    CatalogueCard("gh200-96gb", "NVIDIA GH200 96GB", "hopper", 96, 97871, None, also=("GH200 480GB",)),
    CatalogueCard("h100-80gb", "NVIDIA H100 80GB SXM", "hopper", 80, 81559, 81008),
    CatalogueCard("h100-nvl", "NVIDIA H100 NVL", "hopper", 94, 95830, None),
    CatalogueCard("h100-pcie", "NVIDIA H100 80GB PCIe", "hopper", 80, 81559, 81008, also=("H100 PCIe 80GB",)),
    CatalogueCard("h20", "NVIDIA H20", "hopper", 96, 97871, None),
    CatalogueCard("h200", "NVIDIA H200", "hopper", 141, 143771, 143156, also=("H200 NVL",)),
    CatalogueCard("h800", "NVIDIA H800", "hopper", 80, 81559, 81008),
    CatalogueCard("l20", "NVIDIA L20", "ada", 48, 46068, None),
    CatalogueCard("l4", "NVIDIA L4", "ada", 24, 23034, 22563),
    CatalogueCard("l40", "NVIDIA L40", "ada", 48, 46068, 45489),
    CatalogueCard("l40s", "NVIDIA L40S", "ada", 48, 46068, 45489),
    CatalogueCard("mi210", "AMD Instinct MI210", "cdna2", 64, 65520, None),
    CatalogueCard("mi300x", "AMD Instinct MI300X", "cdna3", 192, 196592, 196592),
    CatalogueCard("mi325x", "AMD Instinct MI325X", "cdna3", 256, 262128, None),
    CatalogueCard("mi355x", "AMD Instinct MI355X", "cdna4", 288, 294896, None),
    CatalogueCard("p100-16gb", "Tesla P100 16GB", "pascal", 16, 16384, None),
    CatalogueCard("t4", "Tesla T4", "turing", 16, 15360, 14910),
    CatalogueCard("v100-16gb", "Tesla V100 16GB", "volta", 16, 16384, 16151),
    CatalogueCard("v100-32gb", "Tesla V100 32GB", "volta", 32, 32768, 32495),
    CatalogueCard("gb300", "NVIDIA GB300", "blackwell", 288, 275040, None, published=True),
    CatalogueCard("gh200-144gb", "NVIDIA GH200 144GB", "hopper", 144, 147456, None, published=True),
    CatalogueCard("h20-141gb", "NVIDIA H20 141GB", "hopper", 141, 143771, None, also=("H20-3e",), published=True),
    CatalogueCard("a800-40gb", "NVIDIA A800 40GB", "ampere", 40, 40960, 40338),
    CatalogueCard("p40", "Tesla P40", "pascal", 24, 22919, None),
    CatalogueCard("mi250", "AMD Instinct MI250 (one of its two GPUs)", "cdna2", 64, 65520, None, also=("MI250",)),
    CatalogueCard("mi250x", "AMD Instinct MI250X (one of its two GPUs)", "cdna2", 64, 65520, None, also=("MI250X",)),
    CatalogueCard("mi300a", "AMD Instinct MI300A", "cdna3", 128, 131072, None, published=True),
    CatalogueCard("mi308x", "AMD Instinct MI308X", "cdna3", 192, 196592, None, published=True),
    CatalogueCard("mi350x", "AMD Instinct MI350X", "cdna4", 288, 294896, None, published=True),
    CatalogueCard(
        "gaudi-2", "Intel Gaudi 2", "gaudi", 96, 98304, None, also=("Habana Gaudi2", "HL-225"), published=True
    ),
    CatalogueCard(
        "gaudi-3", "Intel Gaudi 3", "gaudi", 128, 131072, None, also=("Habana Gaudi3", "HL-325"), published=True
    ),
    CatalogueCard("tpu-v4", "Google TPU v4", "tpu", 32, 32768, None, published=True),
    CatalogueCard("tpu-v5e", "Google TPU v5e", "tpu", 16, 16384, None, also=("v5e", "v5litepod"), published=True),
    CatalogueCard("tpu-v5p", "Google TPU v5p", "tpu", 95, 97280, None, also=("v5p",), published=True),
    CatalogueCard("tpu-v6e", "Google TPU v6e", "tpu", 32, 32768, None, also=("v6e", "Trillium"), published=True),
    CatalogueCard("tpu-v7", "Google TPU v7", "tpu", 192, 196608, None, also=("Ironwood",), published=True),
    CatalogueCard("ascend-910b", "Huawei Ascend 910B", "ascend", 64, 65536, None, also=("910b",), published=True),
    CatalogueCard(
        "ascend-910c", "Huawei Ascend 910C (one of its two dies)", "ascend", 64, 65536, None, ("910c",), published=True
    ),
)
_WORKSTATION = (
    CatalogueCard("rtx-4000-ada", "RTX 4000 Ada", "ada", 20, 20475, None),
    CatalogueCard("rtx-5000-ada", "RTX 5000 Ada", "ada", 32, 32760, None),
    CatalogueCard("rtx-6000-ada", "RTX 6000 Ada", "ada", 48, 49140, 48670),
    CatalogueCard("rtx-a4000", "RTX A4000", "ampere", 16, 16376, None),
    CatalogueCard("rtx-a5000", "RTX A5000", "ampere", 24, 24564, 24248),
    CatalogueCard("rtx-a6000", "RTX A6000", "ampere", 48, 49140, 48670),
    CatalogueCard(
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
    CatalogueCard("rtx-pro-5000", "RTX PRO 5000 Blackwell", "blackwell", 48, 48935, None, published=True),
    CatalogueCard("rtx-pro-5000-72gb", "RTX PRO 5000 Blackwell 72GB", "blackwell", 72, 73403, None, published=True),
    CatalogueCard("rtx-pro-4500", "RTX PRO 4500 Blackwell", "blackwell", 32, 32623, None, published=True),
    CatalogueCard("rtx-pro-4000", "RTX PRO 4000 Blackwell", "blackwell", 24, 24467, None, published=True),
    CatalogueCard("rtx-pro-2000", "RTX PRO 2000 Blackwell", "blackwell", 16, 16311, None, published=True),
    CatalogueCard("rtx-4500-ada", "RTX 4500 Ada", "ada", 24, 24570, None),
    CatalogueCard("rtx-a4500", "RTX A4500", "ampere", 20, 20470, None),
    CatalogueCard("r9700", "AMD Radeon AI PRO R9700", "rdna4", 32, 32624, None, also=("AI PRO R9700",), published=True),
    CatalogueCard("arc-pro-b60", "Intel Arc Pro B60", "xe2", 24, 24576, None, also=("b60",), published=True),
    CatalogueCard("arc-pro-b50", "Intel Arc Pro B50", "xe2", 16, 16384, None, also=("b50",), published=True),
)
_CONSUMER = (
    CatalogueCard("rtx-2080-ti", "GeForce RTX 2080 Ti", "turing", 11, 11264, None),
    CatalogueCard("rtx-3060", "GeForce RTX 3060 12GB", "ampere", 12, 12288, 12037),
    CatalogueCard("rtx-3060-ti", "GeForce RTX 3060 Ti", "ampere", 8, 8192, None),
    CatalogueCard("rtx-3070", "GeForce RTX 3070", "ampere", 8, 8192, None),
    CatalogueCard("rtx-3070-ti", "GeForce RTX 3070 Ti", "ampere", 8, 8192, None),
    CatalogueCard("rtx-3080", "GeForce RTX 3080 10GB", "ampere", 10, 10240, None),
    CatalogueCard("rtx-3080-12gb", "GeForce RTX 3080 12GB", "ampere", 12, 12288, None),
    CatalogueCard("rtx-3080-ti", "GeForce RTX 3080 Ti", "ampere", 12, 12288, None),
    CatalogueCard("rtx-3090", "GeForce RTX 3090", "ampere", 24, 24576, 24258),
    CatalogueCard("rtx-3090-ti", "GeForce RTX 3090 Ti", "ampere", 24, 24564, 24248),
    CatalogueCard("rtx-4060", "GeForce RTX 4060", "ada", 8, 8188, None),
    CatalogueCard("rtx-4060-ti-16gb", "GeForce RTX 4060 Ti 16GB", "ada", 16, 16380, None),
    CatalogueCard("rtx-4060-ti-8gb", "GeForce RTX 4060 Ti 8GB", "ada", 8, 8188, None),
    CatalogueCard("rtx-4070", "GeForce RTX 4070", "ada", 12, 12282, None),
    CatalogueCard("rtx-4070-super", "GeForce RTX 4070 SUPER", "ada", 12, 12282, None),
    CatalogueCard("rtx-4070-ti", "GeForce RTX 4070 Ti", "ada", 12, 12282, None),
    CatalogueCard("rtx-4070-ti-super", "GeForce RTX 4070 Ti SUPER", "ada", 16, 16376, None),
    CatalogueCard("rtx-4080", "GeForce RTX 4080", "ada", 16, 16376, 16079),
    CatalogueCard("rtx-4080-super", "GeForce RTX 4080 SUPER", "ada", 16, 16376, 16079),
    CatalogueCard("rtx-4090", "GeForce RTX 4090", "ada", 24, 24564, 24217),
    CatalogueCard("rtx-4090-d", "GeForce RTX 4090 D", "ada", 24, 24564, 24217),
    CatalogueCard("rtx-5060", "GeForce RTX 5060", "blackwell", 8, 8151, None),
    CatalogueCard("rtx-5060-ti-16gb", "GeForce RTX 5060 Ti 16GB", "blackwell", 16, 16311, None),
    CatalogueCard("rtx-5060-ti-8gb", "GeForce RTX 5060 Ti 8GB", "blackwell", 8, 8151, None),
    CatalogueCard("rtx-5070", "GeForce RTX 5070", "blackwell", 12, 12227, None),
    CatalogueCard("rtx-5070-ti", "GeForce RTX 5070 Ti", "blackwell", 16, 16303, None),
    CatalogueCard("rtx-5080", "GeForce RTX 5080", "blackwell", 16, 16303, None),
    CatalogueCard("rtx-5090", "GeForce RTX 5090", "blackwell", 32, 32607, 32112),
    CatalogueCard("titan-rtx", "TITAN RTX", "turing", 24, 24576, None),
    CatalogueCard("rtx-5090-d", "GeForce RTX 5090 D", "blackwell", 32, 32607, None),
    CatalogueCard("rx-7900-xtx", "AMD Radeon RX 7900 XTX", "rdna3", 24, 24560, None),
    CatalogueCard("rx-7900-xt", "AMD Radeon RX 7900 XT", "rdna3", 20, 20464, None),
    CatalogueCard("rx-7900-gre", "AMD Radeon RX 7900 GRE", "rdna3", 16, 16368, None),
    CatalogueCard("rx-9070-xt", "AMD Radeon RX 9070 XT", "rdna4", 16, 16304, None),
    CatalogueCard("rx-9070", "AMD Radeon RX 9070", "rdna4", 16, 16304, None),
    CatalogueCard("rx-9060-xt", "AMD Radeon RX 9060 XT", "rdna4", 16, 16304, None, published=True),
    CatalogueCard("arc-b580", "Intel Arc B580", "xe2", 12, 12288, None, also=("b580",), published=True),
    CatalogueCard("arc-b570", "Intel Arc B570", "xe2", 10, 10240, None, also=("b570",), published=True),
)
_LAPTOP = (
    CatalogueCard("rtx-5090-laptop", "GeForce RTX 5090 Laptop", "blackwell", 24, 24463, None),
    CatalogueCard("rtx-5080-laptop", "GeForce RTX 5080 Laptop", "blackwell", 16, 16303, None),
    CatalogueCard("rtx-5070-ti-laptop", "GeForce RTX 5070 Ti Laptop", "blackwell", 12, 12227, None),
    CatalogueCard("rtx-5070-laptop", "GeForce RTX 5070 Laptop", "blackwell", 8, 8151, None),
    CatalogueCard("rtx-5060-laptop", "GeForce RTX 5060 Laptop", "blackwell", 8, 8151, None),
    CatalogueCard("rtx-4090-laptop", "GeForce RTX 4090 Laptop", "ada", 16, 16376, None),
    CatalogueCard("rtx-4080-laptop", "GeForce RTX 4080 Laptop", "ada", 12, 12282, None),
    CatalogueCard("rtx-4070-laptop", "GeForce RTX 4070 Laptop", "ada", 8, 8188, None),
    CatalogueCard("rtx-4060-laptop", "GeForce RTX 4060 Laptop", "ada", 8, 8188, None),
    CatalogueCard("rtx-4050-laptop", "GeForce RTX 4050 Laptop", "ada", 6, 6141, None),
)
_SHARED = (  # the last figure: what the platform lets a GPU have of memory that the CPU uses too
    CatalogueCard(
        "gb10", "NVIDIA GB10 (DGX Spark)", "blackwell", 128, 131072, 122500, also=("DGX Spark", "GB10", "Spark")
    ),
    CatalogueCard(
        "jetson-thor", "NVIDIA Jetson AGX Thor", "blackwell", 128, 131072, 125800, also=("Jetson Thor", "Thor")
    ),
    CatalogueCard(
        "jetson-agx-orin-64gb",
        "NVIDIA Jetson AGX Orin 64GB",
        "ampere",
        64,
        65536,
        62850,
        also=("Jetson Orin 64GB", "AGX Orin"),
    ),
    CatalogueCard("jetson-agx-orin-32gb", "NVIDIA Jetson AGX Orin 32GB", "ampere", 32, 32768, 30600),
    CatalogueCard("jetson-orin-nx", "NVIDIA Jetson Orin NX", "ampere", 16, 16384, 15600, also=("Orin NX",)),
    CatalogueCard("jetson-orin-nano", "NVIDIA Jetson Orin Nano", "ampere", 8, 8192, 7600, also=("Orin Nano",)),
    CatalogueCard(
        "strix-halo", "AMD Strix Halo 128GB", "rdna3", 128, 131072, 98304, also=("Ryzen AI Max 395", "Radeon 8060S")
    ),
    CatalogueCard("strix-halo-96gb", "AMD Strix Halo 96GB", "rdna3", 96, 98304, 73728),
    CatalogueCard("strix-halo-64gb", "AMD Strix Halo 64GB", "rdna3", 64, 65536, 49152),
)
_APPLE = {  # chips and the memory they are sold with, the usual size first
    "M1": (16, 8),
    "M1 Pro": (16, 32),
    "M1 Max": (64, 32),
    "M1 Ultra": (128, 64),
    "M2": (16, 8, 24),
    "M2 Pro": (32, 16),
    "M2 Max": (64, 32, 96),
    "M2 Ultra": (192, 64, 128),
    "M3": (16, 8, 24),
    "M3 Pro": (36, 18),
    "M3 Max": (64, 36, 48, 96, 128),
    "M3 Ultra": (512, 96, 256),
    "M4": (16, 24, 32),
    "M4 Pro": (48, 24, 64),
    "M4 Max": (128, 36, 48, 64),
    "M5": (16, 24, 32),
    "M5 Pro": (48, 24, 64),
    "M5 Max": (128, 36, 48, 64),
}


def _apple(chip: str, gb: int) -> CatalogueCard:
    """Metal recommends two thirds of the memory as a working set, and three quarters of more than 36 GB."""
    key = f"{chip.lower().replace(' ', '-')}-{gb}gb"
    usable = gb * 1024 * 3 // 4 if gb > 36 else gb * 1024 * 2 // 3
    return CatalogueCard(key, f"Apple {chip} {gb}GB", "metal", gb, gb * 1024, usable)


_UNIFIED = (
    *(replace(card, published=True) for card in _SHARED),
    *(replace(_apple(chip, gb), published=True) for chip, sizes in _APPLE.items() for gb in sizes),
)
CARDS: tuple[CatalogueCard, ...] = tuple(
    replace(card, kind=kind)
    for kind, cards in (
        (DeviceClass.DATACENTER, _DATACENTER),
        (DeviceClass.WORKSTATION, _WORKSTATION),
        (DeviceClass.CONSUMER, _CONSUMER),
        (DeviceClass.LAPTOP, _LAPTOP),
        (DeviceClass.UNIFIED, _UNIFIED),
    )
    for card in cards
)

# Cards sold with the same size differ by up to a sixteenth (ECC bits inside the memory). The card meant by a size; a
# size that is not listed is just that.
CLASSES = {
    8: "rtx-4060",
    10: "rtx-3080",
    11: "rtx-2080-ti",
    12: "rtx-4070",
    16: "rtx-4080",
    20: "rtx-4000-ada",
    24: "rtx-4090",
    32: "rtx-5090",
    40: "a100-40gb",
    48: "l40s",
    80: "h100-80gb",
    94: "h100-nvl",
    96: "rtx-pro-6000",
    141: "h200",
    180: "b200",
    288: "b300",
}

# Parts of divided GPUs (MIG) by card and profile: MiB, as `nvidia-smi mig -lgip` lists them, the least of its versions.
MIG_MIB = {
    ("a100-40gb", "1g.5gb"): 4864,
    ("a100-40gb", "1g.10gb"): 9856,
    ("a100-40gb", "2g.10gb"): 9856,
    ("a100-40gb", "3g.20gb"): 19968,
    ("a100-40gb", "4g.20gb"): 19968,
    ("a100-40gb", "7g.40gb"): 40192,
    ("a100-80gb", "1g.10gb"): 9728,
    ("a100-80gb", "1g.20gb"): 19968,
    ("a100-80gb", "2g.20gb"): 19968,
    ("a100-80gb", "3g.40gb"): 40192,
    ("a100-80gb", "4g.40gb"): 40192,
    ("a100-80gb", "7g.80gb"): 80384,
}

# Memory bandwidth in GB/s, as on datasheets: a bound on how fast weights and KV are read. Others are not known here.
BANDWIDTH_GB = {
    "a10": 600,
    "a10g": 600,
    "a100-40gb": 1555,
    "a100-80gb": 2039,
    "a800-80gb": 2039,
    "a800-40gb": 1555,
    "a30": 933,
    "a40": 696,
    "a2": 200,
    "b200": 8000,
    "b300": 8000,
    "gb200": 8000,
    "gb300": 8000,
    "gh200-96gb": 4000,
    "gh200-144gb": 4900,
    "h100-80gb": 3350,
    "h100-nvl": 3900,
    "h100-pcie": 2000,
    "h20": 4000,
    "h20-141gb": 4800,
    "h200": 4800,
    "h800": 3350,
    "l20": 864,
    "l4": 300,
    "l40": 864,
    "l40s": 864,
    "t4": 320,
    "v100-16gb": 900,
    "v100-32gb": 900,
    "p100-16gb": 732,
    "p40": 347,
    "mi210": 1638,
    "mi250": 1638,
    "mi250x": 1638,
    "mi300a": 5300,
    "mi300x": 5300,
    "mi308x": 5300,
    "mi325x": 6000,
    "mi350x": 8000,
    "mi355x": 8000,
    "gaudi-2": 2450,
    "gaudi-3": 3700,
    "rtx-3060": 360,
    "rtx-3090": 936,
    "rtx-3090-ti": 1008,
    "rtx-4060": 272,
    "rtx-4060-ti-16gb": 288,
    "rtx-4070": 504,
    "rtx-4070-ti": 504,
    "rtx-4070-ti-super": 672,
    "rtx-4080": 717,
    "rtx-4080-super": 736,
    "rtx-4090": 1008,
    "rtx-4090-d": 1008,
    "rtx-5060-ti-16gb": 448,
    "rtx-5070": 672,
    "rtx-5070-ti": 896,
    "rtx-5080": 960,
    "rtx-5090": 1792,
    "rtx-5090-d": 1792,
    "rtx-5090-laptop": 896,
    "rtx-4090-laptop": 576,
    "rtx-a4000": 448,
    "rtx-a5000": 768,
    "rtx-a6000": 768,
    "rtx-4000-ada": 360,
    "rtx-5000-ada": 576,
    "rtx-6000-ada": 960,
    "rtx-pro-6000": 1792,
    "rtx-pro-5000": 1344,
    "rtx-pro-4500": 896,
    "rtx-pro-4000": 672,
    "rx-7900-xtx": 960,
    "rx-7900-xt": 800,
    "rx-9070-xt": 640,
    "rx-9070": 640,
    "r9700": 640,
    "arc-b580": 456,
    "gb10": 273,
    "strix-halo": 256,
    "jetson-thor": 273,
    "jetson-agx-orin-64gb": 204,
}
