"""Fields that clients of vLLM and SGLang send, on a real server: each does what it says, whole and streamed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("llguidance")

from brim.serve.api import answering, responses
from brim.serve.responses.scores import Scores
from tests.integration.served import Served, events, served
from tests.integration.test_chat import engine_of, tokenizer

ADA = [{"role": "user", "content": "My name is Ada. What is my name?"}]
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
KEYS = ("first-key", "second-key")


@pytest.fixture(scope="module")
def tiny() -> Iterator[Served]:
    """Random weights: whatever holds is by the fields."""
    engine = engine_of(copy=41, kv_tokens=2048, max_length=1024)
    with served(engine, threads=True, api_keys=KEYS, lenient=True) as found:
        yield found
        assert found.is_empty()


def chat(tiny: Served, **fields: Any) -> Any:
    return answered(tiny, CHAT, messages=ADA, **{"temperature": 1, "seed": 5, "max_tokens": 12, **fields})


def completion(tiny: Served, **fields: Any) -> Any:
    return answered(
        tiny, COMPLETIONS, **{"prompt": "The sky is", "temperature": 1, "seed": 5, "max_tokens": 12, **fields}
    )


def answered(tiny: Served, path: str, **body: Any) -> Any:
    response = tiny.post(path, body)
    assert response.status_code == 200, response.text
    return response.json()


def streamed(tiny: Served, path: str, **body: Any) -> list[Any]:
    with tiny.client() as client, client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        return events(response)


def refused(tiny: Served, path: str, **body: Any) -> tuple[int, str]:
    response = tiny.post(path, body)
    return response.status_code, response.json()["error"]["param"]


def ids(text: str) -> list[int]:
    found: list[int] = tokenizer()(text, add_special_tokens=False)["input_ids"]
    return found


def test_top_k_and_top_p_of_other_servers(tiny: Served) -> None:
    greedy = chat(tiny, temperature=0)["choices"][0]["message"]["content"]
    assert chat(tiny, top_p=0)["choices"][0]["message"]["content"] == greedy
    assert chat(tiny, top_k=-1)["choices"] == chat(tiny, top_k=0)["choices"]
    assert refused(tiny, CHAT, messages=ADA, top_k=-2) == (400, "top_k")


def test_only_allowed_tokens_are_drawn(tiny: Served) -> None:
    allowed = sorted({*ids("a yes no blue")})
    for fields in ({}, {"temperature": 0}, {"n": 3, "logprobs": True}, {"bad_words": ["blue"]}):
        answer = chat(tiny, allowed_token_ids=allowed, return_token_ids=True, **fields)
        for choice in answer["choices"]:
            assert set(choice["token_ids"]) <= set(allowed)
            assert (len(choice["token_ids"]), choice["finish_reason"]) == (12, "length")
    assert refused(tiny, CHAT, messages=ADA, allowed_token_ids=[]) == (400, "allowed_token_ids")
    assert refused(tiny, CHAT, messages=ADA, allowed_token_ids=[10**6]) == (400, "allowed_token_ids")


def test_bad_words_never_come_and_sequences_are_not_completed(tiny: Served) -> None:
    free = completion(tiny, max_tokens=60, return_token_ids=True, ignore_eos=True)["choices"][0]
    pair = tokenizer().decode(free["token_ids"][3:5]).strip()
    banned = [pair, "the"]
    found = completion(tiny, max_tokens=60, ignore_eos=True, bad_words=banned, return_token_ids=True)["choices"][0]
    assert found["text"] != free["text"]
    spelled = [ids(word) for word in banned] + [ids(f" {word}") for word in banned]
    own = found["token_ids"]
    for tokens in spelled:
        assert tokens not in [own[place : place + len(tokens)] for place in range(len(own))]
    assert refused(tiny, CHAT, messages=ADA, bad_words=[""]) == (400, "bad_words[0]")


def test_special_tokens_are_spelled_where_they_are_not_skipped(tiny: Served) -> None:
    end = tokenizer().eos_token_id
    drawn = {"allowed_token_ids": [end, *ids("a")], "ignore_eos": True, "max_tokens": 30}
    found = completion(tiny, **drawn, skip_special_tokens=False, return_token_ids=True)["choices"][0]
    assert end in found["token_ids"]
    assert found["text"].count(tokenizer().eos_token) == found["token_ids"].count(end)
    assert tokenizer().eos_token not in completion(tiny, **drawn)["choices"][0]["text"]


def test_a_stop_string_is_part_of_the_answer_where_that_is_asked_for(tiny: Served) -> None:
    whole = completion(tiny, max_tokens=40, ignore_eos=True)["choices"][0]["text"]
    stop = whole[20:23]
    cut = completion(tiny, max_tokens=40, ignore_eos=True, stop=stop)["choices"][0]
    assert (cut["text"], cut["finish_reason"], cut["stop_reason"]) == (whole[: whole.index(stop)], "stop", stop)
    for name in ("include_stop_str_in_output", "no_stop_trim"):
        kept = completion(tiny, max_tokens=40, ignore_eos=True, stop=[stop], **{name: True})["choices"][0]
        assert kept["text"] == cut["text"] + stop
    later = completion(tiny, max_tokens=40, ignore_eos=True, stop=stop, min_tokens=40)["choices"][0]
    assert (later["text"], later["stop_reason"]) == (whole, None)
    token = completion(tiny, max_tokens=40, ignore_eos=True, return_token_ids=True)["choices"][0]["token_ids"][5]
    by_token = completion(tiny, max_tokens=40, stop_token_ids=[token], ignore_eos=True)["choices"][0]
    assert (by_token["stop_reason"], by_token["matched_stop"]) == (token, token)


def test_ids_of_tokens_whole_and_streamed(tiny: Served) -> None:
    fields = {"temperature": 1, "seed": 5, "max_tokens": 12, "return_token_ids": True}
    whole = chat(tiny, **fields)
    assert (
        whole["prompt_token_ids"][-3:]
        == tokenizer().apply_chat_template(ADA, add_generation_prompt=True, return_dict=False)[-3:]
    )
    own = whole["choices"][0]["token_ids"]
    assert len(own) == whole["usage"]["completion_tokens"]
    chunks = streamed(tiny, CHAT, messages=ADA, **fields)
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert all("prompt_token_ids" not in chunk for chunk in chunks[1:])
    assert [token for chunk in chunks for token in chunk["choices"][0].get("token_ids", [])] == own
    pieces = streamed(tiny, COMPLETIONS, prompt=[5, 6, 7], logprobs=0, return_tokens_as_token_ids=True, **fields)
    choices = [chunk["choices"][0] for chunk in pieces]
    assert choices[0]["prompt_token_ids"] == [5, 6, 7]
    named = [int(name.removeprefix("token_id:")) for one in choices for name in one["logprobs"]["tokens"]]
    assert [token for one in choices for token in one["token_ids"]] == named
    plain = chat(tiny)
    assert (plain["prompt_token_ids"], plain["choices"][0]["token_ids"], plain["prompt_logprobs"]) == (None, None, None)


def test_tokens_beside_scores_may_be_named_by_their_ids(tiny: Served) -> None:
    fields = {"return_tokens_as_token_ids": True, "return_token_ids": True}
    one = chat(tiny, logprobs=True, top_logprobs=2, **fields)["choices"][0]
    kept = [token for token in one["token_ids"] if token != tokenizer().eos_token_id]
    assert [score["token"] for score in one["logprobs"]["content"]] == [f"token_id:{token}" for token in kept]
    scores = completion(tiny, logprobs=2, echo=True, **fields)["choices"][0]["logprobs"]
    assert all(name.startswith("token_id:") for name in scores["tokens"])
    assert [next(iter(top)) for top in scores["top_logprobs"][1:]] == scores["tokens"][1:]
    assert scores["top_logprobs"][0] is None
    assert all(len(top) == 1 for top in completion(tiny, logprobs=0)["choices"][0]["logprobs"]["top_logprobs"])


def test_named_tokens_are_scored_in_place_of_the_likeliest(tiny: Served) -> None:
    fields = {"logprob_token_ids": [7, 9], "return_tokens_as_token_ids": True, "max_tokens": 4, "ignore_eos": True}
    every = completion(tiny, logprobs=20, prompt=[5, 6], **{**fields, "logprob_token_ids": []})["choices"][0][
        "logprobs"
    ]
    named = completion(tiny, logprobs=0, prompt=[5, 6], **fields)["choices"][0]["logprobs"]
    assert (named["tokens"], named["token_logprobs"]) == (every["tokens"], every["token_logprobs"])
    for token, top, likeliest in zip(named["tokens"], named["top_logprobs"], every["top_logprobs"], strict=True):
        assert set(top) == {token, "token_id:7", "token_id:9"}
        assert all(likeliest.get(name, value) == pytest.approx(value, abs=1e-5) for name, value in top.items())
    content = chat(tiny, logprobs=True, allowed_token_ids=[42], **fields)["choices"][0]["logprobs"]["content"]
    assert [{one["token"] for one in score["top_logprobs"]} for score in content] == [
        {"token_id:42", "token_id:7", "token_id:9"}
    ] * 4
    assert {one["logprob"] for one in content[0]["top_logprobs"]} == {0.0, -9999.0}  # the others may not be drawn


def test_scores_of_a_prompt(tiny: Served) -> None:
    prompt = ids("The sky is blue and the grass is green.")
    wanted = completion(tiny, prompt=prompt, echo=True, logprobs=3, max_tokens=1)["choices"][0]["logprobs"]
    found = completion(tiny, prompt=[prompt, [5, 6]], prompt_logprobs=3)["choices"]
    scores = found[0]["prompt_logprobs"]
    assert scores[0] is None
    assert (len(scores), len(found[1]["prompt_logprobs"])) == (len(prompt), 2)
    for token, entry, logprob in zip(prompt[1:], scores[1:], wanted["token_logprobs"][1:], strict=False):
        own = entry[str(token)]
        assert own["logprob"] == pytest.approx(logprob, abs=1e-5)
        assert own["decoded_token"] == tokenizer().decode([5, token])[len(tokenizer().decode([5])) :]
        others = sorted((one["rank"], -one["logprob"]) for one in entry.values())
        assert [rank for rank, _ in others][:3] == [1, 2, 3]
        assert others == sorted(others, key=lambda one: one[1])
        assert len(entry) == 3 + (own["rank"] > 3)
    assert all(
        len(entry) == 1
        for entry in completion(tiny, prompt=prompt, prompt_logprobs=0)["choices"][0]["prompt_logprobs"][1:]
    )
    both = completion(tiny, prompt=prompt, prompt_logprobs=5, echo=True, logprobs=1)["choices"][0]
    assert max(len(top) for top in both["logprobs"]["top_logprobs"][1:]) <= 2
    assert min(len(entry) for entry in both["prompt_logprobs"][1:]) >= 5
    of_chat = chat(tiny, prompt_logprobs=1, return_token_ids=True)
    assert len(of_chat["prompt_logprobs"]) == len(of_chat["prompt_token_ids"])
    chunks = streamed(tiny, CHAT, messages=ADA, prompt_logprobs=1, max_tokens=3)
    assert [chunk["prompt_logprobs"] for chunk in chunks if "prompt_logprobs" in chunk] == [of_chat["prompt_logprobs"]]
    pieces = streamed(tiny, COMPLETIONS, prompt=prompt, prompt_logprobs=3, max_tokens=3)
    assert [one for chunk in pieces if (one := chunk["choices"][0].get("prompt_logprobs"))] == [scores]
    assert refused(tiny, CHAT, messages=ADA, prompt_logprobs=-1) == (400, "prompt_logprobs")


def test_scores_of_many_tokens_are_bounded_and_written_beside_the_loop(
    tiny: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = ids("The sky is blue and the grass is green.")
    small = completion(tiny, prompt=prompt, prompt_logprobs=2)
    monkeypatch.setattr(answering, "MOST_SCORES_AT_ONCE", 2)
    assert completion(tiny, prompt=prompt, prompt_logprobs=2)["choices"] == small["choices"]
    chunks = streamed(tiny, COMPLETIONS, prompt=prompt, prompt_logprobs=2, max_tokens=2, wings=1)
    assert chunks[0]["choices"][0]["prompt_logprobs"] == small["choices"][0]["prompt_logprobs"]
    assert chunks[0]["brim"]["warnings"]
    prompts = [list(range(5, 505))] * 15
    assert refused(tiny, COMPLETIONS, prompt=prompts[:13], prompt_logprobs=20, n=1) == (400, "prompt_logprobs")


def test_scores_of_many_answers_are_written_beside_the_loop_too(tiny: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    writers: set[int] = set()

    def of_answer(self: Scores, done: Any) -> Any:
        writers.add(threading.get_ident())
        return whole(self, done)

    whole = Scores.of_answer
    monkeypatch.setattr(Scores, "of_answer", of_answer)
    fields = {"logprobs": True, "top_logprobs": 3, "n": 3, "max_tokens": 4}
    asked = {"input": "Hi.", "max_output_tokens": 4, "top_logprobs": 3, "seed": 5, "temperature": 1}
    few, response = chat(tiny, **fields), answered(tiny, RESPONSES, **asked)
    assert writers == {tiny.thread.ident}
    for module in (answering, responses):
        monkeypatch.setattr(module, "MOST_SCORES_AT_ONCE", 2)
    assert chat(tiny, **fields)["choices"] == few["choices"]
    assert len(writers) > 1
    scored = answered(tiny, RESPONSES, **asked, include=["message.output_text.logprobs"])
    (part,) = scored["output"][0]["content"]
    assert (part["text"], len(part["logprobs"])) == (response["output"][0]["content"][0]["text"], 4)
    assert tiny.get(f"{RESPONSES}/{scored['id']}").json() == scored
    with tiny.client() as client:
        body = {**asked, "include": ["message.output_text.logprobs"], "stream": True, "background": True}
        text = client.post(RESPONSES, json=body).text
    last = json.loads(text.strip().rpartition("data: ")[2])["response"]
    assert last["output"][0]["content"] == [part]


def test_usage_in_every_event(tiny: Served) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    fields = {"max_tokens": 8, "min_tokens": 8, "temperature": 0, "stream_options": options}
    for path, body in ((CHAT, {"messages": ADA}), (COMPLETIONS, {"prompt": "The sky"})):
        chunks = streamed(tiny, path, **body, **fields)
        counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        assert counts == sorted(counts)
        assert counts[-2:] == [8, 8]
        assert len({chunk["usage"]["prompt_tokens"] for chunk in chunks}) == 1
        assert [bool(chunk["choices"]) for chunk in chunks[-2:]] == [True, False]
        ends = [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]]
        assert ends == [None] * (len(ends) - 1) + ["length"]
        only = streamed(tiny, path, **body, **fields | {"stream_options": {"continuous_usage_stats": True}})
        assert all(chunk.get("usage") is None for chunk in only)


def test_forms_of_answers(tiny: Served) -> None:
    cases: list[tuple[dict[str, Any], set[str]]] = [
        ({"structured_outputs": {"choice": ["red", "blue"]}}, {"red", "blue"}),
        ({"guided_regex": "(red|blue)!"}, {"red!", "blue!"}),
        ({"ebnf": 'root ::= "Hello" | "Hi"'}, {"Hello", "Hi"}),
        ({"response_format": {"type": "structural_tag", "format": {"type": "const_string", "value": "So."}}}, {"So."}),
    ]
    for fields, wanted in cases:
        assert chat(tiny, **fields)["choices"][0]["message"]["content"] in wanted
        assert completion(tiny, **fields)["choices"][0]["text"] in wanted
        if "response_format" not in fields:
            output = answered(tiny, RESPONSES, input="Hi.", max_output_tokens=12, **fields)["output"]
            assert output[0]["content"][0]["text"] in wanted
    assert refused(tiny, COMPLETIONS, prompt="a", structured_outputs={"regex": "[.*"}) == (
        400,
        "structured_outputs.regex",
    )
    assert refused(tiny, CHAT, messages=ADA, guided_grammar="root ::= 'a'") == (400, "guided_grammar")


def test_a_form_that_leads_nowhere_is_the_fault_of_the_request(tiny: Served) -> None:
    nothing = {"type": "tag", "begin": "(", "end": ")", "content": {"type": "regex", "pattern": "[^\\s\\S]"}}
    (first,) = tokenizer()("a", add_special_tokens=False)["input_ids"]
    for form, others, param in [
        ({"grammar": 'start: "a" A\nA: /[ab]+/ & /[c]+/'}, {}, "grammar"),
        ({"grammar": 'root ::= "a" root'}, {}, "grammar"),
        ({"structural_tag": json.dumps({"type": "structural_tag", "format": nothing})}, {}, "grammar"),
        ({"regex": "ab"}, {"allowed_token_ids": [first]}, "allowed_token_ids"),
    ]:
        assert refused(tiny, CHAT, messages=ADA, max_tokens=12, structured_outputs=form, **others) == (400, param)


def test_a_model_that_only_wants_to_write_spaces_ends_its_json(tiny: Served) -> None:
    """The bias is as strong as one may be: spaces wherever the grammar lets one be."""
    vocabulary = tokenizer().get_vocab()
    blank = {str(token): 100 for name, token in vocabulary.items() if name and set(name) <= set("ĠĊĉ\t \n▁")}
    assert blank
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    for fields in (
        {"guided_json": schema},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}},
    ):
        choice = chat(tiny, logit_bias=blank, max_tokens=600, temperature=0, **fields)["choices"][0]
        assert choice["finish_reason"] == "stop", choice
        text = choice["message"]["content"]
        assert set(json.loads(text)) == {"a", "b"}
        assert " " * 3 in text or "\n" * 3 in text or "\t" * 3 in text, "the bias had no effect"


def test_salts_of_requests_separate_their_prefixes(tiny: Served) -> None:
    prompt = {"prompt": "A prompt that is long enough for a block or two of the pool.", "max_tokens": 1}

    def cached(**fields: Any) -> int:
        found: int = completion(tiny, **prompt, **fields)["usage"]["prompt_tokens_details"]["cached_tokens"]
        return found

    assert [cached(), cached() > 0, cached(cache_salt="one"), cached(cache_salt="one") > 0] == [0, True, 0, True]
    assert cached(cache_salt="two") == 0


def test_a_client_may_name_its_answer(tiny: Served) -> None:
    assert chat(tiny, request_id="run-7:a.b_c")["id"] == "run-7:a.b_c"
    assert completion(tiny, request_id="x")["id"] == "x"
    assert {chunk["id"] for chunk in streamed(tiny, CHAT, messages=ADA, request_id="mine", max_tokens=2)} == {"mine"}
    assert answered(tiny, RESPONSES, input="Hi.", request_id="resp-1", max_output_tokens=1)["id"] == "resp-1"
    for wrong in ("", "a b", "é", "x" * 129, "a\nb"):
        assert refused(tiny, CHAT, messages=ADA, request_id=wrong) == (400, "request_id")


def test_a_prompt_is_cut_where_that_is_asked_for(tiny: Served) -> None:
    prompt = list(range(5, 15))
    for fields, kept in (({}, prompt[-4:]), ({"truncation_side": "right"}, prompt[:4])):
        found = completion(tiny, prompt=prompt, truncate_prompt_tokens=4, return_token_ids=True, **fields)
        assert found["choices"][0]["prompt_token_ids"] == kept
        assert found["usage"]["prompt_tokens"] == 4
    long = "word " * 3000
    assert refused(tiny, COMPLETIONS, prompt=long) == (400, "prompt")
    fits = completion(tiny, prompt=long, truncate_prompt_tokens=-1, max_tokens=24, echo=True)
    assert fits["usage"]["prompt_tokens"] == 1000
    assert fits["choices"][0]["text"].startswith(tokenizer().decode(ids(long)[-1000:]))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"use_beam_search": True}, "use_beam_search"),
        ({"best_of": 3}, "best_of"),
        ({"length_penalty": 2.0}, "length_penalty"),
        ({"logits_processors": ["x"]}, "logits_processors"),
        ({"suffix": "."}, "suffix"),
        ({"logprob_token_ids": [1]}, "logprob_token_ids"),  # without logprobs
    ],
)
def test_what_is_not_done_is_refused_by_its_name_also_by_a_lenient_server(
    tiny: Served, fields: dict[str, Any], param: str
) -> None:
    assert refused(tiny, COMPLETIONS, prompt="a", **fields) == (400, param)


def test_a_field_of_another_endpoint_is_named_as_not_supported_and_null_is_taken(tiny: Served) -> None:
    assert refused(tiny, CHAT, messages=ADA, truncate_prompt_tokens=4) == (400, "truncate_prompt_tokens")
    assert chat(tiny, truncate_prompt_tokens=None, suffix=None)["choices"]


def test_harmless_fields_are_taken_and_others_are_warned_of(tiny: Served) -> None:
    harmless = {
        "use_beam_search": False,
        "best_of": 1,
        "length_penalty": 1.0,
        "logits_processors": [],
        "spaces_between_special_tokens": False,
        "session_id": "a",
    }
    assert "brim" not in chat(tiny, n=2, **harmless)
    response = tiny.post(CHAT, {"messages": ADA, "max_tokens": 1, "wings": 2, "vllm_xargs": {"a": 1}})
    said = [
        "vllm_xargs: it is for extensions of vLLM; it has no effect here",
        "wings: there is no such field; it was ignored",
    ]
    assert sorted(response.json()["brim"]["warnings"]) == said
    assert "wings" in response.headers["x-brim-warning"]
    chunks = streamed(tiny, COMPLETIONS, prompt="a", max_tokens=3, wings=2)
    assert [bool(chunk.get("brim")) for chunk in chunks] == [True] + [False] * (len(chunks) - 1)
    stored = answered(tiny, RESPONSES, input="Hi.", max_output_tokens=1, wings=2)
    assert stored["brim"]["warnings"] == ["wings: there is no such field; it was ignored"]
    counted = tiny.post("/tokenize", {"prompt": "a", "wings": 2})
    assert (counted.status_code, "wings" in counted.headers["x-brim-warning"]) == (200, True)


def test_a_prediction_is_used_as_a_draft_and_counted() -> None:
    fields = {"messages": ADA, "temperature": 0, "max_tokens": 40, "ignore_eos": True}
    with served(engine_of(copy=42), threads=True) as plain:
        without = answered(plain, CHAT, **fields, prediction={"type": "content", "content": "anything"})
    said = without["choices"][0]["message"]["content"]
    assert without["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] == 0
    parts = [{"type": "text", "text": said[:20]}, {"type": "text", "text": said[20:]}]
    with served(engine_of(copy=42, speculate="lookup", speculate_max_weight=1.0), threads=True) as drafting:
        found = answered(drafting, CHAT, **fields, prediction={"type": "content", "content": parts})
        assert refused(drafting, CHAT, messages=ADA, prediction={"type": "x"}) == (400, "prediction.type")
    assert found["choices"][0]["message"]["content"] == said
    details = found["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 0  # a random model's text is cut into other tokens than it drew
    assert details["rejected_prediction_tokens"] >= 0
