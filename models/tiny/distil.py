"""Distillation of `brim-tiny-draft`: it learns the model's own distribution over the next token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812

from models.tiny.batches import Conversations, batches
from models.tiny.optimise import Course, optimise
from models.tiny.train import LONG, Plan, compile_layers, compiled, hidden_states, precision, token_weights

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import Qwen3ForCausalLM

_WEIGHT_OF_OTHERS = 0.02  # a draft never proposes what the user says


def _only_long(step: int) -> int:
    return LONG


def cross_entropy(
    hidden: torch.Tensor,
    head: torch.Tensor,
    model_hidden: torch.Tensor,
    model_head: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """Of the draft's distribution against the model's."""
    wanted = F.linear(model_hidden, model_head).float().softmax(-1)
    losses = -(wanted * F.linear(hidden, head).float().log_softmax(-1)).sum(-1)
    return (losses * weights).sum()


def distil(draft: Qwen3ForCausalLM, model: Qwen3ForCausalLM, tokenizer: Tokenizer, plan: Plan) -> Course:
    """Train the draft; the model stays as it is."""
    model.eval().requires_grad_(False)
    draft.to(plan.device).train()
    compile_layers(draft, plan.device)
    weighted = compiled(cross_entropy, plan.device)

    def loss(ids: torch.Tensor, said: torch.Tensor) -> torch.Tensor:
        inputs = ids[:, :-1].contiguous()
        weights = token_weights(ids[:, 1:], said[:, 1:], draft.config.pad_token_id, _WEIGHT_OF_OTHERS)
        with precision(plan.device):
            with torch.no_grad():
                wanted = hidden_states(model, inputs)
            return weighted(hidden_states(draft, inputs), draft.lm_head.weight, wanted, model.lm_head.weight, weights)

    source = Conversations(tokenizer, f"distil {plan.seed}", plan.batch_tokens, _only_long, plan.steps)
    return optimise(draft, loss, batches(source, plan.device, plan.workers), plan.steps, plan.rate)
