"""Conversations over a real engine: answers equal those of a fresh engine given what is kept, and memory stays flat."""

from __future__ import annotations

import gc
import random
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any
from weakref import ref

import pytest

pytest.importorskip("torch")

from hypothesis import settings as examples
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from brim import Chat, Engine, EngineSettings, SamplingParams
from brim.cli.chat.command import Opener
from brim.cli.chat.local import LocalChat
from brim.engine.attention.paged import NAME, register
from brim.engine.chat.chat import send_all
from brim.engine.chat.turns import Turn, exchanges_of
from brim.engine.front.chat_template import ChatTemplate, chat_tokens
from brim.engine.injection import failing_launches
from brim.engine.weights.load import LoadedModel, load
from brim.errors import BrimError, InvalidRequest
from brim.guard.rolling import RollingSettings
from brim.model.packaged import packaged_folder
from tests.chat_texts import chat_text
from tests.conftest import needs_image_files
from tests.integration.faults import out_of_memory
from tests.integration.tiny_models import tiny_config

GREEDY = SamplingParams(max_tokens=5, temperature=0, ignore_eos=True)
WORDS = "red green blue one two three Ada Bob what is my name the code please remember".split()  # noqa: SIM905

OPTIONS = ("rolling_threshold", "low_water", "strategy", "max_tokens", "temperature", "top_p", "seed")
NOTHING_SAID: dict[str, Any] = dict.fromkeys(OPTIONS)


@cache
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(packaged_folder("brim-tiny")))


@cache
def model(name: str, copy: int, layers: int | None = None) -> LoadedModel:
    """Random weights, the tokenizer and template of the tiny model. An engine binds its model: a copy for each."""
    config = tiny_config(name) | {"vocab_size": len(tokenizer()), "max_position_embeddings": 2048}
    if layers is not None:
        config["num_hidden_layers"] = layers
    register()
    return load(config, load_format="dummy", dtype="fp32", device="cpu", attention=NAME, seed=3)


def engine_of(
    name: str = "llama", kv_tokens: int = 1024, copy: int = 0, layers: int | None = None, **settings: Any
) -> Engine:
    chosen = {"max_batch": 4, "max_batch_tokens": 128, "max_length": 512, "block_size": 8, **settings}
    return Engine(
        model(name, copy, layers),
        kv_tokens=kv_tokens,
        settings=EngineSettings(**chosen),
        device="cpu",
        tokenizer=tokenizer(),
    )


@pytest.fixture
def engine() -> Iterator[Engine]:
    with engine_of() as made:
        yield made


def said(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(1, 12))) + "."


def fresh_answer(chat: Chat, fresh: Engine, params: SamplingParams = GREEDY) -> str:
    """What an engine without a past says to all turns of a chat but the last."""
    messages = replace(chat.conversation.until(len(chat.turns) - 1)).messages
    (answer,) = fresh.generate([chat_tokens(tokenizer(), messages)], params)
    assert answer.text is not None
    return answer.text


def answer_of(fresh: Engine, prompt: str, images: tuple[Any, ...]) -> str | None:
    (answer,) = fresh.generate([prompt], GREEDY, images=[images or None])
    return answer.text


def talk(chat: Chat, fresh: Engine, turns: int, check_every: int) -> list[tuple[int, int]]:
    """(new tokens, prompt tokens computed) of every turn; invariants hold at each, and some answers are compared."""
    rng, costs, before = random.Random(1), [], 0
    for number in range(turns):
        reply = chat.send(said(rng), GREEDY)
        assert reply.prompt_tokens + GREEDY.max_tokens <= chat.rolling.threshold
        assert (reply.evicted_turns > 0) == (reply.evicted_tokens > 0)
        assert len(reply.evicted) == reply.evicted_turns
        new = reply.prompt_tokens + reply.evicted_tokens - before + len(reply.tokens)
        before = reply.prompt_tokens + len(reply.tokens)
        costs.append((new, reply.prompt_tokens - reply.reused_tokens))
        if number % check_every == 0:
            assert reply.text == fresh_answer(chat, fresh), number
    return costs


@pytest.mark.parametrize(("turns", "check_every"), [(1_000, 100), pytest.param(10_000, 100, marks=pytest.mark.soak)])
def test_a_long_conversation_stays_flat_and_right(turns: int, check_every: int) -> None:
    with engine_of(layers=1) as engine, engine_of(layers=1, copy=1, reuse_prefixes=False) as fresh:
        chat = Chat(engine, system="You are Ada.", rolling_threshold=400)
        talk(chat, fresh, 100, check_every)
        held = engine.figures.blocks_held
        costs = talk(chat, fresh, turns - 100, check_every)
        assert engine.figures.blocks_held == held == 0
        assert chat.system == "You are Ada."
        assert chat.conversation.messages[0] == {"role": "system", "content": "You are Ada."}
        new, computed = (sum(column) for column in zip(*costs, strict=True))
        assert computed <= 2 * new, "amortised over the turns"


@pytest.mark.parametrize("name", ["gemma3_text", "qwen3_moe"])
def test_other_families_roll_too(name: str) -> None:
    with engine_of(name) as engine, engine_of(name, copy=1, reuse_prefixes=False) as fresh:
        costs = talk(Chat(engine, rolling_threshold=200), fresh, 30, 5)
        assert any(computed < new + 50 for new, computed in costs)


def test_several_conversations_share_an_engine(engine: Engine) -> None:
    chats = [Chat(engine, system=f"You are number {number}.", rolling_threshold=200) for number in range(6)]
    rng = random.Random(4)
    with engine_of(copy=1, reuse_prefixes=False) as fresh:
        for _ in range(8):
            replies = send_all(chats, [said(rng) for _ in chats], GREEDY)
            for chat, reply in zip(chats, replies, strict=True):
                assert reply.text == fresh_answer(chat, fresh)
    assert engine.figures.blocks_held == 0


def test_a_session_outlives_other_prefixes() -> None:
    """What others leave behind is evicted first."""
    with engine_of(kv_tokens=512) as engine:
        chat = Chat(engine, rolling_threshold=300)
        for _ in range(4):
            chat.send("My name is Ada and my code is four two.", GREEDY)
        rng = random.Random(5)
        for _ in range(6):
            engine.generate([[rng.randrange(10, 1000) for _ in range(200)]], GREEDY)
        reply = chat.send("What is it?", GREEDY)
        assert reply.reused_tokens > reply.prompt_tokens - 40
        chat.rest()
        for _ in range(6):
            engine.generate([[rng.randrange(10, 1000) for _ in range(200)]], GREEDY)
        assert chat.send("What is it?", GREEDY).reused_tokens == 0


@pytest.mark.parametrize(("turns", "check_every"), [(24, 6), pytest.param(500, 25, marks=pytest.mark.soak)])
def test_images_of_kept_turns_stay_and_others_go(turns: int, check_every: int) -> None:
    needs_image_files()
    pillow = pytest.importorskip("PIL.Image")
    settings = EngineSettings(max_batch=2, max_batch_tokens=128, max_length=512, block_size=8)
    rng = random.Random(3)
    with (
        Engine("brim-tiny-vl", kv_tokens=1024, settings=settings, device="cpu", dtype="fp32", progress=False) as engine,
        Engine("brim-tiny-vl", kv_tokens=1024, settings=settings, device="cpu", dtype="fp32", progress=False) as fresh,
    ):
        chat = Chat(engine, rolling_threshold=220)
        for number in range(turns):
            shades = tuple(rng.randrange(256) for _ in range(3))
            images = [pillow.new("RGB", (rng.choice((32, 64)), 48), shades)] if number % 3 == 0 else []
            reply = chat.send(said(rng), GREEDY, images)
            assert reply.prompt_tokens + GREEDY.max_tokens <= 220
            if number % check_every == 0:
                kept = chat.conversation.until(len(chat.turns) - 1)
                text = chat_text(fresh.tokenizer, kept.messages)
                assert reply.text == answer_of(fresh, text, kept.images)
        assert sum(bool(turn.images) for turn in chat.turns) < turns // 3
        assert len(chat._prompts._media_tokens) == len(chat.conversation.images)
        assert engine.figures.blocks_held == 0
        assert len(engine.model.runner.features) == 0


def test_a_file_stays_what_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deleted behind its turn, and saved under a relative name."""
    needs_image_files()
    pillow = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    pillow.new("RGB", (32, 32), (200, 30, 30)).save("red.png")
    with Engine("brim-tiny-vl", kv_tokens=1024, device="cpu", dtype="fp32", progress=False) as engine:
        chat = Chat(engine)
        chat.send("What is it?", GREEDY, ["red.png"])
        Path("red.png").unlink()
        chat.save("chat.json")
        monkeypatch.chdir("/")
        other = Chat.load(engine, tmp_path / "chat.json")
        assert chat.send("And now?", GREEDY).text == other.send("And now?", GREEDY).text
        with pytest.raises(InvalidRequest, match=r"images: 'red.png' cannot be read \(No such file"):
            chat.send("Again?", GREEDY, ["red.png"])


def test_files_of_a_refused_turn_are_let_go(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "red.png").write_bytes(b"red")
    opener = Opener(engine, Namespace(**NOTHING_SAID))
    talk = LocalChat(opener.new(), opener.load)
    talk.images = [tmp_path / "red.png"]
    with pytest.raises(InvalidRequest):
        talk.reply("What is it?")
    assert talk.reply("Hi.")["evicted"] == []


# -- what happens to a turn ----------------------------------------------------------------------------------------


def test_a_pinned_exchange_stays(engine: Engine) -> None:
    chat = Chat(engine, rolling_threshold=150)
    chat.send("My name is Ada.", GREEDY)
    chat.pin(0)
    for _ in range(20):
        chat.send("one two three red green blue.", GREEDY)
    assert chat.turns[0].content == "My name is Ada."
    chat.pin(0, pinned=False)
    while chat.turns[0].content == "My name is Ada.":
        chat.send("one two three red green blue.", GREEDY)


def test_a_turn_that_is_too_large_changes_nothing(engine: Engine) -> None:
    chat = Chat(engine, rolling_threshold=100)
    chat.send("Hi.", GREEDY)
    before = chat.conversation
    with pytest.raises(InvalidRequest, match=r"this turn .* have \d+ tokens, .* rolling_threshold of 100"):
        chat.send("word " * 200, GREEDY)
    assert chat.conversation == before
    assert chat.send("Hi again.", GREEDY).evicted_turns == 0


def test_the_strategy_error_refuses_instead(engine: Engine) -> None:
    chat = Chat(engine, rolling_threshold=100, strategy="error")
    for _ in range(3):
        chat.send("one two three red green blue.", GREEDY)
    with pytest.raises(InvalidRequest, match="the conversation has"):
        chat.send("word " * 40, GREEDY)
    assert chat.turns[0].content == "one two three red green blue."


def test_a_summary_takes_the_place_of_what_went(engine: Engine) -> None:
    asked: list[int] = []

    def summarise(turns: Any) -> str:
        asked.append(len(turns))
        return f"{len(turns)} turns went."

    chat = Chat(engine, system="Be kind.", rolling_threshold=160, strategy="summarise", summarise=summarise)
    while len(asked) < 2:
        reply = chat.send("one two three red green blue.", GREEDY)
    assert chat.conversation.messages[0]["content"] == f"Be kind.\n\n{asked[-1]} turns went."
    assert reply.evicted_turns == asked[-1] - 1  # the first of them was the earlier summary


@pytest.mark.parametrize("keep", [False, True])
def test_half_a_turn_is_kept_or_dropped_as_asked(engine: Engine, keep: bool) -> None:
    chat = Chat(engine)
    stream = chat.stream("Say a lot.", SamplingParams(max_tokens=50, temperature=0, ignore_eos=True))
    pieces = [piece for piece, _ in zip(stream, range(3), strict=False)]
    stream.cancel(keep=keep)
    assert [turn.role for turn in chat.turns] == (["user", "assistant"] if keep else [])
    if keep:
        assert chat.turns[1].content.startswith("".join(pieces))
    assert engine.figures.running == 0
    chat.send("And now?", GREEDY)


@pytest.mark.parametrize("text", ["\ud800", 5, None])
def test_what_is_no_text_is_refused(engine: Engine, text: Any) -> None:
    chat = Chat(engine)
    with pytest.raises(InvalidRequest, match=r"text: (must be a string|its)"):
        chat.send(text, GREEDY)
    assert chat.turns == ()


def test_instructions_turns_and_tools_are_checked_when_they_are_given(engine: Engine) -> None:
    chat = Chat(engine)
    chat.send("Hi.", GREEDY)
    before = chat.conversation
    wrong: list[tuple[str, Callable[[], Any]]] = [
        ("system: must be a string, not int", lambda: setattr(chat, "system", 5)),
        ("system: its character 0", lambda: Chat(engine, system="\ud800")),
        ("text: must be a string, not int", lambda: chat.edit(0, 5)),  # type: ignore[arg-type]
        ("turn False: the conversation has 2", lambda: chat.edit(False, "x")),
        ("tools: one cannot be written as JSON", lambda: Chat(engine, tools=[{"name": {1}}])),
        ("tools: one is a str", lambda: Chat(engine, tools=["look"])),  # type: ignore[list-item]
    ]
    for named, ask in wrong:
        with pytest.raises(InvalidRequest, match=named):
            ask()
    assert chat.conversation == before


def test_conversations_that_are_gone_leave_no_session(engine: Engine) -> None:
    for _ in range(20):
        Chat(engine).send("one two three four five six.", GREEDY)
    gc.collect()
    last = Chat(engine)
    last.send("red.", GREEDY)
    assert len(engine.loop.scheduler.ledger.sessions) == 1


def test_an_engine_that_conversations_used_is_freed_with_them() -> None:
    """Weights included: nothing global holds either, whether or not a conversation was read to its end."""
    config = tiny_config("llama") | {"vocab_size": len(tokenizer())}
    register()
    loaded = load(config, load_format="dummy", dtype="fp32", device="cpu", attention=NAME, seed=3)
    weights = ref(next(loaded.model.parameters()))
    engine = Engine(loaded, kv_tokens=1024, device="cpu", tokenizer=tokenizer())
    gone = ref(engine)
    chat, other = Chat(engine, params=GREEDY), Chat(engine, params=GREEDY)
    chat.send("Hello")
    stream = other.stream("Hello")
    assert next(iter(stream))
    del engine, loaded, chat, other, stream
    gc.collect()
    assert gone() is None
    assert weights() is None


def test_media_of_a_refused_turn_are_let_go(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "image_tokens", lambda *_: 10_000)
    chat = Chat(engine)
    with pytest.raises(InvalidRequest, match="more than the rolling_threshold"):
        chat.send("What is it?", GREEDY, [b"an image"])
    assert not chat._prompts._media_tokens


def test_one_turn_at_a_time(engine: Engine) -> None:
    chat = Chat(engine)
    with chat.stream("Hi.", GREEDY), pytest.raises(InvalidRequest, match="being answered"):
        chat.send("Hello?", GREEDY)
    assert chat.turns == ()
    assert chat.send("Hello?", GREEDY).text


def test_nothing_is_changed_under_a_turn_that_is_being_answered(engine: Engine) -> None:
    """When it ends, the conversation is what it was begun with, and the turn: a pin in between would be lost."""
    chat = Chat(engine, system="Be kind.")
    chat.send("one.", GREEDY)
    with chat.stream("two.", GREEDY) as stream:
        for change in (lambda: chat.pin(0), chat.undo, lambda: setattr(chat, "system", "Be short.")):
            with pytest.raises(InvalidRequest, match="being answered"):
                change()
        stream.read()
    chat.pin(0)
    assert [turn.pinned for turn in chat.turns] == [True, True, False, False]


def test_a_turn_whose_engine_fails_is_taken_back(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = Chat(engine)
    with monkeypatch.context() as patched:

        def interrupted() -> list[Any]:
            raise KeyboardInterrupt

        patched.setattr(engine, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            chat.send("one.", GREEDY)
    assert (chat.turns, engine.figures.running) == ((), 0)
    assert chat.send("two.", GREEDY).text


def test_retry_edit_undo_and_branches(engine: Engine) -> None:
    chat = Chat(engine)
    first = chat.send("one two.", GREEDY)
    assert chat.retry(GREEDY).text == first.text
    twin = chat.branch()
    chat.send("red.", GREEDY)
    other = twin.send("blue.", GREEDY)
    assert other.reused_tokens > 0
    assert [turn.content for turn in twin.turns[::2]] == ["one two.", "blue."]
    chat.edit(0, "three.", GREEDY)
    assert [turn.content for turn in chat.turns[::2]] == ["three."]
    assert [turn.role for turn in chat.undo()] == ["user", "assistant"]
    assert chat.turns == ()
    for wrong, named in ((chat.undo, "no turn"), (chat.retry, "no answer"), (lambda: twin.edit(1, "x"), "assistant")):
        with pytest.raises(InvalidRequest, match=named):
            wrong()


def test_usage_is_what_the_prompt_has(engine: Engine) -> None:
    chat = Chat(engine, system="Be kind.")
    for text in ("one two three.", "red."):
        reply = chat.send(text, GREEDY)
    usage = chat.usage
    assert usage.opening_tokens + sum(turn.tokens for turn in usage.turns) == usage.tokens
    assert [turn.role for turn in usage.turns] == ["user", "assistant"] * 2
    assert reply.prompt_tokens + len(reply.tokens) <= usage.tokens + 3  # without the marks around the next answer
    assert usage.bytes == engine.held_bytes(0, usage.tokens, usage.tokens) > 0


def test_usage_costs_two_renderings_and_not_one_for_each_turn(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = Chat(engine, system="Be kind.")
    turns = [turn for number in range(40) for turn in (Turn("user", f"say {number} "), Turn("assistant", f"{number}!"))]
    chat.conversation = replace(chat.conversation, exchanges=exchanges_of(turns))
    rendered = 0

    render = ChatTemplate.render

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal rendered
        rendered += 1
        return render(*args, **kwargs)

    monkeypatch.setattr(ChatTemplate, "render", counted)
    usage = chat.usage
    assert rendered == 5  # the text, its opening, the marks, the first of each role
    one_by_one = [chat._prompts.count(chat.conversation.until(turn), answering=False) for turn in range(1, 81)]
    assert list(accumulate((turn.tokens for turn in usage.turns), initial=usage.opening_tokens))[1:] == one_by_one


def test_a_conversation_is_resumed_from_disk(engine: Engine, tmp_path: Path) -> None:
    chat = Chat(engine, system="Be kind.", rolling_threshold=300, low_water=100)
    for text in ("one two three.", "red."):
        chat.send(text, GREEDY)
    chat.save(tmp_path / "chat.json")
    other = Chat.load(engine, tmp_path / "chat.json")
    assert (other.conversation, other.rolling) == (chat.conversation, chat.rolling)
    assert other.send("blue.", GREEDY).text == chat.send("blue.", GREEDY).text


def test_defaults_are_those_of_the_engine_that_loads(tmp_path: Path) -> None:
    with engine_of(max_length=512) as wide, engine_of(max_length=256, copy=1) as narrow:
        chat = Chat(wide)
        chat.send("one two three.", GREEDY)
        chat.save(tmp_path / "chat.json")
        other = Chat.load(narrow, tmp_path / "chat.json")
        assert (chat.rolling.threshold, other.rolling.threshold, other.params.max_tokens) == (512, 256, 64)
        assert other.branch().rolling == other.rolling


def test_what_is_given_wins_over_what_was_saved(engine: Engine, tmp_path: Path) -> None:
    params = SamplingParams(max_tokens=7, temperature=0.7, seed=5)
    Chat(engine, rolling_threshold=300, low_water=100, params=params).save(tmp_path / "chat.json")
    for given, wanted in (
        ({}, (RollingSettings(300, 100), "evict")),
        ({"low_water": 50}, (RollingSettings(300, 50), "evict")),
        ({"rolling_threshold": 60, "strategy": "error"}, (RollingSettings(60, 30), "error")),
    ):
        chat = Chat.load(engine, tmp_path / "chat.json", **given)  # type: ignore[arg-type]
        assert (chat.rolling, chat.strategy) == wanted
        assert chat.params == params


def test_the_command_line_wins_for_each_conversation_that_is_loaded(engine: Engine, tmp_path: Path) -> None:
    Chat(engine, rolling_threshold=64).save(tmp_path / "chat.json")
    plain = Opener(engine, Namespace(**NOTHING_SAID | {"seed": 3}))
    talk = LocalChat(plain.new(), plain.load)
    assert talk.chat.params == SamplingParams(max_tokens=128, temperature=0, seed=3)
    talk.load(tmp_path / "chat.json")
    assert talk.chat.params == SamplingParams(max_tokens=16, temperature=0, seed=3)
    assert talk.chat.rolling == RollingSettings(64, 32)
    said = {"rolling_threshold": "200", "strategy": "error", "temperature": 0.5}
    chat = Opener(engine, Namespace(**NOTHING_SAID | said)).load(tmp_path / "chat.json")
    assert (chat.rolling, chat.strategy) == (RollingSettings(200, 100), "error")
    assert chat.params == SamplingParams(max_tokens=50, temperature=0.5)


def test_a_failed_answer_takes_its_turn_back(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = Chat(engine)
    chat.send("one.", GREEDY)
    before = chat.conversation
    failing = failing_launches(engine, lambda plan: out_of_memory())
    with failing, pytest.raises(BrimError, match="could not be answered, and was taken back"):
        chat.send("two.", GREEDY)
    assert chat.conversation == before
    assert chat.send("three.", GREEDY).text


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"strategy": "forget"}, "strategy is 'forget'"),
        ({"strategy": "summarise"}, "needs a function"),
        ({"rolling_threshold": 5000}, "the engine holds 512"),
        ({"rolling_threshold": 100, "low_water": 200}, "low_water is 200"),
    ],
)
def test_bad_settings_are_named(engine: Engine, options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        Chat(engine, **options)


def test_a_model_without_a_template_is_refused() -> None:
    from brim.engine.weights.builtin import ByteTokenizer

    plain = Engine("brim-random", kv_tokens=256, device="cpu", tokenizer=ByteTokenizer())
    with plain, pytest.raises(InvalidRequest, match="no chat template"):
        Chat(plain)


# -- whatever happens ----------------------------------------------------------------------------------------------


class Talking(RuleBasedStateMachine):
    """Any sequence of turns, pins, edits, cancels and saves."""

    @initialize(threshold=st.integers(90, 260), low=st.floats(0.1, 1))
    def start(self, threshold: int, low: float) -> None:
        self.engine = engine_of(kv_tokens=512)
        low_water = max(1, int(threshold * low))
        self.chat = Chat(self.engine, system="Be Ada.", rolling_threshold=threshold, low_water=low_water)

    @rule(words=st.integers(1, 30))
    def send(self, words: int) -> None:
        before, text = self.chat.conversation, ("two " * words).strip()
        try:
            reply = self.chat.send(text, GREEDY)
        except InvalidRequest:
            assert self.chat.conversation == before
            return
        assert [turn.content for turn in self.chat.turns[-2:]] == [text, reply.text]
        assert reply.prompt_tokens + GREEDY.max_tokens <= self.chat.rolling.threshold
        gone = set(map(id, reply.evicted))
        assert len(gone) == reply.evicted_turns
        assert [id(turn) for turn in self.chat.turns[:-2]] == [
            id(turn) for turn in before.turns if id(turn) not in gone
        ]
        assert not any(turn.pinned for turn in reply.evicted)

    @precondition(lambda self: self.chat.turns)
    @rule(data=st.data(), pinned=st.booleans())
    def pin(self, data: st.DataObject, pinned: bool) -> None:
        self.chat.pin(data.draw(st.integers(0, len(self.chat.turns) - 1)), pinned)

    @precondition(lambda self: self.chat.turns)
    @rule(data=st.data())
    def edit(self, data: st.DataObject) -> None:
        number = 2 * data.draw(st.integers(0, len(self.chat.turns) // 2 - 1))
        self.chat.edit(number, "red.", GREEDY)
        assert self.chat.turns[-2].content == "red."

    @rule(keep=st.booleans(), pieces=st.integers(0, 3))
    def leave(self, keep: bool, pieces: int) -> None:
        before = self.chat.conversation
        stream = self.chat.stream("blue.", GREEDY)
        for _ in zip(stream, range(pieces), strict=False):
            pass
        stream.cancel(keep=keep)
        if not keep and stream.reply is None:
            assert self.chat.conversation == before

    @precondition(lambda self: self.chat.turns)
    @rule()
    def undo(self) -> None:
        self.chat.undo()

    @invariant()
    def nothing_is_held(self) -> None:
        if not hasattr(self, "engine"):
            return
        figures = self.engine.figures
        assert (figures.blocks_held, figures.running, figures.waiting) == (0, 0, 0)
        assert self.chat.conversation.messages[0] == {"role": "system", "content": "Be Ada."}
        roles = [turn.role for turn in self.chat.turns]
        assert roles == ["user", "assistant"] * (len(roles) // 2)

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.close()


Talking.TestCase.settings = examples(max_examples=12, stateful_step_count=12, deadline=None)
TestTalk = Talking.TestCase
