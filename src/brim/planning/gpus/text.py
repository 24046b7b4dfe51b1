"""The grammar of devices: one, several, or a node, as every command reads them.

In: what people type. Out: which of three kinds is meant, and how many: GPUs of this machine ("auto", "0", "0,1",
"cuda:1"), a budget on the CPU ("cpu:64GiB", "cpu:NAME:64GiB"), or GPUs by name or size ("8xh100", "h100:4", "2x24GiB",
two nodes of eight as "2x8xh200").
Whether a card of that name exists is not known here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from brim.errors import InvalidRequest
from brim.suggest import shown
from brim.units import parse_bytes

MOST_DEVICES = 1024
# The x of 7900xt, 7900xtx, rx7900, rtx4090 and gtx1080 belongs to the name.
_BEFORE = re.compile(r"([+-]?\d+)\s*[x×*]\s*(?!\d{1,3}$)(?!tx?(?:[\s:-]|$))(.+)", re.IGNORECASE)
_AFTER = re.compile(r"(.+?)\s*(?::|(?<!rt)(?<!gt)(?<!\br)[x×*])\s*([+-]?\d+)", re.IGNORECASE)
_INDICES = re.compile(r"\d{1,3}(?:\s*,\s*\d{1,3})*")  # four digits are a name: 4090
_CUDA = re.compile(r"cuda(?::(\d{1,3}))?", re.IGNORECASE)
_CPU = re.compile(r"cpu(?::.*)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class OwnGpus:
    """GPUs of this machine, as CUDA counts those it shows to this process. None: all of them."""

    indices: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class CpuBudget:
    """Memory of the host, for a fit or a plan without a GPU. None: no budget was given."""

    name: str
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Gpus:
    """So many GPUs of a name or a size."""

    name: str
    count: int = 1


Wanted = OwnGpus | CpuBudget | Gpus


def read_device(text: str, what: str = "gpu") -> Wanted:
    """What kind of device a text means. `what` is the option, for messages."""
    words = " ".join(text.split())
    if not words:
        raise InvalidRequest(f"{what} is empty; name a GPU, or give a size such as 24GiB")
    if words.lower() == "auto":
        return OwnGpus(None)
    if _INDICES.fullmatch(words):
        return OwnGpus(_indices(words.split(","), what))
    cuda = _CUDA.fullmatch(words)
    if cuda:
        return OwnGpus(_indices([cuda[1] or "0"], what))
    if _CPU.fullmatch(words):
        return _cpu_budget(words, what)
    if "," in words:
        raise InvalidRequest(f"{what} '{shown(text)}' is a list; give one device here, or several as 8xh100")
    return _counted(words, what)


def _indices(texts: list[str], what: str) -> tuple[int, ...]:
    indices = tuple(int(text) for text in texts)
    if len(set(indices)) < len(indices):
        raise InvalidRequest(f"{what} '{shown(','.join(texts))}' names a GPU twice; name each once, like 0,1")
    return indices


def _cpu_budget(words: str, what: str) -> CpuBudget:
    _, *parts = (part.strip() for part in words.split(":"))
    if not parts:
        return CpuBudget("cpu", None)
    name, size = ("", parts[0]) if len(parts) == 1 else (parts[0], parts[1])
    if len(parts) > 2 or (len(parts) == 2 and not name):
        raise InvalidRequest(f"{what} '{shown(words)}' is no budget on the CPU; write cpu:64GiB or cpu:NAME:64GiB")
    budget = parse_bytes(size, what)
    if budget < 1:
        raise InvalidRequest(f"{what} '{shown(words)}' has no memory; write cpu:64GiB or cpu:NAME:64GiB")
    return CpuBudget(f"cpu:{shown(name)}" if name else "cpu", budget)


def _counted(words: str, what: str) -> Gpus:
    before, after = _BEFORE.fullmatch(words), _AFTER.fullmatch(words)
    if before and _AFTER.fullmatch(before[2]):
        raise InvalidRequest(f"{what} '{shown(words)}' has a count before and after the name; write it once: 8xh100")
    if before:
        each = _BEFORE.fullmatch(before[2])  # several nodes, of so many each
        nodes = _count(before[1], words, what)
        if each is None:
            return Gpus(before[2].strip(), nodes)
        return Gpus(each[2].strip(), _count(str(nodes * _count(each[1], words, what)), words, what))
    if after:
        return Gpus(after[1].strip(), _count(after[2], words, what))
    return Gpus(words)


def _count(digits: str, words: str, what: str) -> int:
    count = int(digits) if len(digits) <= len(str(MOST_DEVICES)) + 1 else MOST_DEVICES + 1
    if not 1 <= count <= MOST_DEVICES:
        raise InvalidRequest(f"{what} '{shown(words)}': the count is not from 1 to {MOST_DEVICES}; write 8xh100")
    return count
