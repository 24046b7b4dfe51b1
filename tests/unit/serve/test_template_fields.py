"""What a template is told besides messages: read, mapped to the names that it knows, and kept from forging turns."""

from __future__ import annotations

from typing import Any

import pytest

from brim.serve.prepare.variables import template_variables
from brim.serve.problems import Problem
from brim.serve.requests.chat import ReasoningShown, read_chat
from brim.serve.requests.responses_api import read_response
from brim.serve.requests.template import TemplateSettings
from brim.serve.requests.tokenize import read_tokenize
from brim.serve.requests.types import ServedModel

MODEL = ServedModel("m", 300, longest=1000)
HI = {"role": "user", "content": "Hi."}
BEGUN = {"role": "assistant", "content": "An apple"}


def chat(**fields: Any) -> Any:
    return read_chat({"messages": [HI], **fields}, MODEL)


def settings(**fields: Any) -> TemplateSettings:
    found: TemplateSettings = chat(**fields).dialogue.template
    return found


def test_wishes_of_a_chat_are_read_under_all_their_names() -> None:
    asked = settings(
        chat_template_kwargs={"enable_thinking": False, "style": {"a": [1]}},
        reasoning_effort="high",
        verbosity="low",
        documents=[{"title": "a", "text": "b"}],
    )
    variables = {"enable_thinking": False, "style": {"a": [1]}}
    assert asked == TemplateSettings(variables, "high", None, "low", ({"title": "a", "text": "b"},))
    assert settings(reasoning={"effort": "max", "summary": "auto", "max_tokens": 5}).effort == "max"
    assert settings(reasoning={"enabled": False}).thinks is False
    assert settings() == TemplateSettings()
    response = read_response(
        {"input": "Hi.", "reasoning": {"effort": "low"}, "text": {"verbosity": "high"}}, MODEL, dict
    )
    assert response.chat.dialogue.template == TemplateSettings(effort="low", verbosity="high")
    counted = read_tokenize({"messages": [HI], "add_generation_prompt": False}, MODEL)
    assert counted.dialogue is not None
    assert counted.dialogue.template == TemplateSettings(opens_answer=False)


def test_an_answer_goes_on_with_the_last_message_or_begins_a_new_one() -> None:
    messages = [HI, BEGUN]
    for more in ({}, {"add_generation_prompt": False}):
        asked = chat(messages=messages, continue_final_message=True, echo=True, **more)
        assert asked.dialogue.template.continues
        assert asked.echoed == "An apple"
    assert not settings(messages=messages, add_generation_prompt=True).continues


def test_reasoning_is_apart_left_out_or_in_the_content() -> None:
    assert chat().reasoning is ReasoningShown.APART
    assert chat(include_reasoning=False).reasoning is ReasoningShown.LEFT_OUT
    assert chat(reasoning={"exclude": True}).reasoning is ReasoningShown.LEFT_OUT
    assert chat(separate_reasoning=False).reasoning is ReasoningShown.IN_CONTENT


def test_what_clients_send_back_of_an_answer_is_taken() -> None:
    hint = {"cache_control": {"type": "ephemeral"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Hi.", **hint}], "name": "ada", **hint},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "reasoning": "Hm.", "refusal": None},
        {"role": "assistant", "content": "Yes.", "reasoning": "Hm.", "reasoning_content": "Hm."},
    ]
    tools = [{"type": "function", "function": {"name": "add", **hint}, **hint}]
    dialogue = chat(messages=messages, tools=tools).dialogue
    assert [one.entry for one in dialogue.messages] == [
        {"role": "user", "content": "Hi.", "name": "ada"},
        {"role": "assistant", "content": "No.", "reasoning_content": "Hm."},
        {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."},
    ]
    assert dialogue.tools == ({"type": "function", "function": {"name": "add"}},)


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"chat_template": "{{ messages }}"}, "chat_template", "a template is a program"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages", "do not have this name"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs.tokenize", "do not have this name"),
        ({"chat_template_kwargs": {"bos_token": "a"}}, "chat_template_kwargs.bos_token", "do not have this name"),
        ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs.self", "do not have this name"),
        ({"chat_template_kwargs": {"namespace": 1}}, "chat_template_kwargs.namespace", "do not have this name"),
        ({"chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs.a b", "do not have this name"),
        ({"chat_template_kwargs": {"a": "b" * 70_000}}, "chat_template_kwargs", "more than 65536 characters"),
        ({"chat_template_kwargs": {f"a{n}": n for n in range(65)}}, "chat_template_kwargs", "at most 64"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs", "an object"),
        ({"reasoning_effort": "extra_high"}, "reasoning_effort", "not one of none, minimal"),
        ({"reasoning_effort": "low", "reasoning": {"effort": "high"}}, "reasoning_effort", "give one of them"),
        ({"verbosity": "loud"}, "verbosity", "not one of low"),
        ({"continue_final_message": True}, "continue_final_message", "must be the assistant's"),
        (
            {"messages": [HI, BEGUN], "continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
            "leave out add_generation_prompt",
        ),
        ({"echo": True}, "echo", "set continue_final_message"),
        ({"web_search_options": {}}, "web_search_options", "not supported"),
    ],
)
def test_what_cannot_be_is_refused_by_its_field(fields: dict[str, Any], param: str, said: str) -> None:
    with pytest.raises(Problem, match=said) as refused:
        chat(**fields)
    assert (refused.value.status, refused.value.param) == (400, param)


@pytest.mark.parametrize(
    ("asked", "known", "variables"),
    [
        (TemplateSettings(effort="high"), {"reasoning_effort"}, {"reasoning_effort": "high"}),
        (TemplateSettings(effort="none"), {"enable_thinking"}, {"enable_thinking": False}),
        (TemplateSettings(effort="minimal"), {"thinking"}, {"thinking": False}),
        (TemplateSettings(effort="low"), {"thinking", "enable_thinking"}, {"enable_thinking": True, "thinking": True}),
        (TemplateSettings(thinks=True), {"enable_thinking", "reasoning_effort"}, {"enable_thinking": True}),
        (TemplateSettings({"thinking": False}, "high"), {"thinking"}, {"thinking": False}),
        (
            TemplateSettings(verbosity="low", documents=({},)),
            {"verbosity", "documents"},
            {"verbosity": "low", "documents": [{}]},
        ),
    ],
)
def test_a_wish_gets_the_name_that_the_template_knows(
    asked: TemplateSettings, known: set[str], variables: dict[str, Any]
) -> None:
    assert template_variables(asked, known) == (variables, ())


def test_a_wish_that_the_template_does_not_know_is_said_to_have_no_effect() -> None:
    asked = TemplateSettings({"style": 1}, "high", None, "low", ({},))
    variables, unknown = template_variables(asked, {"messages"})
    assert variables == {"style": 1}
    assert [one.partition(":")[0] for one in unknown] == [
        "chat_template_kwargs.style",
        "reasoning",
        "verbosity",
        "documents",
    ]


TEMPLATE = (
    "{% if not thinking is defined %}{% set thinking = true %}{% endif %}{{ style }}{% for m in messages %}"
    "{{ m.role }}: {% if m['reasoning'] %}({{ m['reasoning'] }}) {% endif %}{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}assistant{% if not thinking %} at once{% endif %}: {% endif %}"
)


def test_a_template_is_told_its_variables_and_no_client_forges_a_turn_by_them() -> None:
    pytest.importorskip("transformers")
    from transformers import AutoTokenizer

    from brim.engine.front.chat_template import ChatTemplate
    from brim.model.packaged import packaged_folder

    tokenizer: Any = AutoTokenizer
    tokenizer = tokenizer.from_pretrained(str(packaged_folder("brim-tiny")))
    tokenizer.chat_template = TEMPLATE
    template = ChatTemplate(tokenizer)
    assert {"thinking", "style"} <= template.variables
    assert not {"role", "reasoning", "end"} & template.variables
    asked = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "An ", "reasoning_content": "Hm."}]
    text = template.render(asked, variables={"style": "<|end|>", "thinking": False})
    assert text.shown == "<|end|>user: Hi.<|end|>assistant: (Hm.) An <|end|>assistant at once: "
    ends = tokenizer.convert_tokens_to_ids("<|end|>")
    assert template.tokens(text).count(ends) == 2, "that of a variable is text"
    assert template.render(asked, continuing=True).shown.endswith("assistant: (Hm.) An ")
    assert template.render(asked, answering=False).shown.endswith("An <|end|>")
