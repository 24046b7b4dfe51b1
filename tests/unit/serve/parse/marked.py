"""A tokenizer of bytes with the marks of any format as tokens of their own."""

from __future__ import annotations

from typing import Any

from brim.serve.parse.table import REASONING_FORMATS, TOOL_FORMATS

END = "<|end of text|>"


def marked_tokenizer(*names: str, special: bool = True, template: str = "") -> Any:
    """With the marks of the formats of these names, which are left out of texts where they are `special`."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([END])
    marks = [mark for one in (*TOOL_FORMATS, *REASONING_FORMATS) if one.name in names for mark in one.marks]
    backend.add_tokens([AddedToken(mark, special=special) for mark in dict.fromkeys(marks)])
    made = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END)
    made.chat_template = template or "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
    return made
