"""Training of `brim-tiny`: short rows first, then short and long ones in turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812

from models.tiny.batches import Conversations, batches
from models.tiny.optimise import Course, optimise
from models.tiny.tokenizer import CONTEXT

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import Qwen3ForCausalLM

Function = TypeVar("Function", bound=Callable[..., torch.Tensor])

SHORT, LONG = 512, CONTEXT
_SHORT_ONLY_SHARE = 0.3
_WEIGHT_OF_OTHERS = 0.1  # of tokens that the assistant does not say: they teach it to read


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to train, on what."""

    steps: int
    batch_tokens: int
    rate: float
    seed: int
    device: torch.device
    workers: int


def row_length(step: int, steps: int) -> int:
    return SHORT if step < steps * _SHORT_ONLY_SHARE or step % 2 else LONG


def hidden_states(model: Qwen3ForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    """Without a mask but the causal one: rows are full, and what follows the padding of one is not looked at."""
    return model.model(input_ids=ids, attention_mask={"full_attention": None}, use_cache=False).last_hidden_state


def token_weights(targets: torch.Tensor, said: torch.Tensor, padding: int, others: float) -> torch.Tensor:
    """1 for what the assistant says, less for what others say, nothing for padding; they sum to 1."""
    weights = torch.where(said, 1.0, others) * (targets != padding)
    return weights / weights.sum()


def compile_layers(model: Qwen3ForCausalLM, device: torch.device) -> None:
    """On a GPU. The layers are compiled one by one: they share the code, which is then compiled once for all."""
    if device.type == "cuda":
        for layer in model.model.layers:
            layer.compile(dynamic=False)


def compiled(function: Function, device: torch.device) -> Function:
    """On a GPU."""
    return torch.compile(function, dynamic=False) if device.type == "cuda" else function


def precision(device: torch.device) -> torch.autocast:
    """bf16 on a GPU, float32 elsewhere."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def cross_entropy(
    hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    losses = F.cross_entropy(F.linear(hidden, head).float().flatten(0, 1), targets.flatten(), reduction="none")
    return (losses * weights.flatten()).sum()


def train(model: Qwen3ForCausalLM, tokenizer: Tokenizer, plan: Plan) -> Course:
    model.to(plan.device).train()
    compile_layers(model, plan.device)
    weighted = compiled(cross_entropy, plan.device)

    def loss(ids: torch.Tensor, said: torch.Tensor) -> torch.Tensor:
        inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
        weights = token_weights(targets, said[:, 1:], model.config.pad_token_id, _WEIGHT_OF_OTHERS)
        with precision(plan.device):
            return weighted(hidden_states(model, inputs), model.lm_head.weight, targets, weights)

    source = Conversations(
        tokenizer, f"train {plan.seed}", plan.batch_tokens, partial(row_length, steps=plan.steps), plan.steps
    )
    return optimise(model, loss, batches(source, plan.device, plan.workers), plan.steps, plan.rate)
