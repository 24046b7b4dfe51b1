"""A tiny model with random weights, whose tokenizer has the marks of Hermes and `<think>` as special tokens.

Where the text of an answer matters it is scripted: a grammar that allows one text only is slipped under the request, so
all else is real.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from brim import Engine, EngineSettings, Grammar
from brim.engine.front.validation import GenerationRequest
from tests.integration.served import Served
from tests.integration.tiny_models import tiny_config
from tests.unit.serve.parse.marked import marked_tokenizer

TEMPLATE = (
    "{% for t in tools or [] %}tool {{ t.function.name }}\n{% endfor %}{% for m in messages %}{{ m.role }}: "
    "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments }}{% endfor %}\n"
    "{% endfor %}assistant: "
)


def marked_engine(folder: Path, template: str = TEMPLATE) -> Engine:
    from transformers import AutoTokenizer

    marked_tokenizer("hermes", "think", template=template).save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    config = tiny_config("llama") | {
        "num_hidden_layers": 1,
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
    }
    settings = EngineSettings(max_batch=4, max_batch_tokens=256, max_length=1024, block_size=8)
    return Engine(
        config | {"max_position_embeddings": 1024, "torch_dtype": "float32"},
        kv_tokens=4096,
        settings=settings,
        load_format="dummy",
        device="cpu",
        tokenizer=tokenizer,
    )


@contextmanager
def saying(forms: Served, text: str) -> Iterator[None]:
    """Every answer is this text."""
    running = forms.server.lifecycle.running
    assert running is not None
    added = {token.content: number for number, token in forms.engine.tokenizer.added_tokens_decoder.items()}
    rules, rest = [], text
    while rest:
        places = {rest.find(mark): mark for mark in added if mark in rest}
        first = min(places, default=len(rest))
        if first:
            rules.append(json.dumps(rest[:first], ensure_ascii=False))
        rest = rest[first:]
        if rest:
            rules.append(f"<[{added[places[first]]}]>")
            rest = rest[len(places[first]) :]
    script = Grammar.lark(f"start: {' '.join(rules)}")
    real = running.serving.stream_request

    def scripted(given: GenerationRequest) -> Any:
        return real(replace(given, params=replace(given.params, grammar=script)))

    running.serving.stream_request = scripted  # type: ignore[method-assign]
    try:
        yield
    finally:
        running.serving.stream_request = real  # type: ignore[method-assign]
