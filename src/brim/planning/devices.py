"""The catalogue of GPUs with their usable memory; or a size; or the GPU of this machine.

`reported` is what the driver reports (`nvidia-smi`), in MiB. `usable`, where it is known, is the total that
`cudaMemGetInfo` returns; the difference is reserved by the driver. Context and kernels are measured on an H200
(`benchmarks/results/device_overhead_h200.json`) and estimated for the other generations.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from brim.errors import DeviceError, InvalidRequest, UnknownDevice
from brim.records.plan import Device, Source
from brim.units import MIB, parse_bytes

_SMALLEST_DEVICE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class _Architecture:
    """What a process takes on this generation: context, kernels of the libraries, matrix-product workspace (MiB)."""

    context: int
    kernels: int
    workspace: int


_ARCHITECTURES = {
    "volta": _Architecture(320, 64, 8),
    "turing": _Architecture(320, 64, 8),
    "ampere": _Architecture(420, 76, 8),
    "ada": _Architecture(420, 76, 8),
    "hopper": _Architecture(527, 76, 32),  # measured
    "blackwell": _Architecture(560, 90, 32),
    "cdna": _Architecture(560, 150, 32),
}

# key: (name, architecture, reported MiB, usable MiB or None)
_CATALOGUE: dict[str, tuple[str, str, int, int | None]] = {
    "a10": ("NVIDIA A10", "ampere", 23028, 22589),
    "a100-40gb": ("NVIDIA A100 40GB", "ampere", 40960, 40338),
    "a100-80gb": ("NVIDIA A100 80GB", "ampere", 81920, 81051),
    "a10g": ("NVIDIA A10G", "ampere", 23028, 22589),
    "a16": ("NVIDIA A16", "ampere", 15356, None),
    "a2": ("NVIDIA A2", "ampere", 15356, None),
    "a30": ("NVIDIA A30", "ampere", 24576, 24062),
    "a40": ("NVIDIA A40", "ampere", 46068, 45489),
    "a800-80gb": ("NVIDIA A800 80GB", "ampere", 81920, 81051),
    "b200": ("NVIDIA B200", "blackwell", 183359, 182642),
    "b300": ("NVIDIA B300", "blackwell", 275040, None),
    "gb200": ("NVIDIA GB200", "blackwell", 189471, None),
    "gh200-96gb": ("NVIDIA GH200 96GB", "hopper", 97871, None),
    "h100-80gb": ("NVIDIA H100 80GB SXM", "hopper", 81559, 81008),
    "h100-nvl": ("NVIDIA H100 NVL", "hopper", 95830, None),
    "h100-pcie": ("NVIDIA H100 80GB PCIe", "hopper", 81559, 81008),
    "h20": ("NVIDIA H20", "hopper", 97871, None),
    "h200": ("NVIDIA H200", "hopper", 143771, 143156),
    "h800": ("NVIDIA H800", "hopper", 81559, 81008),
    "l20": ("NVIDIA L20", "ada", 46068, None),
    "l4": ("NVIDIA L4", "ada", 23034, 22563),
    "l40": ("NVIDIA L40", "ada", 46068, 45489),
    "l40s": ("NVIDIA L40S", "ada", 46068, 45489),
    "mi210": ("AMD Instinct MI210", "cdna", 65520, None),
    "mi300x": ("AMD Instinct MI300X", "cdna", 196592, 196592),
    "mi325x": ("AMD Instinct MI325X", "cdna", 262128, None),
    "mi355x": ("AMD Instinct MI355X", "cdna", 294896, None),
    "p100-16gb": ("Tesla P100 16GB", "volta", 16384, None),
    "rtx-2080-ti": ("GeForce RTX 2080 Ti", "turing", 11264, None),
    "rtx-3060": ("GeForce RTX 3060 12GB", "ampere", 12288, 12037),
    "rtx-3070": ("GeForce RTX 3070", "ampere", 8192, None),
    "rtx-3080": ("GeForce RTX 3080 10GB", "ampere", 10240, None),
    "rtx-3080-ti": ("GeForce RTX 3080 Ti", "ampere", 12288, None),
    "rtx-3090": ("GeForce RTX 3090", "ampere", 24576, 24258),
    "rtx-3090-ti": ("GeForce RTX 3090 Ti", "ampere", 24564, 24248),
    "rtx-4000-ada": ("RTX 4000 Ada", "ada", 20475, None),
    "rtx-4060": ("GeForce RTX 4060", "ada", 8188, None),
    "rtx-4060-ti-16gb": ("GeForce RTX 4060 Ti 16GB", "ada", 16380, None),
    "rtx-4070": ("GeForce RTX 4070", "ada", 12282, None),
    "rtx-4070-ti": ("GeForce RTX 4070 Ti", "ada", 12282, None),
    "rtx-4070-ti-super": ("GeForce RTX 4070 Ti SUPER", "ada", 16376, None),
    "rtx-4080": ("GeForce RTX 4080", "ada", 16376, 16079),
    "rtx-4080-super": ("GeForce RTX 4080 SUPER", "ada", 16376, 16079),
    "rtx-4090": ("GeForce RTX 4090", "ada", 24564, 24217),
    "rtx-4090-d": ("GeForce RTX 4090 D", "ada", 24564, 24217),
    "rtx-5000-ada": ("RTX 5000 Ada", "ada", 32760, None),
    "rtx-5060-ti-16gb": ("GeForce RTX 5060 Ti 16GB", "blackwell", 16311, None),
    "rtx-5070": ("GeForce RTX 5070", "blackwell", 12227, None),
    "rtx-5070-ti": ("GeForce RTX 5070 Ti", "blackwell", 16303, None),
    "rtx-5080": ("GeForce RTX 5080", "blackwell", 16303, None),
    "rtx-5090": ("GeForce RTX 5090", "blackwell", 32607, 32112),
    "rtx-6000-ada": ("RTX 6000 Ada", "ada", 49140, 48670),
    "rtx-a4000": ("RTX A4000", "ampere", 16376, None),
    "rtx-a5000": ("RTX A5000", "ampere", 24564, 24248),
    "rtx-a6000": ("RTX A6000", "ampere", 49140, 48670),
    "rtx-pro-6000": ("RTX PRO 6000 Blackwell", "blackwell", 97887, 97250),
    "t4": ("Tesla T4", "turing", 15360, 14910),
    "titan-rtx": ("TITAN RTX", "turing", 24576, None),
    "v100-16gb": ("Tesla V100 16GB", "volta", 16384, 16151),
    "v100-32gb": ("Tesla V100 32GB", "volta", 32768, 32495),
}

_ALIASES = {
    "a100": "a100-80gb",
    "a800": "a800-80gb",
    "h100": "h100-80gb",
    "h100-sxm": "h100-80gb",
    "gh200": "gh200-96gb",
    "v100": "v100-16gb",
    "p100": "p100-16gb",
    "rtx-4060-ti": "rtx-4060-ti-16gb",
    "rtx-5060-ti": "rtx-5060-ti-16gb",
}


@cache
def catalogue() -> tuple[Device, ...]:
    """Every GPU of the catalogue, smallest first."""
    return tuple(sorted((_catalogued(key) for key in _CATALOGUE), key=lambda device: (device.total_bytes, device.key)))


def find_device(text: str) -> Device:
    """A device by catalogue name ("rtx-4090", "RTX 4090"), by size ("24GiB"), or "auto" for this machine's."""
    if text.strip().lower() == "auto":
        return this_machine()
    key = _key(text)
    key = _ALIASES.get(key, key)
    if key in _CATALOGUE:
        return _catalogued(key)
    if text.strip()[:1].isdigit():
        return of_size(text)
    import difflib  # only for the message

    near = difflib.get_close_matches(key, [*_CATALOGUE, *_ALIASES], n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}? Or " if near else ""
    raise UnknownDevice(
        f"gpu '{text[:60]}' is not in the catalogue; {hint}give a size such as 24GiB (`brim gpus` lists the catalogue)"
    )


def _key(text: str) -> str:
    words = text.strip().lower().replace("_", "-").replace(" ", "-")
    for noise in ("nvidia-", "geforce-", "tesla-", "amd-", "instinct-"):
        words = words.replace(noise, "")
    if words[:4].isdigit() and words[:2] in ("20", "30", "40", "50") and not words.endswith(("gib", "gb", "g", "mib")):
        words = f"rtx-{words}"
    return words.replace("rtx4", "rtx-4").replace("rtx3", "rtx-3").replace("rtx5", "rtx-5")


def _catalogued(key: str) -> Device:
    name, architecture, reported, usable = _CATALOGUE[key]
    return _device(key, name, reported * MIB, architecture, usable * MIB if usable else None, Source.CATALOGUE)


def _device(
    key: str, name: str, total: int, architecture: str, usable: int | None, source: Source, neighbours: int = 0
) -> Device:
    takes = _ARCHITECTURES[architecture]
    return Device(
        key=key,
        name=name,
        total_bytes=total,
        hidden_bytes=total - usable if usable else _usual_hidden(total),
        context_bytes=takes.context * MIB,
        workspace_bytes=(takes.kernels + takes.workspace) * MIB,
        source=source,
        neighbour_bytes=neighbours,
    )


def _usual_hidden(total: int) -> int:
    """What the driver reserves of a card that is not in the catalogue: 256 MiB and 1/400 of its size."""
    return 256 * MIB + total // 400


def of_size(text: str) -> Device:
    """A device given by size, taken as the memory the driver reports."""
    total = parse_bytes(text, "gpu")
    if total < _SMALLEST_DEVICE_BYTES:
        raise InvalidRequest(f"gpu '{text}' is smaller than 1 GiB; write the size like 24GiB")
    return _device(text, f"{text} device", total, "ampere", None, Source.GIVEN)


def this_machine(index: int = 0) -> Device:
    """The GPU of this machine, as its driver reports it, with what other processes hold now."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise DeviceError(
            f"gpu 'auto' needs an NVIDIA driver, and NVML says: {error}; name a GPU, or give a size such as 24GiB"
        ) from None
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        name = pynvml.nvmlDeviceGetName(handle)
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    except pynvml.NVMLError as error:
        raise DeviceError(f"gpu 'auto': NVML says: {error}; name a GPU, or give a size such as 24GiB") from None
    finally:
        pynvml.nvmlShutdown()
    key = _key(str(name))
    known = _CATALOGUE.get(_ALIASES.get(key, key))
    total = int(memory.total)
    usable = known[3] * MIB if known and known[3] else None
    device = _device(key, str(name), total, _architecture_of(major, minor), usable, Source.MEASURED)
    neighbours = max(0, int(memory.used) - device.hidden_bytes)
    return _device(key, str(name), total, _architecture_of(major, minor), usable, Source.MEASURED, neighbours)


def _architecture_of(major: int, minor: int) -> str:
    if (major, minor) == (8, 9):
        return "ada"
    return {7: "turing" if minor == 5 else "volta", 8: "ampere", 9: "hopper"}.get(
        major, "blackwell" if major > 9 else "volta"
    )
