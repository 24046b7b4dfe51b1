"""How well the two models do what they were trained for: fixed prompts, greedy answers, shares of right ones.

    python -m models.tiny.evaluate --model src/brim/models/brim-tiny --draft src/brim/models/brim-tiny-draft

Also: how many of the draft's proposals of 4 tokens the model accepts on the same conversations.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.stamp import stamp
from models.tiny.cases import DEVELOPMENT, WORDINGS, Case, Wording, cases

BARS = {"recall": 0.90, "system": 0.90, "copying": 0.95, "sums": 0.95}
ACCEPTANCE_BAR = 0.60
PROPOSED = 4
_LONGEST_ANSWER = 100
_TOKENS_TOGETHER = 32_768


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model said to a case, as tokens (the end of the turn included) and as text."""

    case: Case
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str

    @property
    def right(self) -> bool:
        return self.case.passed(self.text)


@dataclass(frozen=True, slots=True)
class Acceptance:
    proposed: int
    accepted: int

    @property
    def share(self) -> float:
        return self.accepted / self.proposed if self.proposed else 0.0


def answers(model: Any, tokenizer: Any, asked: list[Case]) -> list[Answer]:
    """Greedy answers of `generate`, prompts of about one length together."""
    prompts = [_prompt(tokenizer, case) for case in asked]
    order = sorted(range(len(asked)), key=lambda index: len(prompts[index]))
    said: dict[int, Answer] = {}
    for some in _together(order, [len(prompt) + _LONGEST_ANSWER for prompt in prompts]):
        tokens = _generate(model, [prompts[index] for index in some])
        for index, ids in zip(some, tokens, strict=True):
            text = tokenizer.decode(ids, skip_special_tokens=True)
            said[index] = Answer(asked[index], tuple(prompts[index]), tuple(ids), text)
    return [said[index] for index in range(len(asked))]


def _together(order: list[int], lengths: list[int]) -> Iterator[list[int]]:
    """Rows that are computed together: as many as stay under a number of tokens when all are as long as the longest."""
    some: list[int] = []
    for index in order:
        longest = max(lengths[one] for one in (*some, index))
        if some and (len(some) + 1) * longest > _TOKENS_TOGETHER:
            yield some
            some = []
        some.append(index)
    if some:
        yield some


def _prompt(tokenizer: Any, case: Case) -> list[int]:
    text = tokenizer.apply_chat_template(case.messages, add_generation_prompt=True, tokenize=False)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _generate(model: Any, prompts: list[list[int]]) -> list[list[int]]:
    longest = max(map(len, prompts))
    padding, end = model.config.pad_token_id, model.config.eos_token_id
    ids = torch.tensor([[padding] * (longest - len(prompt)) + prompt for prompt in prompts], device=model.device)
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=model.device)
    with torch.inference_mode():
        made = model.generate(ids, attention_mask=mask, max_new_tokens=_LONGEST_ANSWER, do_sample=False)
    rows = made[:, longest:].tolist()
    return [row[: row.index(end) + 1] if end in row else row for row in rows]


def acceptance(draft: Any, said: list[Answer]) -> Acceptance:
    """Speculation as an engine does it: of 4 proposed tokens, those before the first wrong one, and then one more."""
    proposed = accepted = 0
    done = [0] * len(said)
    while running := [index for index, answer in enumerate(said) if done[index] < len(answer.tokens)]:
        proposals = _propose(draft, [[*said[i].prompt, *said[i].tokens[: done[i]]] for i in running])
        for index, proposal in zip(running, proposals, strict=True):
            rest = said[index].tokens[done[index] :]
            right = next((n for n, (a, b) in enumerate(zip(proposal, rest)) if a != b), min(len(proposal), len(rest)))  # noqa: B905
            proposed += len(proposal)
            accepted += right
            done[index] += right + 1
    return Acceptance(proposed, accepted)


def _propose(draft: Any, contexts: list[list[int]]) -> list[list[int]]:
    """The draft's next tokens after each context, greedily; it stops at the end of a turn."""
    end = draft.config.eos_token_id
    proposals: list[list[int]] = [[] for _ in contexts]
    for _ in range(PROPOSED):
        open_ = [index for index, proposal in enumerate(proposals) if end not in proposal]
        for some in _together(open_, [len(context) + PROPOSED for context in contexts]):
            for index, token in zip(some, _next(draft, [contexts[i] + proposals[i] for i in some]), strict=True):
                proposals[index].append(token)
    return proposals


def _next(draft: Any, rows: list[list[int]]) -> list[int]:
    longest = max(map(len, rows))
    padded = [row + [draft.config.pad_token_id] * (longest - len(row)) for row in rows]
    last = torch.tensor([len(row) - 1 for row in rows], device=draft.device)
    with torch.inference_mode():
        hidden = draft.model(torch.tensor(padded, device=draft.device), use_cache=False).last_hidden_state
        chosen: list[int] = (
            draft.lm_head(hidden[torch.arange(len(rows), device=draft.device), last]).argmax(-1).tolist()
        )
    return chosen


def evaluate(
    model_folder: Path, draft_folder: Path | None, share: float = 1.0, words: Wording = DEVELOPMENT
) -> dict[str, Any]:
    """The metrics of a model folder: by group, recall by turns of filler, and the draft's acceptance."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32  # on a CPU, the faster of the two
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=dtype).to(device).eval()
    said = answers(model, tokenizer, cases(tokenizer.backend_tokenizer, share, words))
    metrics: dict[str, Any] = {"groups": _by_group(said), "wrong": _wrong(said)}
    if draft_folder is not None:
        draft = AutoModelForCausalLM.from_pretrained(draft_folder, dtype=dtype).to(device).eval()
        found = {g: acceptance(draft, [a for a in said if a.case.group == g]) for g in BARS}
        total = Acceptance(sum(a.proposed for a in found.values()), sum(a.accepted for a in found.values()))
        metrics["draft"] = {
            "proposed": total.proposed,
            "accepted": total.accepted,
            "share": round(total.share, 4),
            "bar": ACCEPTANCE_BAR,
            "by_group": {group: round(one.share, 4) for group, one in found.items()},
        }
    return metrics


def _by_group(said: list[Answer]) -> dict[str, Any]:
    grouped: dict[str, list[Answer]] = defaultdict(list)
    for answer in said:
        grouped[answer.case.group].append(answer)
    return {
        group: {
            "cases": len(some),
            "right": sum(answer.right for answer in some),
            "share": round(sum(answer.right for answer in some) / len(some), 4),
            **({"bar": BARS[group]} if group in BARS else {}),
        }
        for group, some in grouped.items()
    }


def _wrong(said: list[Answer]) -> list[dict[str, str]]:
    """The first wrong answers of each group, to look at."""
    shown: dict[str, list[dict[str, str]]] = defaultdict(list)
    for answer in said:
        if not answer.right and len(shown[answer.case.group]) < 5:
            case = answer.case
            asked = f"{case.turns[0].text if case.turns[0].role == 'system' else ''} ... {case.turns[-1].text}"
            shown[case.group].append({"group": case.group, "asked": asked, "wanted": case.wanted, "said": answer.text})
    return [one for some in shown.values() for one in some]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--share", type=float, default=1.0, help="of the cases of each group (1)")
    parser.add_argument("--wording", choices=WORDINGS, default="development", help="of the cases (development)")
    parser.add_argument("--commit", default="", help="what the metrics say they were made from")
    parser.add_argument("--out", type=Path, help="write the metrics here too, with the versions they were made with")
    options = parser.parse_args()
    metrics = evaluate(options.model, options.draft, options.share, WORDINGS[options.wording])
    json.dump(metrics, sys.stdout, indent=2)
    print()
    if options.out:
        record = stamp(options.commit) | {"wording": options.wording, "share": options.share, **metrics}
        options.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
