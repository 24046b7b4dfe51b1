"""What an engine was asked to be (`EngineSettings`), checked."""

from __future__ import annotations

from dataclasses import dataclass

from brim.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How large steps and requests may be, and how the KV cache is stored."""

    max_batch: int = 64
    max_batch_tokens: int = 2048
    max_length: int | None = None  # None: what the model was made for
    block_size: int = 16
    kv_dtype: str = "auto"  # auto: the model's type
    reuse_prefixes: bool = True
    graphs: bool = True  # CUDA graphs for steps in which every request generates
    compile: bool = False  # torch.compile for the decoder's layers
    overlap: bool = True  # plan the next step while the device works on this one
    attention: str = "auto"  # a backend by name (`brim.engine.attention.backends`)
    max_image_pixels: int | None = None  # of an image after processing; None: what the processor lets through

    def __post_init__(self) -> None:
        for name, least, most in (
            ("max_batch", 1, 4096),
            ("max_batch_tokens", 1, 2**20),
            ("max_length", 2, 2**24),
            ("max_image_pixels", 1, 2**40),
        ):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and least <= value <= most):
                raise InvalidRequest(f"{name} {value!r}: a whole number from {least} to {most} is needed")
        if self.block_size not in (8, 16, 32, 64, 128):
            raise InvalidRequest(f"block_size {self.block_size!r}: 8, 16, 32, 64 or 128 is needed")
        if self.kv_dtype not in ("auto", "bf16", "fp16", "fp32", "fp8"):
            raise InvalidRequest(f"kv_dtype {self.kv_dtype!r}: auto, bf16, fp16, fp32 or fp8 is needed")
        if self.max_batch_tokens < self.max_batch:
            raise InvalidRequest(
                f"max_batch_tokens {self.max_batch_tokens} is less than max_batch {self.max_batch}: "
                "every running request needs a token in a step; raise the one or lower the other"
            )
