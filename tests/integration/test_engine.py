"""The engine beside `transformers`' own `generate`: token for token, whatever else happens around a request.

Everything runs in fp32 on the CPU, on tiny models whose weights are spread so that no token repeats itself for ever.
"""

from __future__ import annotations

import copy
import gc
import math
import random
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch

from brim.engine.engine import Engine
from brim.engine.front.answers import Completion
from brim.engine.requests.params import SamplingParams
from brim.engine.requests.request import FinishReason
from brim.engine.schedule.queue import WaitingQueue
from brim.engine.settings import EngineSettings
from brim.engine.weights.load import LoadedModel, load
from brim.errors import InvalidRequest, OutOfMemory
from brim.probes.cpu import CpuProbe
from tests.integration.tiny_models import VOCAB, tiny_config

GIB = 2**30
SHARED_KV = {
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "num_hidden_layers": 6,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 8,
    "attention_k_eq_v": False,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        kind: (kind, {})
        for kind in (
            "llama",
            "mistral",
            "qwen2",
            "qwen3",
            "qwen3_moe",
            "mixtral",
            "gemma2",
            "gemma3_text",
            "gemma4_text",
            "gpt_bigcode",
            "granitemoehybrid",
            "qwen3_5_text",
            "qwen3_next",
            "nemotron_h",
            "gpt_oss",
            "deepseek_v3",
            "phi3",
            "olmo3",
            "cohere2",
            "lfm2",
        )
    },
    "gemma4_text, shared KV": ("gemma4_text", SHARED_KV),
}


@dataclass
class Family:
    """A model for engines, and a copy of it that answers as `transformers` does."""

    loaded: LoadedModel
    reference: Any
    answers: dict[tuple[int, ...], list[int]] = field(default_factory=dict)

    def engine(self, kv_tokens: int = 512, *, tokenizer: Any = None, probe: Any = None, **settings: Any) -> Engine:
        chosen = {"max_batch": 4, "max_batch_tokens": 24, "block_size": 8, **settings}
        return Engine(
            self.loaded,
            kv_tokens=kv_tokens,
            settings=EngineSettings(**chosen),
            device="cpu",
            tokenizer=tokenizer,
            probe=probe,
        )

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """What `generate` says; asked once for each prompt."""
        known = self.answers.get(tuple(prompt), [])
        if len(known) < count:
            ids = torch.tensor([prompt])
            output = self.reference.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=count,
                min_new_tokens=count,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
            known = self.answers[tuple(prompt)] = output[0, len(prompt) :].tolist()
        return known[:count]

    @torch.no_grad()
    def log_probabilities(self, tokens: Sequence[int]) -> torch.Tensor:
        """[tokens, vocabulary]: of whatever follows each token, by one forward of the whole text."""
        return self.reference(torch.tensor([tokens]), use_cache=False).logits[0].float().log_softmax(-1)


@cache
def family(name: str) -> Family:
    kind, changes = FAMILIES[name]
    config = tiny_config(kind, tie_word_embeddings=False, **changes)
    loaded = load(config, load_format="dummy", dtype="fp32", attention="eager")
    _spread(loaded.model)
    for module in loaded.model.modules():
        # transformers clamps the time step of Mamba-2 in prefill and not in decode: a preempted request, recomputed as
        # a prompt, would end in another state than one that was decoded token by token.
        if hasattr(module, "time_step_limit"):
            module.time_step_limit = (0.0, float("inf"))
    return Family(loaded, copy.deepcopy(loaded.model))


@torch.no_grad()
def _spread(model: Any) -> None:
    """Weights under which attention looks far back, and the next token depends on all of it."""
    numbers = torch.Generator().manual_seed(3)
    for name, weight in model.named_parameters():
        if "embed" in name or "wte" in name or "sinks" in name:
            weight.normal_(0, 1, generator=numbers)
        elif weight.dim() > 1:
            weight.normal_(0, 2 / math.sqrt(weight.shape[-1]), generator=numbers)


def prompts_of(lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    numbers = random.Random(seed)
    return [[numbers.randrange(3, VOCAB) for _ in range(length)] for length in lengths]


def greedy(max_tokens: int, **others: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True, **others})


def drawn(max_tokens: int, seed: int, **others: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=seed, **others)


def run(engine: Engine, wanted: Sequence[str]) -> dict[str, list[Completion]]:
    """Step until these requests have ended."""
    done: dict[str, list[Completion]] = {}
    for _ in range(2000):
        if engine.idle:
            break
        for update in engine.step():
            if update.completion is not None:
                done.setdefault(update.request_id, []).append(update.completion)
    assert engine.idle
    return {name: sorted(done.get(name, []), key=lambda one: one.index) for name in wanted}


def nothing_is_held(engine: Engine) -> bool:
    return (engine.figures.blocks_held, engine.figures.running, engine.figures.waiting) == (0, 0, 0)


# -- the same tokens as generate -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_tokens_are_those_of_generate(name: str) -> None:
    """Prompts are computed in chunks of at most 13 tokens, in steps with decodes."""
    model = family(name)
    prompts = prompts_of([3, 45, 17, 30])
    wanted = [model.greedy(prompt, 10) for prompt in prompts]
    with model.engine(max_batch_tokens=13, max_batch=3) as engine:
        got = engine.generate(prompts, greedy(10))
        assert [list(one.tokens) for one in got] == wanted
        assert {one.finish_reason for one in got} == {FinishReason.LENGTH}
        assert engine.loop.figures.largest_step == 13
        assert nothing_is_held(engine)
    assert len({token for answer in wanted for token in answer}) >= 12, "answers that repeat themselves prove little"
    assert sum(len(set(answer)) for answer in wanted) >= 4 * len(wanted)


# Answers are expected to be short, so that more requests start than fit in the end, and some are preempted.
EAGER: dict[str, Any] = {"admission_prior": 1, "admission_watermark": 0.0}


@dataclass
class Seen:
    """What happened in the examples, so that a test can check that it covered enough."""

    preemptions: int = 0
    reused: int = 0
    cancelled: int = 0
    finished: int = 0


def example(model: Family, numbers: random.Random, seen: Seen, *, tight: bool) -> None:
    """One engine of random sizes, with requests that come, share beginnings, and are cancelled at random steps."""
    max_batch = 6 if tight else numbers.choice([1, 2, 4])
    engine = model.engine(
        56 if tight else numbers.choice([64, 96, 256]),
        max_batch=max_batch,
        max_batch_tokens=numbers.choice([max_batch, 7, 16, 40]),
        block_size=8 if tight else numbers.choice([8, 16]),
        overlap=numbers.random() < 0.7,
        **(EAGER if tight or numbers.random() < 0.5 else {"admission": "worst"}),
    )
    prefixes = [[]] if tight else [[], *prompts_of([16, 24], seed=1)]
    tails = prompts_of([1, 4, 11], seed=2)
    comes: dict[int, list[tuple[list[int], int]]] = {}
    for _ in range(6):
        prompt = numbers.choice(prefixes) + numbers.choice(tails)
        step, count = (0, 18) if tight else (numbers.choice([0, 0, 3, 9, 20]), numbers.choice([1, 10, 18]))
        comes.setdefault(step, []).append((prompt, count))
    wanted: dict[str, list[int]] = {}
    done: dict[str, Completion] = {}
    for step in range(1000):
        for prompt, count in comes.pop(step, []):
            wanted[engine.submit(prompt, greedy(count))] = model.greedy(prompt, 18)[:count]
        if wanted and numbers.random() < 0.03:
            seen.cancelled += engine.cancel(numbers.choice(list(wanted)))
        if engine.idle and not comes:
            break
        for update in engine.step():
            if update.completion is not None:
                done[update.request_id] = update.completion
    assert engine.idle
    for request_id, completion in done.items():
        assert list(completion.tokens) == wanted[request_id]
        seen.reused += completion.reused_tokens
    seen.finished += len(done)
    seen.preemptions += engine.figures.preemptions
    assert nothing_is_held(engine)
    engine.close()


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "gemma4_text, shared KV", "qwen3_next", "mistral"])
def test_whatever_happens_around_it_a_request_gets_its_own_answer(name: str) -> None:
    numbers, seen = random.Random(name), Seen()
    for number in range(7):
        example(family(name), numbers, seen, tight=number < 2)
    assert seen.finished > 21
    assert seen.preemptions > 0
    assert seen.cancelled > 0
    assert (seen.reused > 0) == (name != "qwen3_next")  # a state that was passed over cannot be found again


@pytest.mark.soak
@pytest.mark.parametrize("name", FAMILIES)
def test_the_same_for_a_long_time(name: str) -> None:
    numbers, seen = random.Random(f"soak {name}"), Seen()
    for number in range(40):
        example(family(name), numbers, seen, tight=number % 4 == 0)
    assert seen.finished > 120
    assert seen.preemptions > 0


def test_overlap_changes_nothing() -> None:
    model = family("gemma3_text")
    prompts = prompts_of([3, 20, 41, 9, 33], seed=4)
    params = [greedy(12), drawn(12, 1), drawn(9, 2, top_p=0.8), drawn(12, 3, presence_penalty=1.0), greedy(5)]
    answers = []
    for overlap in (True, False):
        with model.engine(overlap=overlap) as engine:
            answers.append([one.tokens for one in engine.generate(prompts, params)])
    assert answers[0] == answers[1]


# -- what was asked --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "lfm2"])
def test_several_answers_are_those_of_several_requests(name: str) -> None:
    """Forks share blocks, windows and states do not fork: the answers are the same."""
    prompt = prompts_of([21])[0]
    with family(name).engine(max_batch=3) as engine:
        together = engine.generate([prompt], drawn(14, 5, n=3))
        apart = engine.generate([prompt] * 3, [drawn(14, seed) for seed in (5, 6, 7)])
        assert [one.tokens for one in together] == [one.tokens for one in apart]
        assert [one.index for one in together] == [0, 1, 2]
        assert len({one.tokens for one in together}) == 3
        assert nothing_is_held(engine)


def test_more_answers_than_slots() -> None:
    """Late forks find a parent that has moved on or finished; no answer overwrites another's blocks."""
    prompt = prompts_of([13])[0]
    with family("llama").engine(max_batch=2) as engine:
        for _ in range(2):  # the second time, blocks of the first are found again
            together = engine.generate([prompt], drawn(20, 5, n=5))
            apart = [engine.generate([prompt], drawn(20, 5 + number))[0] for number in range(5)]
            assert [one.tokens for one in together] == [one.tokens for one in apart]
        longer = list(prompt) + list(together[0].tokens[:12])
        found = engine.generate([longer], greedy(6))[0]
        assert found.reused_tokens == 24
        assert list(found.tokens) == family("llama").greedy(longer, 6)


def test_a_seed_gives_the_same_text_in_any_batch() -> None:
    prompt, *others = prompts_of([19, 30, 5, 44], seed=6)
    with family("llama").engine() as engine:
        alone = engine.generate([prompt], drawn(12, 9))[0].tokens
        engine.submit(others[0], drawn(30, 1))
        for _ in range(3):
            engine.step()
        crowd = [engine.submit(other, drawn(10, 2)) for other in others[1:]]
        mine = engine.submit(prompt, drawn(12, 9))
        assert run(engine, [*crowd, mine])[mine][0].tokens == alone
        assert engine.generate([prompt], drawn(12, 10))[0].tokens != alone


@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen3_next"])
def test_logprobs_are_those_of_a_forward_of_the_whole_text(name: str) -> None:
    model = family(name)
    prompt = prompts_of([37])[0]
    with model.engine(max_batch_tokens=11) as engine:
        engine.generate([prompt], greedy(2))  # its blocks are there to be found, and must not be used
        params = drawn(8, 3, logprobs=4, prompt_logprobs=3, n=2)
        for one in engine.generate([prompt], params):
            scores = model.log_probabilities([*prompt, *one.tokens])
            assert [each.token for each in one.prompt_logprobs] == prompt[1:]
            assert [each.token for each in one.logprobs] == list(one.tokens)
            for place, each in enumerate([*one.prompt_logprobs, *one.logprobs]):
                assert each.logprob == pytest.approx(float(scores[place, each.token]), abs=2e-3)
                top = scores[place].topk(len(each.top))
                assert [value for _, value in each.top] == pytest.approx(top.values.tolist(), abs=2e-3)
                assert all(float(scores[place, token]) == pytest.approx(value, abs=2e-3) for token, value in each.top)
            assert {len(each.top) for each in one.prompt_logprobs} == {3}
            assert {len(each.top) for each in one.logprobs} == {4}


def test_stop_ids_end_an_answer_and_are_its_last_token() -> None:
    model = family("llama")
    prompt = prompts_of([10])[0]
    answer = model.greedy(prompt, 12)
    stop = answer[5]
    first = answer.index(stop)
    with model.engine() as engine:
        one = engine.generate([prompt], greedy(12, stop_token_ids=(stop,)))[0]
        assert (list(one.tokens), one.finish_reason) == (answer[: first + 1], FinishReason.STOP)
        kept = engine.generate([prompt], greedy(12, stop_token_ids=(stop,), min_tokens=first + 1))[0]
        assert list(kept.tokens[:first]) == answer[:first]
        assert stop not in kept.tokens[: first + 1]
        assert len(kept.tokens) > first + 1


def test_the_models_own_end_of_text_ends_an_answer_unless_told_otherwise() -> None:
    model = family("llama")
    prompt = prompts_of([10])[0]
    bias = ((model.loaded.eos_ids[0], 100.0),)  # it is drawn at once
    with model.engine() as engine:
        ended = engine.generate([prompt], greedy(6, logit_bias=bias, ignore_eos=False))[0]
        assert (ended.tokens, ended.finish_reason) == (model.loaded.eos_ids, FinishReason.STOP)
        went_on = engine.generate([prompt], greedy(6, logit_bias=bias))[0]
        assert (went_on.tokens, went_on.finish_reason) == (model.loaded.eos_ids * 6, FinishReason.LENGTH)


class Letters:
    """A minimal tokenizer: every token is a character."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [ord(character) - 0x100 for character in text]}

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return "".join(chr(token + 0x100) for token in tokens)


def test_stop_strings_end_an_answer_before_their_first_character() -> None:
    model, letters = family("llama"), Letters()
    prompt = prompts_of([10])[0]
    text = letters.decode(model.greedy(prompt, 16), skip_special_tokens=True)
    stop = text[7:10]
    with model.engine(tokenizer=letters) as engine:
        request = letters.decode(prompt, skip_special_tokens=True)
        one = engine.generate([request], greedy(16, stop=(stop, "never")))[0]
        assert (one.text, one.finish_reason) == (text[: text.index(stop)], FinishReason.STOP)
        assert len(one.tokens) == len(one.text or "") + 3
        pieces = ""
        engine.submit(request, greedy(16, stop=(stop,)))
        while not engine.idle:
            for update in engine.step():
                pieces += update.text
        assert pieces == one.text
        assert engine.generate([request], greedy(16))[0].text == text
        assert nothing_is_held(engine)


def test_of_several_answers_each_stops_once() -> None:
    """One that stops by its text while two of its tokens are read in one step ends once, and the others go on."""
    letters = Letters()
    prompt = prompts_of([10, 6], seed=8)[0]
    with family("llama").engine(tokenizer=letters) as engine:
        first = engine.generate([prompt], drawn(30, 4, n=2))[0]
        assert first.text is not None
        for place in range(2, 8):
            engine.loop._overlap = True
            name = engine.submit(prompt, drawn(30, 4, n=2, stop=(first.text[place],)))
            early = [update.completion for _ in range(place + 1) for update in engine.step() if update.completion]
            engine.loop._overlap = False  # the next step is read back at once, and the one before it with it
            answers = sorted([*early, *run(engine, [name])[name]], key=lambda one: one.index)
            assert [one.index for one in answers] == [0, 1]
            assert answers[0].text == first.text[: first.text.index(first.text[place])]
            assert len(answers[0].tokens) == len(answers[0].text) + 1


def test_a_deadline_ends_one_request_and_no_other() -> None:
    model = family("llama")
    prompts = prompts_of([8, 12])
    with model.engine() as engine:
        late = engine.submit(prompts[0], greedy(100), deadline_seconds=1e-6)
        other = engine.submit(prompts[1], greedy(8), deadline_seconds=1000)
        done = run(engine, [late, other])
        assert [one.finish_reason for one in done[late]] == [FinishReason.DEADLINE]
        assert list(done[other][0].tokens) == model.greedy(prompts[1], 8)
        assert nothing_is_held(engine)


def test_an_answer_ends_where_the_context_or_the_pool_does() -> None:
    model = family("llama")
    prompt = prompts_of([45])[0]
    with model.engine(max_length=50) as engine:
        one = engine.generate([prompt], greedy(100))[0]
        assert (list(one.tokens), one.finish_reason) == (model.greedy(prompt, 5), FinishReason.LENGTH)
    with model.engine(kv_tokens=48) as engine:
        one = engine.generate([prompt], greedy(100))[0]
        assert (list(one.tokens), one.finish_reason) == (model.greedy(prompt, 3), FinishReason.LENGTH)


def test_a_request_is_cancelled_by_its_id_and_no_other_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    walks = []

    def walk(queue: WaitingQueue) -> Iterator[Any]:
        walks.append(queue)
        return iter(queue.copy())

    engine = family("llama").engine(64, max_batch=2)
    ids = [engine.submit(prompt, greedy(4, n=2)) for prompt in prompts_of([5] * 20)]
    engine.step()
    scheduler = engine.loop.scheduler
    with monkeypatch.context() as counted:
        counted.setattr(WaitingQueue, "__iter__", walk)
        assert all(engine.cancel(name) for name in ids[::2])
    assert walks == []
    left = {one.request.id for one in (*scheduler.running, *scheduler.waiting)}
    assert left == set(ids[1::2])
    assert not engine.cancel(ids[0])
    for name in ids[1::2]:
        engine.cancel(name)
    assert scheduler.unfinished == 0
    assert nothing_is_held(engine)


def test_a_cancelled_request_gets_no_more_tokens_and_frees_its_blocks() -> None:
    with family("llama").engine() as engine:
        name = engine.submit(prompts_of([30])[0], greedy(50, n=2), request_id="mine")
        for _ in range(4):
            engine.step()
        assert engine.figures.blocks_held > 0
        assert engine.cancel(name)
        assert not engine.cancel(name)
        assert nothing_is_held(engine)
        assert [update for _ in range(3) for update in engine.step()] == []
        engine.submit([5, 6], greedy(1), request_id="mine")  # the name is free again


# -- bad requests ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "prompt: it is empty"),
        ([5] * 512, "prompt: 512 tokens leave no room in the context of 512"),
        ([5] * 96, "prompt: 96 tokens do not fit the KV pool, which holds 96"),
        ([5, -1], "prompt: token -1 at index 1 is out of vocabulary"),
        ([VOCAB], f"prompt: token {VOCAB} at index 0 is out of vocabulary"),
        ([5, 5, True], "prompt: token True at index 2"),
        ([1.0], "prompt: token 1.0 at index 0"),
        (["a"], "prompt: token 'a' at index 0"),
        ([None], "prompt: token None at index 0"),
        (7, "prompt: must be a string or a list of token ids, not int"),
        (None, "prompt: must be a string or a list of token ids, not NoneType"),
        (b"text", "prompt: must be a string or a list of token ids, not bytes"),
        ("text", "prompt: the model has no tokenizer"),
    ],
)
def test_bad_prompts_are_refused_when_submitted(shared_engine: Engine, prompt: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        shared_engine.submit(prompt, greedy(4))
    assert str(refused.value).startswith(message)
    still_serves(shared_engine)


@pytest.mark.parametrize(
    ("field_name", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("temperature", -1),
        ("temperature", math.nan),
        ("top_p", -0.1),
        ("top_k", -2),
        ("min_p", 2),
        ("repetition_penalty", 0),
        ("presence_penalty", math.inf),
        ("frequency_penalty", -3),
        ("n", 0),
        ("n", 10**6),
        ("seed", "7"),
        ("logprobs", 1000),
        ("stop", ("",)),
        ("stop_token_ids", (-1,)),
        ("stop_token_ids", (VOCAB,)),
        ("logit_bias", ((VOCAB, 1.0),)),
        ("logit_bias", ((5, 1e9),)),
        ("min_tokens", 5),
    ],
)
def test_absurd_sampling_is_refused_by_name(shared_engine: Engine, field_name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=field_name):
        shared_engine.submit([5, 6], SamplingParams(**{"max_tokens": 4, field_name: value}))
    still_serves(shared_engine)


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"images": [object()]}, "images: this model takes text only"),
        ({"deadline_seconds": 0}, "deadline_seconds 0"),
        ({"deadline_seconds": math.nan}, "deadline_seconds nan"),
        ({"deadline_seconds": "soon"}, "deadline_seconds 'soon'"),
        ({"request_id": "taken"}, "request_id 'taken' is in use"),
        ({"request_id": 5}, "request_id 5"),
        ({"session": ["a"]}, r"session is ['a']; must be a string"),
        ({"salt": "x"}, "salt is 'x'; it must be bytes"),
    ],
)
def test_other_bad_requests_are_refused_by_name(shared_engine: Engine, others: dict[str, Any], message: str) -> None:
    shared_engine.submit([5, 6], greedy(2), request_id="taken")
    with pytest.raises(InvalidRequest) as refused:
        shared_engine.submit([5, 6], greedy(4), **others)
    assert str(refused.value).startswith(message)
    run(shared_engine, [])
    still_serves(shared_engine)


def test_stop_strings_need_a_tokenizer(shared_engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match="stop: stop strings need a tokenizer"):
        shared_engine.submit([5], greedy(2, stop=("x",)))


def test_a_refused_prompt_takes_the_others_of_its_call_with_it(shared_engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match="prompt: it is empty"):
        shared_engine.generate([[5, 6], []], greedy(4))
    assert shared_engine.idle
    with pytest.raises(InvalidRequest, match="params: 1 for 2 prompts"):
        shared_engine.generate([[5], [6]], [greedy(4)])
    still_serves(shared_engine)


def test_names_that_the_engine_gives_avoid_those_that_were_given(shared_engine: Engine) -> None:
    named = [shared_engine.submit([5], greedy(1), request_id=f"request-{number}") for number in range(1000)]
    assert shared_engine.submit([5], greedy(1)) not in named
    for name in named:
        shared_engine.cancel(name)
    run(shared_engine, [])


@pytest.fixture(scope="module")
def shared_engine() -> Iterator[Engine]:
    with family("llama").engine(kv_tokens=96) as engine:
        yield engine


def still_serves(engine: Engine) -> None:
    assert nothing_is_held(engine)
    prompt = [5, 9, 40]
    assert list(engine.generate([prompt], greedy(3))[0].tokens) == family("llama").greedy(prompt, 3)


# -- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gemma3_text"])
def test_eight_bit_keys_and_values_are_close(name: str) -> None:
    model = family(name)
    prompt = prompts_of([60])[0]
    with model.engine(kv_dtype="fp8") as engine, torch.no_grad():
        one = engine.generate([prompt], greedy(4, prompt_logprobs=0))[0]
        figures = engine.figures
    scores = model.log_probabilities(prompt)
    differences = [
        abs(each.logprob - float(scores[place, each.token])) for place, each in enumerate(one.prompt_logprobs)
    ]
    spread = float(scores.std())
    assert 0 < sum(differences) / len(differences) < spread / 4
    with model.engine(kv_dtype="fp32") as engine:
        assert engine.figures.kv_bytes == 4 * figures.kv_bytes


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3_next"])
def test_a_pool_goes_without_a_trace_and_comes_back_at_another_size(name: str) -> None:
    model = family(name)
    prompt = prompts_of([25])[0]
    probe = CpuProbe(GIB)
    engine = model.engine(kv_tokens=0, probe=probe)
    with pytest.raises(InvalidRequest, match="not built"):
        engine.submit(prompt)
    gc.collect()
    empty = probe.reading().allocated_bytes
    held = []
    for kv_tokens in (256, 1024, 64):
        engine.build(kv_tokens)
        with pytest.raises(InvalidRequest, match="built already"):
            engine.build(64)
        assert probe.reading().allocated_bytes - empty >= engine.figures.kv_bytes
        assert list(engine.generate([prompt], greedy(8))[0].tokens) == model.greedy(prompt, 8)
        engine.submit(prompt, greedy(8))
        engine.step()  # a step in flight, and a request that will be cancelled
        kv = engine.model.runner.memory.kv
        tensors = [weakref.ref(tensor) for layer in kv.layers for tensor in (layer.keys, layer.values)]
        held.append(probe.reading().allocated_bytes)
        del kv
        engine.teardown()
        gc.collect()
        assert [tensor() for tensor in tensors] == [None] * len(tensors)
        assert probe.reading().allocated_bytes == empty
        assert engine.idle
    assert held[1] > held[0] > held[2]
    engine.close()


def test_a_pool_that_does_not_fit_leaves_nothing_behind() -> None:
    model = family("qwen3_next")
    prompt = prompts_of([25])[0]
    probe = CpuProbe(GIB)
    engine = model.engine(kv_tokens=0, probe=probe, host_memory=0)  # with it, a step is measured that need not fit
    gc.collect()
    empty = probe.reading().allocated_bytes
    before = probe.allocations
    engine.build(128)
    allocations = probe.allocations - before
    engine.teardown()
    assert allocations > 5
    for number in range(1, allocations + 1):
        probe.allocations, probe.fail_at = 0, number
        with pytest.raises(OutOfMemory):
            engine.build(128)
        gc.collect()
        assert probe.reading().allocated_bytes == empty
    probe.fail_at = None
    engine.build(128)
    assert list(engine.generate([prompt], greedy(6))[0].tokens) == model.greedy(prompt, 6)
    engine.close()


@pytest.mark.parametrize("kv_tokens", [7, -1, 2.5, "many"])
def test_pools_of_absurd_sizes_are_refused(kv_tokens: Any) -> None:
    engine = family("llama").engine(kv_tokens=0)
    with pytest.raises(InvalidRequest, match="kv_tokens"):
        engine.build(kv_tokens)
