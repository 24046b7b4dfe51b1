"""Memory of scaled-dot-product attention on CUDA, by the kernel torch would choose there.

On the meta device torch would run the math version, which materialises tokens × tokens scores. On a GPU it chooses a
kernel, each with its own memory:

- flash: the output, and the log-sum-exp of every row in fp32; heads whose width is no multiple of eight are padded;
- memory-efficient: the output, an fp32 accumulator as large where heads are wider than 128, a boolean mask turned
  into one of the query's type, and a padded copy of a mask whose rows do not begin at multiples of eight;
- math (fp32 without a kernel, odd head sizes): as on the meta device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from brim.units import round_up

if TYPE_CHECKING:
    import torch

FUSED = "brim-fused"  # the name under which the replacement below is registered with transformers
_FLASH_HEAD_DIM = 256
_ACCUMULATOR_HEAD_DIM = 128
_MASK_ALIGNMENT = 8


def choose_kernel(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> str:
    """The kernel that torch takes on CUDA for these shapes."""
    import torch

    half = query.dtype in (torch.float16, torch.bfloat16)
    widths = {query.shape[-1], key.shape[-1], value.shape[-1]}
    if half and mask is None and len(widths) == 1 and max(widths) <= _FLASH_HEAD_DIM and query.dim() == 4:
        return "flash"
    aligned = all(width % 8 == 0 for width in widths)
    if aligned and query.dim() == 4 and (half or query.dtype == torch.float32):
        return "efficient"
    return "math"


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Replaces `scaled_dot_product_attention`: allocates what the kernel would, and computes nothing."""
    import torch

    kernel = choose_kernel(query, key, value, attn_mask)
    if kernel == "math":
        return torch._C._nn.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    batch, heads, length, _ = query.shape
    width = value.shape[-1]
    padded = [_padded(tensor) for tensor in (query, key, value)] if kernel == "flash" and width % 8 else []
    mask = _added_mask(attn_mask, query) if kernel == "efficient" and attn_mask is not None else None
    output = query.new_empty((batch, length, heads, width)).transpose(1, 2)
    if kernel == "flash":
        scratch = query.new_empty((batch, heads, length), dtype=torch.float32)
    elif width > _ACCUMULATOR_HEAD_DIM or query.shape[-1] > _ACCUMULATOR_HEAD_DIM:
        scratch = query.new_empty((batch, length, heads, width), dtype=torch.float32)
    else:
        scratch = query.new_empty((0,))
    del mask, scratch, padded
    return output


def _padded(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.new_empty((*tensor.shape[:-1], round_up(tensor.shape[-1], 8)))


def _added_mask(mask: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """A mask as the kernel adds it: zeros and minus infinities where it was boolean, in rows that it can read."""
    import torch

    typed = torch.empty_like(mask, dtype=query.dtype) if mask.dtype == torch.bool else mask
    *others, last = typed.stride()
    if last == 1 and not any(stride % _MASK_ALIGNMENT for stride in others):
        return typed
    return typed.new_empty((*typed.shape[:-1], round_up(typed.shape[-1] + 1, _MASK_ALIGNMENT)))


def register_fused() -> None:
    """Register a replacement for fused paged attention with transformers, through its public registry.

    Like Brim's own kernels it allocates only the output, and needs no mask.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    def fused(module: Any, query: Any, key: Any, value: Any, attention_mask: Any = None, **_: Any) -> tuple[Any, None]:
        batch, heads, length, _ = query.shape
        return query.new_empty((batch, length, heads, value.shape[-1])), None

    AttentionInterface.register(FUSED, fused)
    AttentionMaskInterface.register(FUSED, lambda *args, **kwargs: None)


def interception() -> Any:
    """A mode that replaces torch's function by `attend` while it is active."""
    import torch
    from torch.overrides import TorchFunctionMode

    class Kernels(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.nn.functional.scaled_dot_product_attention:
                return attend(*args, **(kwargs or {}))
            return function(*args, **(kwargs or {}))

    return Kernels()
