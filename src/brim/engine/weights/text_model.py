"""A `transformers` model in two parts that the engine calls one after the other: the decoder, and the head.

Splitting them lets the engine compute logits only where a token is drawn, or a slice at a time, with whatever the
class does around its head (scaling, capping). The decoder of a model with towers is its language model; that of OPT
lies one deeper than elsewhere, and its head calls it there. A class that makes logits of all rows is given only those
that are wanted.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class _Hidden:
    """Stands for the decoder's output when only the head is to run."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: int) -> torch.Tensor:
        assert index == 0, "only the hidden states are known here"
        return self.last_hidden_state

    def __getattr__(self, name: str) -> None:
        return None


class TextModel:
    """The decoder and the head of a causal language model."""

    def __init__(self, model: Any) -> None:
        self.model = model
        base = model.base_model if model.base_model is not model else model.get_decoder()
        self._base = base.decoder if hasattr(getattr(base, "decoder", None), "set_attn_implementation") else base
        self.backbone: torch.nn.Module = getattr(self._base, "language_model", self._base)
        self._takes_rows = "logits_to_keep" in inspect.signature(type(model).forward).parameters

    @property
    def dtype(self) -> torch.dtype:
        return next(self.backbone.parameters()).dtype

    def hidden(
        self,
        tokens: torch.Tensor | None,
        positions: torch.Tensor,
        *,
        embeddings: torch.Tensor | None = None,
        cache: Any = None,
        extra: dict[str, Any] | None = None,
    ) -> torch.Tensor:
        """Hidden states of packed tokens [tokens]; positions are [tokens], or [3, tokens] with M-RoPE."""
        places = positions[None] if positions.dim() == 1 else positions[:, None]
        output = self.backbone(
            input_ids=None if tokens is None else tokens[None],
            inputs_embeds=None if embeddings is None else embeddings[None],
            position_ids=places,
            past_key_values=cache,
            use_cache=cache is not None,
            **(extra or {}),
        )
        return output[0][0]  # type: ignore[no-any-return]

    def logits(self, hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """[rows, vocabulary]: what the class makes of these hidden states."""
        if self._takes_rows:
            return self._behind_decoder(hidden, logits_to_keep=rows)
        return self._behind_decoder(hidden[rows])

    @property
    def head(self) -> torch.nn.Module | None:
        """The last layer, whose products with hidden states logits are made of; None where the class names none."""
        return self.model.get_output_embeddings()  # type: ignore[no-any-return]

    @property
    def vocab(self) -> int:
        return int(self.model.config.get_text_config().vocab_size)

    def head_input(self, hidden: torch.Tensor) -> torch.Tensor:
        """What the class gives its head for these hidden states; where it changes nothing, they themselves."""
        given: list[torch.Tensor] = []

        def note(found: torch.Tensor) -> torch.Tensor:
            given.append(found)
            return found.new_zeros(*found.shape[:-1], 1)

        self._around_head(hidden, note)
        return given[0][0]

    def logits_of_products(self, products: torch.Tensor) -> torch.Tensor:
        """What the class makes of these products [rows, vocabulary] of its head."""
        head: Any = self.head
        hidden = head.weight.new_zeros(products.shape[0], head.weight.shape[1])
        return self._around_head(hidden, lambda given: products[None])

    def _around_head(self, hidden: torch.Tensor, head: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """The class's own code behind its decoder, with another function in place of its head."""
        with _replaced(self.head, head):
            return self._behind_decoder(hidden, **({"logits_to_keep": 0} if self._takes_rows else {}))

    def _behind_decoder(self, hidden: torch.Tensor, **rows: Any) -> torch.Tensor:
        """The class's own code behind its decoder, which is said to have made these hidden states.

        They stand for the embeddings too: of those, a class looks at the shape.
        """
        stand_in = _Hidden(hidden[None])
        with _replaced(self._base, lambda *args, **kwargs: stand_in):
            output = self.model(input_ids=None, inputs_embeds=hidden[None], use_cache=False, **rows)
        return output.logits[0]  # type: ignore[no-any-return]

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model.get_input_embeddings()(tokens)  # type: ignore[no-any-return]


@contextmanager
def _replaced(module: Any, forward: Callable[..., Any]) -> Iterator[None]:
    """Another forward for a module, for as long as this lasts."""
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        del module.__dict__["forward"]
