"""The tokenizer: byte-level BPE, learned from the conversations themselves.

Every digit is a token, so that numbers can be computed with. A turn's first word is a token with a space before it, as
any other word is (the decoder takes the space away again): so a text is copied token by token wherever it stands.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from models.tiny.conversation import conversation
from models.tiny.dialogue import CHAT_TEMPLATE, END, PADDING, ROLES, opening

VOCABULARY = 2048
SPECIAL = (PADDING, END, *(opening(role) for role in ROLES))
_SAMPLE_CONVERSATIONS = 3000
_SAMPLE_CHARACTERS = 3000
CONTEXT = 2048


def learn_tokenizer(seed: int) -> Tokenizer:
    """A tokenizer for the conversations that this seed makes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True),
            pre_tokenizers.Digits(individual_digits=True),
        ]
    )
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sample(seed), trainer)
    return tokenizer


def _sample(seed: int) -> Iterator[str]:
    for index in range(_SAMPLE_CONVERSATIONS):
        for turn in conversation(Random(f"tokenizer {seed} {index}"), _SAMPLE_CHARACTERS):
            yield turn.text


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """As `transformers` reads it, with the chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "eos_token": END,
        "pad_token": PADDING,
        "additional_special_tokens": [opening(role) for role in ROLES],
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
