"""The head of a model as a matrix and what its class does with the products, so that parts of it can be computed.

In: a model. Out: a `Head`, or None where the class is not of that form: a head that is split over ranks, that is no
plain linear layer, or whose logits are more than a scale and a soft cap of its products. Which scale and which cap is
not read from configs, that name them differently: the class is given products and its logits are looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from brim.engine.weights.text_model import TextModel

_SMALL, _LARGE = 2.0**-10, 2.0**20  # products far below any cap, and beyond every cap; powers of two stay exact
_WIDEST = 60.0  # products of the probe, to both sides
_CLOSE = 1e-5
_ROUNDING = 8  # units in the last place, of the largest logit, that two ways to the same logits may be apart


@dataclass(frozen=True, slots=True, eq=False)
class LogitsHead:
    """Logits are `cap · tanh(scale · (weight · x + bias) / cap)`, without a cap `scale · (weight · x + bias)`."""

    weight: torch.Tensor  # [vocabulary, hidden]
    bias: torch.Tensor | None = None  # [vocabulary]
    scale: float = 1.0
    cap: float | None = None
    copies_input: bool = False  # the class changes hidden states before they are multiplied

    @property
    def vocab(self) -> int:
        return self.weight.shape[0]

    @property
    def width(self) -> int:
        return self.weight.shape[1]

    def finish_(self, products: torch.Tensor, first: int = 0) -> torch.Tensor:
        """Logits from products of the vocabulary from `first` on, in place."""
        if self.bias is not None:
            products += self.bias[first : first + products.shape[-1]]
        if self.scale != 1.0:
            products *= self.scale
        if self.cap is not None:
            products.div_(self.cap).tanh_().mul_(self.cap)
        return products


@torch.no_grad()
def find_head(text_model: TextModel) -> LogitsHead | None:
    """The head of this model, if it is of that form."""
    linear = text_model.head
    if type(linear) is not torch.nn.Linear or type(linear.weight) is not torch.nn.Parameter:
        return None
    if linear._forward_hooks or linear._forward_pre_hooks or "forward" in linear.__dict__:
        return None
    weight, bias = linear.weight.detach(), None if linear.bias is None else linear.bias.detach()
    if weight.device.type == "meta":  # no values: all sizes are those of any scale
        return LogitsHead(weight, bias)
    form = _form(text_model, weight)
    if form is None:
        return None
    found = LogitsHead(weight, bias, *form)
    return _same_logits(text_model, found)


def _form(text_model: TextModel, weight: torch.Tensor) -> tuple[float, float | None] | None:
    """Scale and cap, from what the class makes of products that differ in every column."""
    vocab = weight.shape[0]
    spread = torch.linspace(-_WIDEST, _WIDEST, vocab, dtype=torch.float32, device=weight.device)
    probe = torch.stack([spread, torch.full_like(spread, _SMALL), torch.full_like(spread, _LARGE)])
    logits = text_model.logits_of_products(probe.clone())
    if logits.shape != probe.shape or logits.dtype != torch.float32:
        return None
    scale = float(logits[1, 0]) / _SMALL
    scale = 1.0 if abs(scale - 1.0) < _CLOSE else scale
    beyond = float(logits[2, 0])
    cap = None if beyond > _LARGE * scale / 2 else beyond
    if scale <= 0 or (cap is not None and cap <= 0):
        return None
    wanted = LogitsHead(weight, None, scale, cap).finish_(probe)
    return (scale, cap) if torch.allclose(logits, wanted, rtol=_CLOSE, atol=_CLOSE * _SMALL) else None


def _same_logits(text_model: TextModel, found: LogitsHead) -> LogitsHead | None:
    """The head, if it makes of a few hidden states what the class makes of them."""
    weight = found.weight
    numbers = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, found.width, generator=numbers).to(weight.device, text_model.dtype)
    given = text_model.head_input(hidden)
    wanted = text_model.logits(hidden, torch.arange(2, device=weight.device)).float()
    if given.shape != (2, found.width) or wanted.shape != (2, found.vocab):
        return None
    logits = found.finish_(torch.nn.functional.linear(given, weight).float())
    allowed = _ROUNDING * torch.finfo(weight.dtype).eps * float(wanted.abs().max())
    if not bool((logits - wanted).abs().max() <= allowed):
        return None
    copies = given.untyped_storage().data_ptr() != hidden.untyped_storage().data_ptr()
    return LogitsHead(weight, found.bias, found.scale, found.cap, copies)
