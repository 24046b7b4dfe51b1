"""Which GPUs would do: the smallest of each kind that hold what was asked for, how many, and stored how.

In: a model, a request without a device, and the devices to choose from. Out: `Option`s, those with the least memory
first. For each device, the fewest that hold it with the weights and the KV cache as they are, and fewer where smaller
formats make do; both are given where they differ. It knows memory only: neither speed nor price.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from brim.errors import InvalidRequest
from brim.model.weights import format_name
from brim.planning.flags import check_engine
from brim.planning.gpus.cards import ARCHITECTURES, CARDS, CatalogueCard, DeviceClass, Vendor
from brim.planning.pricer import Pricer
from brim.planning.settings import Curves, PlanSettings, resolve
from brim.planning.solving.solve import Solution, solve
from brim.records.model import ModelSpec
from brim.records.plan import Device, PlanRequest

_COUNTS = (1, 2, 4, 8)
_OLDEST = 2020  # of the generations that are offered unless they are named
_OFFERED = (DeviceClass.DATACENTER, DeviceClass.WORKSTATION, DeviceClass.CONSUMER)
_SMALLER = (  # formats of weights and KV cache, least loss of quality first; None: as they are
    (None, None),
    (None, "fp8"),
    ("fp8", None),
    ("fp8", "fp8"),
    ("int4", None),
    ("int4", "fp8"),
    ("awq", None),
    ("q4_0", None),
)


@dataclass(frozen=True, slots=True)
class Option:
    """A number of GPUs that hold what was asked for, and what they hold."""

    device: Device
    count: int
    weights: str
    kv_dtype: str
    concurrency: int  # requests of `max_len` that fit at once
    max_len: int
    kv_tokens: int
    flags: tuple[str, ...]  # of `brim plan`, for the whole of it
    as_stored: bool  # neither weights nor KV cache in a smaller format than they have

    @property
    def total_bytes(self) -> int:
        return self.count * self.device.total_bytes

    def to_json(self) -> dict[str, object]:
        """The stable keys of `options` in `brim plan --json`."""
        return {
            "gpu": self.device.key,
            "name": self.device.name,
            "count": self.count,
            "tp": self.count,
            "total_bytes": self.total_bytes,
            "weights": self.weights,
            "kv_dtype": self.kv_dtype,
            "concurrency": self.concurrency,
            "max_len": self.max_len,
            "kv_tokens": self.kv_tokens,
            "as_stored": self.as_stored,
            "flags": list(self.flags),
        }


def is_family(text: str) -> bool:
    """Whether a text names a vendor, a generation or a kind of GPUs, and no single one."""
    return text.strip().lower() in _FAMILIES


def offered(families: Sequence[str] = ()) -> tuple[CatalogueCard, ...]:
    """The cards to choose from: of the families named, else recent ones that are no laptop."""
    wanted = [text.strip().lower() for text in families]
    if not wanted:
        return tuple(card for card in CARDS if card.kind in _OFFERED and _year(card) >= _OLDEST and _is_gpu(card))
    return tuple(card for card in CARDS if any(_FAMILIES[text](card) for text in wanted))


def find_options(
    spec: ModelSpec,
    request: PlanRequest,
    devices: Iterable[Device],
    curves: Callable[[int], Curves] = lambda _: Curves(),
) -> tuple[Option, ...]:
    """What holds the request, least memory first. A refusal of every device is raised as it is."""
    finder = _Finder(spec, request, curves)
    found = [option for device in devices for option in finder.of(device)]
    if not found and finder.refused is not None and not finder.tried:
        raise finder.refused
    return tuple(sorted(found, key=lambda one: (one.total_bytes, one.count, one.device.key, one.weights, one.kv_dtype)))


class _Finder:
    """Solves one device after the other; devices with the same memory have the same solution."""

    def __init__(self, spec: ModelSpec, request: PlanRequest, curves: Callable[[int], Curves]) -> None:
        self._spec = spec
        self._request = request
        self._curves = curves
        self._pricer = Pricer()
        self._solutions: dict[tuple[object, ...], Solution | None] = {}
        self.tried = False
        self.refused: InvalidRequest | None = None

    def of(self, device: Device) -> list[Option]:
        """The fewest of a device as the model is stored, and the fewest in smaller formats where those are fewer."""
        counts = _COUNTS if self._request.tensor_parallel == 1 else (self._request.tensor_parallel,)
        stored = next((one for count in counts if (one := self._solved(device, count, None, None))), None)
        fewer = [count for count in counts if stored is None or count < stored.count]
        smaller = (
            one
            for count in fewer
            for weights, kv_dtype in self._formats()
            if (one := self._solved(device, count, weights, kv_dtype))
        )
        return [one for one in (next(smaller, None), stored) if one is not None]

    def _formats(self) -> list[tuple[str | None, str | None]]:
        """Smaller formats, where they were left open."""
        asked = self._request
        return [
            (weights, kv_dtype)
            for weights, kv_dtype in _SMALLER[1:]
            if (weights is None or asked.weights is None) and (kv_dtype is None or asked.kv_dtype is None)
        ]

    def _solved(self, device: Device, count: int, weights: str | None, kv_dtype: str | None) -> Option | None:
        asked = self._request
        request = replace(
            asked, tensor_parallel=count, weights=weights or asked.weights, kv_dtype=kv_dtype or asked.kv_dtype
        )
        try:
            settings = resolve(self._spec, device, request, None, self._curves(count))
            check_engine(settings)
        except InvalidRequest as error:
            self.refused = self.refused or error
            return None
        self.tried = True
        solution = self._solution(settings)
        return _option(device, count, settings, solution, weights, kv_dtype) if solution else None

    def _solution(self, settings: PlanSettings) -> Solution | None:
        """What fits on a device; None where nothing does."""
        device = settings.device
        same = (device.total_bytes, device.hidden_bytes, device.context_bytes, device.workspace_bytes)
        key = (*same, settings.ranks, settings.kv_dtype, settings.stored)
        if key not in self._solutions:
            enough = self._least_bytes(settings) <= device.usable_bytes
            solution = solve(settings, self._pricer) if enough else None
            self._solutions[key] = solution if solution is not None and self._does(solution) else None
        return self._solutions[key]

    def _does(self, solution: Solution) -> bool:
        """Whether what was asked for fits, and all users run at once."""
        return solution.fits and (solution.mean_requests or 0) >= (self._request.users or 0)

    def _least_bytes(self, settings: PlanSettings) -> int:
        """Weights and KV alone: where they are too much, there is nothing to solve."""
        costs = self._pricer.costs(settings, 1)
        return costs.weights.rank_bytes + settings.full_requests * costs.kv_bytes(settings.max_len or 1)


def _option(
    device: Device, count: int, settings: PlanSettings, solution: Solution, weights: str | None, kv_dtype: str | None
) -> Option:
    return Option(
        device=device,
        count=count,
        weights=format_name(settings.spec, settings.stored, settings.weights_dtype),
        kv_dtype=str(settings.kv_dtype),
        concurrency=solution.concurrency,
        max_len=solution.max_len,
        kv_tokens=solution.kv_tokens,
        flags=(
            *("--gpu", device.key if count == 1 else f"{count}x{device.key}"),
            *(("--weights", weights) if weights else ()),
            *(("--kv-dtype", kv_dtype) if kv_dtype else ()),
        ),
        as_stored=weights is None and kv_dtype is None,
    )


def _year(card: CatalogueCard) -> int:
    return ARCHITECTURES[card.architecture].year


def _vendor(card: CatalogueCard) -> Vendor:
    return ARCHITECTURES[card.architecture].vendor


def _is_gpu(card: CatalogueCard) -> bool:
    return card.architecture not in ("tpu", "ascend", "gaudi")


def _by_vendor(vendor: Vendor) -> Callable[[CatalogueCard], bool]:
    return lambda card: _vendor(card) is vendor


def _by_kind(kind: DeviceClass) -> Callable[[CatalogueCard], bool]:
    return lambda card: card.kind is kind


def _by_architecture(name: str) -> Callable[[CatalogueCard], bool]:
    return lambda card: card.architecture == name


_FAMILIES: dict[str, Callable[[CatalogueCard], bool]] = {
    **{str(vendor).lower(): _by_vendor(vendor) for vendor in Vendor},
    **{str(kind): _by_kind(kind) for kind in DeviceClass},
    **{name: _by_architecture(name) for name in ARCHITECTURES},
    "cdna": lambda card: card.architecture.startswith("cdna"),
    "rdna": lambda card: card.architecture.startswith("rdna"),
    "instinct": lambda card: card.key.startswith("mi"),
    "radeon": lambda card: card.architecture.startswith("rdna"),
    "geforce": lambda card: "GeForce" in card.name,
    "rtx": lambda card: card.key.startswith("rtx-") and card.kind is not DeviceClass.LAPTOP,
    "jetson": lambda card: card.key.startswith("jetson"),
}
