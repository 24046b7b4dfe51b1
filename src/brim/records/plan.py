"""The request of a plan (`PlanRequest`), a device (`Device`), and the result (`MemoryPlan`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Source(StrEnum):
    """Where a figure comes from."""

    EXACT = "exact"  # counted
    MEASURED = "measured"
    TRACED = "traced"  # the model's own code on the meta device
    FORMULA = "formula"  # from dimensions
    CATALOGUE = "catalogue"  # measured on such a device before
    GIVEN = "given"  # by the user
    CONSTANT = "constant"
    SOLVED = "solved"  # what is left


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU: the memory its driver reports, and the parts that processes cannot use."""

    key: str
    name: str
    total_bytes: int
    hidden_bytes: int  # reserved by the driver: reported as memory, not usable by processes
    context_bytes: int  # of a process's CUDA context
    workspace_bytes: int  # library kernels and workspaces
    source: Source = Source.CATALOGUE
    neighbour_bytes: int = 0  # in use by other processes now, where the driver was asked

    @property
    def usable_bytes(self) -> int:
        return self.total_bytes - self.hidden_bytes

    @property
    def is_cpu(self) -> bool:
        """Whether this is a budget on the CPU: no context, no CUDA graphs."""
        return self.key.partition(":")[0] == "cpu"


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What the user asked for. None: solved for, or a default."""

    max_len: int | None = None  # tokens of the longest request
    max_seqs: int | None = None  # the most requests that run at once
    concurrency: int | None = None  # requests of max_len that must fit at once
    mean_len: int | None = None  # tokens of a request, on average
    kv_tokens: int | None = None
    batch_tokens: int | None = None
    kv_dtype: str | None = None
    weights: str | None = None
    tensor_parallel: int = 1
    image_pixels: int | None = None
    images_per_prompt: int | None = None
    audio_seconds: int | None = None
    draft_tokens: int | None = None
    reserve_bytes: int = 0
    graphs: bool | None = None  # None: on, unless memory is too short for them
    engine: str | None = None
    attention: str | None = None
    canary_bytes: int = 256 << 20


@dataclass(frozen=True, slots=True)
class LedgerItem:
    """A line of the ledger: what, how many bytes, and where the figure comes from."""

    name: str
    bytes: int
    source: Source
    detail: str


@dataclass(frozen=True, slots=True)
class DeviceLedger:
    """The ledger of one device of a node."""

    device: Device
    items: tuple[LedgerItem, ...]


@dataclass(frozen=True, slots=True)
class Advice:
    """A setting, its value, a proposed value, and what that gains on the fullest device."""

    knob: str
    current: str
    proposed: str
    frees_bytes: int
    kv_tokens_after: int
    fits_after: bool


@dataclass(frozen=True, slots=True)
class Lowered:
    """A setting that was left open, lowered below its usual value so that the rest fits."""

    knob: str
    usual: str
    lowered: str


@dataclass(frozen=True, slots=True)
class KvKindBytes:
    """KV by layer kind: bytes a token adds in these layers, and the tokens kept at most (None: all)."""

    kind: str
    layers: int
    bytes_per_token: int
    window: int | None
    stride: int


@dataclass(frozen=True, slots=True)
class EngineDefault:
    """What an engine does by itself, with its own memory fraction and its own limits where none were given.

    `kv_tokens` are blocks times the tokens of a block, `request_tokens` those of requests of `max_len`, which take a
    block in every group of layers. `dies_from_fraction` is the lowest fraction at which the worst load no longer fits.
    `starts` is false where the engine refuses: one request of `max_len` does not fit.
    """

    kv_tokens: int
    request_tokens: int
    activation_bytes: int
    dies_from_fraction: float
    max_len: int
    starts: bool

    def to_json(self) -> dict[str, object]:
        """The stable keys of `engine_default` in `brim plan --json`."""
        return {
            "kv_tokens": self.kv_tokens,
            "request_tokens": self.request_tokens,
            "activation_bytes": self.activation_bytes,
            "dies_from_fraction": self.dies_from_fraction,
            "max_len": self.max_len,
            "starts": self.starts,
        }


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The ledger of the device that decides, those of all ranks' devices, and what they were solved for."""

    model: str
    family: str
    device: Device
    ranks: int
    fits: bool
    shortfall_bytes: int
    items: tuple[LedgerItem, ...]
    ledgers: tuple[DeviceLedger, ...]
    weights_bytes: int  # all ranks together
    kv_bytes_per_token: int
    kv_kinds: tuple[KvKindBytes, ...]
    kv_dtype: str
    state_bytes_per_request: int
    request_bytes: int
    activation_bytes: int
    encoder_bytes: int  # the step with the largest image or audio; beyond `activation_bytes` it has a ledger line
    kv_tokens: int
    max_len: int
    max_seqs: int  # the most requests that run at once
    concurrency: int  # requests of `max_len` that fit at once
    mean_len: int | None
    mean_requests: int | None  # requests that run at once if they have `mean_len` tokens on average
    batch_tokens: int
    limited_by: str
    lowered: tuple[Lowered, ...]
    traced_with: str | None  # versions of the libraries whose code was traced for the activation
    advice: tuple[Advice, ...]
    engine: str | None
    engine_default: EngineDefault | None  # where the engine's rules are known
    flags: tuple[str, ...]
    command: tuple[str, ...]  # launcher, model and flags
    shell: str | None  # the command for a shell, which writes the files that it needs first
    warnings: tuple[str, ...]

    def item(self, name: str) -> LedgerItem:
        """The line of that name."""
        return next(item for item in self.items if item.name == name)

    def to_json(self) -> dict[str, object]:
        """The stable keys of `brim plan --json`."""
        return {
            "model": self.model,
            "family": self.family,
            "fits": self.fits,
            "shortfall_bytes": self.shortfall_bytes,
            "device": {
                "name": self.device.name,
                "total_bytes": self.device.total_bytes,
                "usable_bytes": self.device.usable_bytes,
                "count": self.ranks,
            },
            "items": _items_json(self.items),
            "devices": [
                {
                    "name": one.device.name,
                    "total_bytes": one.device.total_bytes,
                    "usable_bytes": one.device.usable_bytes,
                    "items": _items_json(one.items),
                }
                for one in self.ledgers
            ],
            "weights_bytes": self.weights_bytes,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "kv_kinds": [
                {
                    "kind": kind.kind,
                    "layers": kind.layers,
                    "bytes_per_token": kind.bytes_per_token,
                    "window": kind.window,
                    "stride": kind.stride,
                }
                for kind in self.kv_kinds
            ],
            "kv_dtype": self.kv_dtype,
            "state_bytes_per_request": self.state_bytes_per_request,
            "request_bytes": self.request_bytes,
            "activation_bytes": self.activation_bytes,
            "encoder_bytes": self.encoder_bytes,
            "kv_tokens": self.kv_tokens,
            "max_len": self.max_len,
            "max_seqs": self.max_seqs,
            "concurrency": self.concurrency,
            "mean_len": self.mean_len,
            "mean_requests": self.mean_requests,
            "batch_tokens": self.batch_tokens,
            "limited_by": self.limited_by,
            "lowered": [{"knob": one.knob, "from": one.usual, "to": one.lowered} for one in self.lowered],
            "traced_with": self.traced_with,
            "advice": [
                {
                    "knob": one.knob,
                    "from": one.current,
                    "to": one.proposed,
                    "frees_bytes": one.frees_bytes,
                    "kv_tokens_after": one.kv_tokens_after,
                    "fits_after": one.fits_after,
                }
                for one in self.advice
            ],
            "engine": self.engine,
            "engine_default": self.engine_default.to_json() if self.engine_default else None,
            "flags": list(self.flags),
            "command": list(self.command),
            "shell": self.shell,
            "warnings": list(self.warnings),
        }


def _items_json(items: tuple[LedgerItem, ...]) -> list[dict[str, object]]:
    return [
        {"name": item.name, "bytes": item.bytes, "source": str(item.source), "detail": item.detail} for item in items
    ]
