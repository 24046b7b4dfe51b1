"""The settings of an engine (`EngineSettings`), checked."""

from __future__ import annotations

from dataclasses import dataclass, replace

from brim.errors import InvalidRequest
from brim.guard.admission import AdmissionSettings
from brim.guard.speculation import SpeculationSettings
from brim.records.memory import SCORING_BYTES
from brim.units import MIB

LOOKUP, DRAFT = "lookup", "draft"
INLINE, PROCESS = "inline", "process"


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How large steps and requests may be, and how the KV cache is stored."""

    max_batch: int = 64
    max_batch_tokens: int = 2048
    max_length: int | None = None  # None: the model's context
    block_size: int = 16
    kv_dtype: str = "auto"  # auto: the model's type
    reuse_prefixes: bool = True
    graphs: bool = True  # CUDA graphs for decode-only steps
    compile: bool = False  # torch.compile for the decoder's layers
    overlap: bool = True  # plan the next step while the device works on this one
    attention: str = "auto"  # a backend by name (`brim.engine.attention.backends`)
    max_image_pixels: int | None = None  # of an image after processing; None: the processor's limit
    max_audio_seconds: int | None = None  # of an audio; None: the processor's limit
    resize_images: bool = False  # make larger ones smaller; False: refuse them
    encoder: str = INLINE  # where images are encoded: in the engine's own steps, or in a process beside it
    encoder_batch: int = 1  # largest images in one call of an encoder's tower; of smaller ones as many as are no more
    encoder_reserve: int | None = None  # bytes that an encoder's process may hold; None: what its worst batch takes
    feature_cache: int | None = None  # bytes for features of images; None: what a full batch uses, 512 MiB at most
    admission: str = "expected"  # how much an answer is expected to grow: as answers did so far, or `worst`
    admission_quantile: float = 0.9  # of the lengths of answers that have ended
    admission_prior: int = 256  # tokens of an answer before enough have ended
    admission_watermark: float = 0.01  # part of the KV pool that is left free for wrong guesses
    admission_passes: int = 32  # how often a request that waits for blocks may be passed by a later one
    host_memory: int | None = None  # bytes for preempted requests; 0: none, None: up to 4 GiB of what is available
    scoring_memory: int = SCORING_BYTES  # most bytes that log-probabilities of prompts take while they are computed
    speculate: str | None = None  # how tokens are drafted: `lookup` (found in the text so far) or `draft` (by a model)
    draft_tokens: int = 7  # most tokens that are drafted for a request and step
    speculate_max_batch: int = 16  # requests up to which tokens are drafted
    speculate_max_weight: float = 0.75  # of the KV pool, at the end of all running requests

    def __post_init__(self) -> None:
        for name, least, most in (
            ("max_batch", 1, 4096),
            ("max_batch_tokens", 1, 2**20),
            ("max_length", 2, 2**24),
            ("max_image_pixels", 1, 2**40),
            ("max_audio_seconds", 1, 2**20),
            ("host_memory", 0, 2**50),
            ("scoring_memory", MIB, 2**40),
            ("encoder_batch", 1, 64),
            ("encoder_reserve", 1, 2**50),
            ("feature_cache", 1, 2**50),
        ):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and least <= value <= most):
                raise InvalidRequest(f"{name} is {value!r}; it must be an integer from {least} to {most}")
        if self.block_size not in (8, 16, 32, 64, 128):
            raise InvalidRequest(f"block_size is {self.block_size!r}; it must be 8, 16, 32, 64 or 128")
        if self.kv_dtype not in ("auto", "bf16", "fp16", "fp32", "fp8"):
            raise InvalidRequest(f"kv_dtype is {self.kv_dtype!r}; it must be auto, bf16, fp16, fp32 or fp8")
        if self.max_batch_tokens < self.max_batch:
            raise InvalidRequest(
                f"max_batch_tokens {self.max_batch_tokens} is less than max_batch {self.max_batch}: "
                "a step decodes one token of every running request; raise the one or lower the other"
            )
        if self.speculate not in (None, LOOKUP, DRAFT):
            raise InvalidRequest(f"speculate is {self.speculate!r}; it must be {LOOKUP} or {DRAFT}, or left out")
        if self.encoder not in (INLINE, PROCESS):
            raise InvalidRequest(f"encoder is {self.encoder!r}; it must be {INLINE} or {PROCESS}")
        self.admission_settings  # noqa: B018 - checked when they are made
        self.speculation_settings  # noqa: B018

    def with_draft(self, has_draft: bool, tensor_parallel: bool) -> EngineSettings:
        """The settings of an engine with a draft model, or without one."""
        if not has_draft:
            if self.speculate == DRAFT:
                raise InvalidRequest("speculate is 'draft', and no draft model is named; give the engine a draft")
            return self
        if self.speculate not in (None, DRAFT):
            raise InvalidRequest(f"draft: speculate is '{self.speculate}', which needs none; leave out one of the two")
        if tensor_parallel:
            raise InvalidRequest("draft: a draft model runs on one rank only; use speculate='lookup', or leave out tp")
        return replace(self, speculate=DRAFT)

    @property
    def max_drafted(self) -> int:
        """Most requests of a step with drafts; 0: nothing is drafted."""
        return 0 if self.speculate is None else min(self.speculate_max_batch, self.max_batch)

    @property
    def speculation_settings(self) -> SpeculationSettings:
        return SpeculationSettings(self.speculate_max_batch, self.speculate_max_weight, self.draft_tokens)

    @property
    def admission_settings(self) -> AdmissionSettings:
        return AdmissionSettings(
            mode=self.admission,
            quantile=self.admission_quantile,
            prior=self.admission_prior,
            watermark=self.admission_watermark,
            passes=self.admission_passes,
        )
