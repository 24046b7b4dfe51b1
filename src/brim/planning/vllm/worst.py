"""The worst steps that vLLM's API allows, by formula: the same ones that Brim's fit runs inside vLLM.

In: a spec and a run. Out: bytes that a step holds at its peak, beyond what stands between steps. The moments are those
of `brim.vllm.runner.steps`, of which vLLM's own profile knows a part:

- attention, where many short chunks of prompts stand behind long contexts (`attention`);
- a recurrent layer, with the states of all chunks (`recurrent`);
- the widest tensors of a layer, which the profile sees too;
- sampling, with penalties, top-k, top-p and log-probabilities of every row, verified drafts among them;
- prompts that are scored, in the chunks in which the runner makes their logits.

Two steps are in flight: of the first one only results are left, which are small.
"""

from __future__ import annotations

from brim.planning.vllm.attention import attention_moment
from brim.planning.vllm.kernels import ELEMENT_BYTES, FP32_BYTES, MATRIX_WORKSPACE_BYTES
from brim.planning.vllm.pool import kv_pool
from brim.planning.vllm.profile import (
    encoder_bytes,
    experts_workspace,
    hidden_bytes,
    layer_peak,
    selection_bytes,
)
from brim.planning.vllm.recurrent import recurrent_moment
from brim.planning.vllm.run import VllmRun
from brim.records.model import ModelSpec
from brim.units import MIB, round_down

_SCORED_TOKENS = 1024  # whose logits the second runner makes at once
_LOGPROBS = 20  # that a request may ask for, by default
_SCORE_BYTES = (_LOGPROBS + 1) * (8 + 4) + 8  # of a scored token: ids and log-probabilities, and its rank
_FIRST_RUNNER_BYTES = 16 * MIB  # small tensors that it makes when they are first needed
_CHUNK_STEP_TOKENS = 16


def worst_step(spec: ModelSpec, run: VllmRun) -> int:
    """The peak of the worst step, its encoder included."""
    return max(_unscored(spec, run), _scoring(spec, run, scored_chunk(spec, run)), encoder_bytes(spec, run))


def scored_chunk(spec: ModelSpec, run: VllmRun) -> int:
    """Tokens of one prompt that a step may have so that scoring them is not what sizes it.

    The second runner scores some tokens at a time. The first makes the logits of all that a step has of a prompt, so
    their number must be limited: to what other steps take anyway, and never below what the second runner takes, or a
    block of a hybrid's cache, which its prompts advance by.
    """
    if run.second_runner:
        return min(_SCORED_TOKENS, run.batch_tokens)
    if not spec.vocab:
        return run.batch_tokens  # a pipeline stage without the head scores nothing
    token = spec.vocab * _scored_element(spec, run)
    free = round_down((_unscored(spec, run) - hidden_bytes(spec, run)) // token, _CHUNK_STEP_TOKENS)
    block = max((kind.block_tokens for kind in kv_pool(spec, run.kv_dtype, run.ranks).kinds), default=0)
    return min(run.batch_tokens, max(_SCORED_TOKENS, block, free))


def limits_chunks(spec: ModelSpec, run: VllmRun) -> bool:
    """Whether vLLM must be told to cut prompts into chunks for that."""
    return not run.second_runner and scored_chunk(spec, run) < min(run.batch_tokens, run.max_len)


def kept_workspace(spec: ModelSpec, run: VllmRun) -> int:
    """The experts' workspace, which once made stays."""
    return max((experts_workspace(spec, run, layer) for layer, _ in spec.layer_groups), default=0)


def _unscored(spec: ModelSpec, run: VllmRun) -> int:
    layers = layer_peak(spec, run) - kept_workspace(spec, run) - MATRIX_WORKSPACE_BYTES
    step = max(layers, attention_moment(spec, run), recurrent_moment(spec, run), _sampling(spec, run))
    return step + _made_late(spec, run)


def _sampling(spec: ModelSpec, run: VllmRun) -> int:
    """Logits of all rows, the copies that the runner's sampler makes of them, and the last hidden states."""
    rows = run.verified_rows * spec.vocab
    if run.second_runner:  # logits, and those before penalties, for log-probabilities
        return hidden_bytes(spec, run) + 2 * rows * _logit_bytes(spec, run)
    counts = 2 * (8 + 1)  # of tokens in prompt and output, and whether there are any
    return hidden_bytes(spec, run) + rows * (_logit_bytes(spec, run) + 4 * FP32_BYTES + counts)


def _scoring(spec: ModelSpec, run: VllmRun, tokens: int) -> int:
    """Logits of a chunk, and what is left of the one before while they are made.

    The second runner keeps the scores of a prompt on the device, and joins those of its chunks at the end.
    """
    joined = 2 * run.max_len * _SCORE_BYTES if run.second_runner and run.max_len > run.batch_tokens else 0
    return hidden_bytes(spec, run) + tokens * spec.vocab * _scored_element(spec, run) + joined


def _scored_element(spec: ModelSpec, run: VllmRun) -> int:
    """Bytes of a scored token, for an entry of the vocabulary."""
    if run.second_runner:
        return 2 * _logit_bytes(spec, run)
    return _logit_bytes(spec, run) + 2 * FP32_BYTES  # log-probabilities: of this prompt, and of the one before


def _logit_bytes(spec: ModelSpec, run: VllmRun) -> int:
    """Logits, once more where they are capped, and once more where ranks have parts of them."""
    return ELEMENT_BYTES * (1 + bool(spec.logits_softcap) + (run.ranks > 1))


def _made_late(spec: ModelSpec, run: VllmRun) -> int:
    """Made when first needed, and kept: the buffer of top-k and top-p, and the tokens that rows are restricted to."""
    if run.second_runner:
        return selection_bytes(spec, run)
    return run.max_seqs * spec.vocab + _FIRST_RUNNER_BYTES
