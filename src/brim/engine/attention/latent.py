"""Multi-head latent attention that stores the latent: a token has one key in the pool, and its value is part of it.

Such a class projects a token down to a latent and a rotated part, and its `expand_kv` makes keys and values of all
heads from them, right before attention. `KeptLatents` replaces that one method on the modules of a model: the key
stays [latent, rotated part], one head for all queries, and the value is its first part. The expansion of keys is
applied to the queries instead (`absorbed_query`), and that of values to the output (`expanded_output`). Both are
products with views of the weight of `kv_b_proj`. The rest (projections, norms, rotation, scales, gates) is the class's
own code, unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

_EXPAND = "expand_kv"
_MARK = "brim_keeps_latent"
_SIZES = ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim")


class KeptLatents:
    """The latent attention of a model, changed to store latents; `undo` restores the model."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = list(latent_modules(model))
        for module in self._modules:
            module.__dict__[_EXPAND] = _key_and_value
            module.__dict__[_MARK] = True

    def __len__(self) -> int:
        return len(self._modules)

    def undo(self) -> None:
        """Restore every module."""
        while self._modules:
            module = self._modules.pop()
            del module.__dict__[_EXPAND], module.__dict__[_MARK]


def latent_modules(model: nn.Module) -> Iterator[nn.Module]:
    """The modules whose expansion can be replaced: a plain product that no other library has replaced."""
    for module in model.modules():
        if hasattr(type(module), _EXPAND) and _EXPAND not in vars(module) and _is_plain_product(module):
            yield module


def _is_plain_product(module: Any) -> bool:
    """Whether keys and values are the latent times a plain weight (no bias, not quantised)."""
    linear = getattr(module, "kv_b_proj", None)
    if type(linear) is not nn.Linear or not all(hasattr(module, name) for name in _SIZES):
        return False
    weight = linear.weight
    return (
        len(list(linear.parameters())) == 1
        and type(weight) is nn.Parameter
        and weight.is_floating_point()
        and weight.dtype.itemsize >= 2
        and weight.shape[1] == module.kv_lora_rank
        and weight.shape[0] % (module.qk_nope_head_dim + module.v_head_dim) == 0
    )


def _key_and_value(latent: Tensor, rotated: Tensor) -> tuple[Tensor, Tensor]:
    """Replaces `expand_kv`: [batch, 1, tokens, dim] each, and the value is a view of the key."""
    key = torch.cat((latent, rotated), -1)
    return key, key[..., : latent.shape[-1]]


def keeps_latent(module: nn.Module) -> bool:
    return getattr(module, _MARK, False)


def absorbed_query(module: nn.Module, query: Tensor) -> Tensor:
    """[1, heads, tokens, dim]: queries for expanded keys as queries for latents."""
    to_keys, _ = _by_head(module)
    plain = to_keys.shape[1]  # so many elements of a query are not rotated
    return torch.cat((torch.bmm(query[0, ..., :plain], to_keys)[None], query[..., plain:]), -1)


def expanded_output(module: nn.Module, output: Tensor) -> Tensor:
    """[1, tokens, heads, dim]: sums of latents as sums of values."""
    _, to_values = _by_head(module)
    return torch.bmm(output[0].transpose(0, 1), to_values.transpose(1, 2)).transpose(0, 1)[None]


def _by_head(module: Any) -> tuple[Tensor, Tensor]:
    """The weights that make keys and values from a latent: views [heads, dim, rank] of this rank's heads."""
    weight = module.kv_b_proj.weight
    plain = module.qk_nope_head_dim
    heads = weight.view(-1, plain + module.v_head_dim, weight.shape[-1])
    return heads[:, :plain], heads[:, plain:]
