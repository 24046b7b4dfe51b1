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
    PUBLISHED = "published"  # on the datasheet of such a device
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
    generation: str = ""  # "hopper", "cdna3"; empty where only a size is known
    unified: bool = False  # its memory is the CPU's too

    @property
    def usable_bytes(self) -> int:
        return self.total_bytes - self.hidden_bytes

    @property
    def is_cpu(self) -> bool:
        """Whether this is a budget on the CPU: no context, no CUDA graphs."""
        return self.key.partition(":")[0] == "cpu"

    @property
    def has_host_memory_apart(self) -> bool:
        """Whether what stays on the host takes nothing of this device."""
        return not (self.is_cpu or self.unified)


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What the user asked for. None: solved for, or a default."""

    max_len: int | None = None  # tokens of the longest request
    max_seqs: int | None = None  # the most requests that run at once
    concurrency: int | None = None  # requests of max_len that must fit at once
    mean_len: int | None = None  # tokens of a request, on average
    users: int | None = None  # that wait for tokens at the same time, of mean_len each
    tokens_per_second: int | None = None  # that each of them shall get
    kv_tokens: int | None = None
    batch_tokens: int | None = None
    kv_dtype: str | None = None
    weights: str | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: bool = False
    gpu_layers: str | None = None  # "auto", or a number
    cpu_moe: str | None = None  # layers whose experts are in host memory: "auto", or a number
    lora_rank: int | None = None
    loras: int | None = None
    host_kv_bytes: int = 0
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
class RankLedger:
    """The ledger of a device that differs from the others by what it holds, and of those like it."""

    rank: int  # the first of them
    stage: int
    layers: range
    count: int  # devices alike, in all replicas
    items: tuple[LedgerItem, ...]

    def to_json(self) -> dict[str, object]:
        """The stable keys of `ranks` in `brim plan --json`."""
        return {
            "rank": self.rank,
            "stage": self.stage,
            "layers": [self.layers.start, self.layers.stop],
            "count": self.count,
            "items": _items_json(self.items),
        }


@dataclass(frozen=True, slots=True)
class HostLedger:
    """What a plan takes of host memory: weights and KV that are not on devices, and a tier for prefixes."""

    items: tuple[LedgerItem, ...]
    prefix_tokens: int  # that the tier holds beyond the devices' own, in all replicas

    @property
    def total_bytes(self) -> int:
        return sum(item.bytes for item in self.items)

    def to_json(self) -> dict[str, object]:
        """The stable keys of `host` in `brim plan --json`."""
        return {
            "total_bytes": self.total_bytes,
            "prefix_tokens": self.prefix_tokens,
            "items": _items_json(self.items),
        }


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How many devices a plan is for, and what they share."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    experts: bool = False


@dataclass(frozen=True, slots=True)
class Advice:
    """A setting, its value, a proposed value, and what that gains on the fullest device."""

    knob: str
    current: str
    proposed: str
    frees_bytes: int
    kv_tokens_after: int
    fits_after: bool

    @property
    def flags(self) -> tuple[str, ...]:
        """The options of `brim plan` that make the change; none where one is to be left out."""
        knobs, values = self.knob.split(" + "), self.proposed.split(" + ")
        return tuple(word for knob, value in zip(knobs, values, strict=True) for word in _flag(knob, value))


def _flag(knob: str, value: str) -> tuple[str, ...]:
    if knob == "graphs":
        return ("--graphs",) if value == "on" else ("--no-graphs",)
    return () if knob == "draft" else (f"--{knob.replace('_', '-')}", value)


@dataclass(frozen=True, slots=True)
class AtLength:
    """How many requests run at once if they have so many tokens on average."""

    tokens: int
    requests: int


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
    block in every group of layers. `activation_bytes` is what it measures, counts or keeps for a step.
    `dies_from_fraction` is the lowest fraction at which a heavy load was seen not to fit; None where none was run.
    `starts` is false where the engine refuses: one request of `max_len` does not fit, or nothing is left for KV.
    """

    kv_tokens: int
    request_tokens: int
    activation_bytes: int
    dies_from_fraction: float | None
    max_len: int
    starts: bool
    fraction: float  # by the engine's own option
    checked: str  # against what the figures were held

    def to_json(self) -> dict[str, object]:
        """The stable keys of `engine_default` in `brim plan --json`."""
        return {
            "kv_tokens": self.kv_tokens,
            "request_tokens": self.request_tokens,
            "activation_bytes": self.activation_bytes,
            "dies_from_fraction": self.dies_from_fraction,
            "max_len": self.max_len,
            "starts": self.starts,
            "fraction": self.fraction,
            "checked": self.checked,
        }


@dataclass(frozen=True, slots=True)
class EngineProof:
    """How far a plan for an engine rests on sizes that were proven inside it."""

    unproven: tuple[str, ...]  # what of the plan no stored fit had
    margin_bytes: int  # kept free on each device for it

    def to_json(self) -> dict[str, object]:
        """The stable keys of `proof` in `brim plan --json`."""
        return {
            "proven": not self.unproven,
            "unproven": list(self.unproven),
            "margin_bytes": self.margin_bytes,
        }


@dataclass(frozen=True, slots=True)
class Asked:
    """What a plan was asked to hold, and what that takes of the device that decides. None: it was left open."""

    request: PlanRequest
    requests: int  # of full length that must fit at once
    needed_bytes: int

    def to_json(self) -> dict[str, object]:
        """The stable keys of `asked` in `brim plan --json`."""
        request = self.request
        return {
            "max_len": request.max_len,
            "max_seqs": request.max_seqs,
            "concurrency": request.concurrency,
            "mean_len": request.mean_len,
            "users": request.users,
            "tokens_per_second": request.tokens_per_second,
            "kv_tokens": request.kv_tokens,
            "batch_tokens": request.batch_tokens,
            "kv_dtype": request.kv_dtype,
            "weights": request.weights,
            "tp": request.tensor_parallel,
            "engine": request.engine,
            "needed_bytes": self.needed_bytes,
        }


@dataclass(frozen=True, slots=True)
class UsersAnswer:
    """How many users run at once, and how many tokens a second each could get at most: a bound, no forecast."""

    users: int
    at_once: int
    read_bytes: int  # of weights and KV in a step, on one device
    most_tokens_per_second: float | None  # None: the device's bandwidth is not known, or nobody runs
    wanted_tokens_per_second: int | None

    @property
    def bandwidth_allows(self) -> bool | None:
        """Whether memory can be read fast enough; None where that is not known or not asked."""
        if self.wanted_tokens_per_second is None or self.most_tokens_per_second is None:
            return None
        return self.most_tokens_per_second >= self.wanted_tokens_per_second

    def to_json(self) -> dict[str, object]:
        """The stable keys of `users` in `brim plan --json`."""
        most = self.most_tokens_per_second
        return {
            "users": self.users,
            "at_once": self.at_once,
            "read_bytes": self.read_bytes,
            "most_tokens_per_second": None if most is None else round(most, 1),
            "wanted_tokens_per_second": self.wanted_tokens_per_second,
            "bandwidth_allows": self.bandwidth_allows,
        }


@dataclass(frozen=True, slots=True)
class Instead:
    """What does fit where what was asked for does not: as little less as possible."""

    concurrency: int  # requests of `max_len`
    max_len: int
    kv_tokens: int
    max_seqs: int
    batch_tokens: int

    def to_json(self) -> dict[str, object]:
        """The stable keys of `fits_instead` in `brim plan --json`."""
        return {
            "concurrency": self.concurrency,
            "max_len": self.max_len,
            "kv_tokens": self.kv_tokens,
            "max_seqs": self.max_seqs,
            "batch_tokens": self.batch_tokens,
        }


@dataclass(frozen=True, slots=True)
class PlannedCommand:
    """A command of an engine, and what it serves: what was asked for, or what fits instead."""

    as_asked: bool
    concurrency: int
    max_len: int
    args: tuple[str, ...]
    env: tuple[tuple[str, str], ...]  # variables that it runs with
    shell: str

    def to_json(self) -> dict[str, object]:
        """The stable keys of `commands` in `brim plan --json`."""
        return {
            "as_asked": self.as_asked,
            "concurrency": self.concurrency,
            "max_len": self.max_len,
            "args": list(self.args),
            "env": dict(self.env),
            "shell": self.shell,
        }


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The ledger of the device that decides, those of all ranks' devices, and what they were solved for.

    Tokens and requests are those of one replica, unless a name says total.
    """

    model: str
    family: str
    device: Device
    ranks: int  # devices in all
    asked: Asked
    fits: bool
    shortfall_bytes: int
    fits_concurrency: int  # requests of `max_len` that fit at once if fewer are asked for; 0: not even one
    fits_instead: Instead | None  # where what was asked for does not fit, and something else does
    items: tuple[LedgerItem, ...]
    ledgers: tuple[DeviceLedger, ...]
    parallelism: Parallelism
    rank_ledgers: tuple[RankLedger, ...]  # of devices that differ by what they hold
    host: HostLedger | None  # where something is in host memory
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
    usual_lengths: tuple[AtLength, ...]  # the same for usual means
    users: UsersAnswer | None  # where they were asked about
    batch_tokens: int
    limited_by: str
    lowered: tuple[Lowered, ...]
    traced_with: str | None  # versions of the libraries whose code was traced for the activation
    advice: tuple[Advice, ...]
    engine: str | None
    engine_version: str | None  # that the plan models
    engine_default: EngineDefault | None  # where the engine's rules are known
    proof: EngineProof | None  # where sizes were proven inside the engine
    flags: tuple[str, ...]
    command: tuple[str, ...]  # launcher, model and flags
    shell: str | None  # the command for a shell, which writes the files that it needs first
    commands: tuple[PlannedCommand, ...]  # that command, or else the one of what fits instead
    warnings: tuple[str, ...]

    @property
    def total_kv_tokens(self) -> int:
        """KV tokens of all replicas."""
        return self.kv_tokens * self.parallelism.data

    @property
    def total_concurrency(self) -> int:
        """Requests of `max_len` in all replicas."""
        return self.concurrency * self.parallelism.data

    def item(self, name: str) -> LedgerItem:
        """The line of that name."""
        return next(item for item in self.items if item.name == name)

    def to_json(self) -> dict[str, object]:
        """The stable keys of `brim plan --json`."""
        return {
            "model": self.model,
            "family": self.family,
            "asked": self.asked.to_json(),
            "fits": self.fits,
            "shortfall_bytes": self.shortfall_bytes,
            "fits_concurrency": self.fits_concurrency,
            "fits_instead": self.fits_instead.to_json() if self.fits_instead else None,
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
            "pipeline_parallel": self.parallelism.pipeline,
            "data_parallel": self.parallelism.data,
            "expert_parallel": self.parallelism.experts,
            "ranks": [one.to_json() for one in self.rank_ledgers],
            "host": self.host.to_json() if self.host else None,
            "total_kv_tokens": self.total_kv_tokens,
            "total_concurrency": self.total_concurrency,
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
            "usual_lengths": [{"mean_len": one.tokens, "requests": one.requests} for one in self.usual_lengths],
            "users": self.users.to_json() if self.users else None,
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
                    "flags": list(one.flags),
                }
                for one in self.advice
            ],
            "engine": self.engine,
            "engine_version": self.engine_version,
            "engine_default": self.engine_default.to_json() if self.engine_default else None,
            "proof": self.proof.to_json() if self.proof else None,
            "flags": list(self.flags),
            "command": list(self.command),
            "shell": self.shell,
            "commands": [one.to_json() for one in self.commands],
            "warnings": list(self.warnings),
        }


def _items_json(items: tuple[LedgerItem, ...]) -> list[dict[str, object]]:
    return [
        {"name": item.name, "bytes": item.bytes, "source": str(item.source), "detail": item.detail} for item in items
    ]
