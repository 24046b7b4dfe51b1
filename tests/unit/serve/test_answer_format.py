"""Forms of answers in all spellings that clients use: each is the same grammar, and the grammars mean what they say."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

pytest.importorskip("llguidance")

from brim.engine.front.compiled import TokenVocabulary, compile_grammar
from brim.engine.requests.grammar import MAX_EBNF_LENGTH, Grammar
from brim.errors import InvalidRequest
from brim.serve.problems import Problem
from brim.serve.requests.chat import read_chat
from brim.serve.requests.completion import read_completion
from brim.serve.requests.responses_api import read_response
from brim.serve.requests.types import ServedModel

MODEL = ServedModel("m", 300, longest=1000)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
RULES = 'root ::= "Hello" name? \nname ::= " " [A-Z] [a-z]+'
SPECIAL = 4


def form(**fields: Any) -> Any:
    return read_chat({"messages": [{"role": "user", "content": "Hi."}], **fields}, MODEL).form


@cache
def tokens() -> Any:
    return TokenVocabulary(None, 256 + SPECIAL, (1,), SPECIAL).tokens()


def follows(grammar: Grammar, text: str) -> bool:
    """Whether a text is one of the grammar, from its first byte to the end."""
    matcher = compile_grammar(tokens(), grammar).matcher.deep_copy()
    spelled = [byte + SPECIAL for byte in text.encode()]
    return (
        matcher.validate_tokens(spelled) == len(spelled) and matcher.consume_tokens(spelled) and matcher.is_accepting()
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA), "backend": "xgrammar"}},
        {"guided_json": SCHEMA, "guided_decoding_backend": "outlines"},
        {"guided_json": json.dumps(SCHEMA)},
        {"json_schema": json.dumps(SCHEMA)},
    ],
)
def test_a_schema_is_the_same_in_all_spellings(fields: dict[str, Any]) -> None:
    assert form(**fields).grammar == Grammar.json_schema(SCHEMA)


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({"structured_outputs": {"regex": "a+"}}, Grammar.regex("a+")),
        ({"guided_regex": "a+"}, Grammar.regex("a+")),
        ({"regex": "a+"}, Grammar.regex("a+")),
        ({"structured_outputs": {"choice": ["a", "b"]}}, Grammar.lark('start: "a" | "b"')),
        ({"guided_choice": ["a", "b"]}, Grammar.lark('start: "a" | "b"')),
        ({"structured_outputs": {"grammar": RULES}}, Grammar.ebnf(RULES)),
        ({"guided_grammar": RULES}, Grammar.ebnf(RULES)),
        ({"ebnf": RULES}, Grammar.ebnf(RULES)),
        ({"guided_grammar": '?start: "a"'}, Grammar.lark('?start: "a"')),
        ({"structured_outputs": {"json_object": True}}, Grammar.json_schema({"type": "object"})),
        ({"guided_json": SCHEMA, "guided_whitespace_pattern": " ?"}, Grammar.json_schema(SCHEMA, " ?")),
        ({"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " ?"}}, Grammar.json_schema(SCHEMA, " ?")),
        ({"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}, Grammar.json_schema(SCHEMA, "")),
    ],
)
def test_every_kind_in_every_spelling(fields: dict[str, Any], grammar: Grammar) -> None:
    assert form(**fields).grammar == grammar
    assert read_completion({"prompt": "a", **fields}, MODEL).form.grammar == grammar  # type: ignore[union-attr]
    assert read_response({"input": "a", **fields}, MODEL, lambda name: None).chat.form.grammar == grammar  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"regex": "a", "ebnf": RULES}, "ebnf"),
        ({"guided_json": SCHEMA, "structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": {"1": "Python"}}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice[0]"),
        ({"structured_outputs": {"jsn": SCHEMA}}, "structured_outputs.jsn"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[]"}, "guided_json"),
        ({"json_schema": '{"a":' * 70 + "1" + "}" * 70}, "json_schema"),
        ({"structured_outputs": {"structural_tag": "no"}}, "structured_outputs.structural_tag"),
        ({"response_format": {"type": "structural_tag"}}, "response_format.structures"),
        ({"response_format": {"type": "structural_tag", "format": {"type": "x"}}}, "response_format.format.type"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_its_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Problem) as refused:
        form(**fields)
    assert (refused.value.status, refused.value.param) == (400, param)


def test_text_is_any_text_beside_another_form() -> None:
    assert form(response_format={"type": "text"}) is None
    assert form(response_format={"type": "text"}, regex="a").field == "regex"


def test_ebnf_is_followed_and_refused_where_it_cannot_be_read() -> None:
    grammar = Grammar.ebnf(RULES)
    assert [follows(grammar, text) for text in ("Hello", "Hello Ada", "Hello ada", "Hell")] == [
        True,
        True,
        False,
        False,
    ]
    with pytest.raises(InvalidRequest, match="its EBNF cannot be read"):
        compile_grammar(tokens(), Grammar.ebnf("root ::= 'a'"))
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        compile_grammar(tokens(), Grammar.ebnf("root ::= " + "(" * 5000 + '"a"' + ")" * 5000))
    with pytest.raises(InvalidRequest, match="characters of EBNF"):
        Grammar.ebnf("r" * (MAX_EBNF_LENGTH + 1))


def test_choices_are_texts_and_not_patterns() -> None:
    grammar = form(guided_choice=['say "a"\n', "b|c", "été"]).grammar
    assert [follows(grammar, text) for text in ('say "a"\n', "b|c", "été", "b")] == [True, True, True, False]


def test_white_space_in_json_is_bounded_unless_the_client_says_otherwise() -> None:
    bounded = Grammar.json_schema(SCHEMA)
    assert [follows(bounded, f'{{"a":{" " * count}1}}') for count in (0, 16, 17)] == [True, True, False]
    assert not follows(bounded, '{"a":1} ')
    assert not follows(bounded, ' {"a":1}')
    assert not follows(Grammar.json_schema(SCHEMA, ""), '{"a": 1}')
    assert follows(Grammar.json_schema(SCHEMA, ""), '{"a":1}')
    assert follows(Grammar.json_schema(SCHEMA, " *"), f'{{"a":{" " * 99}1}}')
    inside = Grammar.parts('start: "<" @form ">"', {"form": bounded})
    assert [follows(inside, f'<{{"a":{" " * count}1}}>') for count in (16, 17)] == [True, False]


TAGS = {
    "structures": [
        {"begin": "<f=add>", "schema": SCHEMA, "end": "</f>"},
        {"begin": "<f=stop>", "schema": {"const": 0}, "end": "</f>"},
    ],
    "triggers": ["<f="],
}


def test_a_structural_tag_is_followed_wherever_its_trigger_comes() -> None:
    grammar = form(response_format={"type": "structural_tag", **TAGS}).grammar
    assert (
        form(structured_outputs={"structural_tag": json.dumps({"type": "structural_tag", **TAGS})}).grammar == grammar
    )
    good = ("", "any text\n", 'so <f=add>{"a":1}</f> and <f=stop>0</f>!', "<f=stop>0</f>")
    bad = ("<f=add>{}</f>", "<f=mul>", "<f=add>{", "<f=stop>1</f>")
    assert [follows(grammar, text) for text in (*good, *bad)] == [True] * len(good) + [False] * len(bad)
    needed = form(response_format={"type": "structural_tag", **TAGS, "at_least_one": True}).grammar
    assert [follows(needed, text) for text in ("any text", "so <f=stop>0</f>")] == [False, True]


@pytest.mark.parametrize(
    ("inside", "good", "bad"),
    [
        ({"type": "const_string", "value": 'It is "so".'}, ['It is "so".'], ["", "It is"]),
        ({"type": "json_schema", "json_schema": SCHEMA}, ['{"a": 1}'], ["{}"]),
        ({"type": "regex", "pattern": "[0-9]+/[0-9]+"}, ["1/23"], ["1/"]),
        ({"type": "grammar", "grammar": RULES}, ["Hello"], ["Hi"]),
        ({"type": "any_text"}, ["", "x\n"], []),
        (
            {
                "type": "sequence",
                "elements": [
                    {"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": "</t>"},
                    {"type": "or", "elements": [{"type": "const_string", "value": one} for one in "ab"]},
                ],
            },
            ["<t>thought < </t>a", "<t></t>b"],
            ["a", "<t>x</t>", "<t>x</t>c"],
        ),
        (
            {
                "type": "tags_with_separator",
                "separator": ", ",
                "tags": [{"begin": "(", "content": {"type": "regex", "pattern": "[a-z]"}, "end": ")"}],
            },
            ["", "(a)", "(a), (b)"],
            ["(a)(b)", "(a), "],
        ),
        (
            {
                "type": "triggered_tags",
                "triggers": ["("],
                "tags": [{"begin": "(", "content": {"type": "regex", "pattern": "[a-z]"}, "end": ")"}],
                "stop_after_first": True,
            },
            ["none", "one (a)"],
            ["(a) more", "(1)"],
        ),
    ],
)
def test_formats_of_xgrammar(inside: dict[str, Any], good: list[str], bad: list[str]) -> None:
    grammar = form(response_format={"type": "structural_tag", "format": inside}).grammar
    assert [follows(grammar, text) for text in (*good, *bad)] == [True] * len(good) + [False] * len(bad)


@pytest.mark.parametrize(
    ("inside", "param"),
    [
        ({"type": "const_string"}, "value"),
        ({"type": "sequence", "elements": []}, "elements"),
        ({"type": "sequence", "elements": [{"type": "any_text"}, {"type": "any_text"}]}, "elements[0]"),
        ({"type": "tag", "begin": "<", "end": ">"}, "content"),
        ({"type": "triggered_tags", "triggers": [], "tags": []}, "triggers"),
        (
            {"type": "triggered_tags", "triggers": ["["], "tags": [{"begin": "<", "end": ">", "content": {}}]},
            "tags[0].begin",
        ),
        (
            {
                "type": "tags_with_separator",
                "separator": "",
                "tags": [{"begin": "(", "content": {"type": "any_text"}, "end": ")"}] * 257,
            },
            "tags[256]",
        ),
    ],
)
def test_a_structural_tag_that_is_wrong_names_its_part(inside: dict[str, Any], param: str) -> None:
    with pytest.raises(Problem) as refused:
        form(response_format={"type": "structural_tag", "format": inside})
    assert refused.value.param == f"response_format.format.{param}"
