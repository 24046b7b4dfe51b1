"""Structural tags: text that may have tagged parts in it, each of a form of its own, as one grammar.

In: the field as it was written, in either of the shapes that SGLang and vLLM take: `structures` and `triggers`, or a
`format` of xGrammar's. Out: a `Grammar`. A trigger in free text is always the beginning of a tag.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from brim.engine.requests.grammar import Grammar, written_schema
from brim.serve.problems import invalid

MOST_TAGS = 256
_TEXT = r"/(.|\n)*/"
_FORMATS = (
    "const_string",
    "json_schema",
    "regex",
    "grammar",
    "any_text",
    "sequence",
    "or",
    "tag",
    "triggered_tags",
    "tags_with_separator",
)


def structural_tag(found: Mapping[str, Any], path: str) -> Grammar:
    """The grammar of a structural tag, or a `Problem` that names the field that is wrong."""
    if found.get("format") is not None:
        inside, where = _object(found, "format", path), f"{path}.format"
    else:
        tags = [
            {"begin": one.get("begin"), "end": one.get("end"), "content": _json_content(one.get("schema"))}
            for one in _objects(found, "structures", path)
        ]
        inside = {"type": "triggered_tags", "triggers": found.get("triggers"), "tags": tags}
        inside["at_least_one"], where = found.get("at_least_one"), path
    writer = _Writer()
    rules = [f"start: {writer.write(inside, where, last=True)}", *writer.rules]
    return Grammar.parts("\n".join(rules), writer.parts) if writer.parts else Grammar.lark("\n".join(rules))


class _Writer:
    """Formats as rules of a Lark grammar, and the grammars that those refer to."""

    def __init__(self) -> None:
        self.rules: list[str] = []
        self.parts: dict[str, Grammar] = {}
        self._tags = 0

    def write(self, found: Mapping[str, Any], path: str, *, last: bool = False) -> str:
        """One format as an expression. `last`: nothing follows it, so it may be any text."""
        match found.get("type"):
            case "const_string":
                return quoted(_text(found, "value", path))
            case "json_schema":
                return self._rule(written_schema(_schema(found, path)))
            case "regex":
                return self._part(Grammar.regex(_text(found, "pattern", path)))
            case "grammar":
                return self._part(grammar_of(_text(found, "grammar", path)))
            case "any_text" if last:
                return self._rule(_TEXT, terminal=True)
            case "any_text":
                raise invalid(path, "any_text can stand at the end, or be the content of a tag; put it there")
            case "sequence":
                elements = _objects(found, "elements", path)
                places = range(len(elements))
                each = [
                    self.write(elements[place], f"{path}.elements[{place}]", last=last and place == places[-1])
                    for place in places
                ]
                return self._rule(" ".join(each))
            case "or":
                each = [
                    self.write(one, f"{path}.elements[{place}]", last=last)
                    for place, one in enumerate(_objects(found, "elements", path))
                ]
                return self._rule(" | ".join(each))
            case "tag":
                return self._rule(self._tag(found, path))
            case "triggered_tags":
                return self._triggered(found, path, last)
            case "tags_with_separator":
                return self._separated(found, path)
        raise invalid(f"{path}.type", f"{found.get('type')!r:.40} is not one of {', '.join(_FORMATS)}")

    def _tag(self, found: Mapping[str, Any], path: str, begun: str = "") -> str:
        """A tag behind so much of its beginning."""
        self._tags += 1
        if self._tags > MOST_TAGS:
            raise invalid(path, f"there are more than {MOST_TAGS} tags; give fewer")
        begin, end = _text(found, "begin", path), _text(found, "end", path, empty=True)
        content = _object(found, "content", path)
        before = quoted(begin[len(begun) :]) if len(begin) > len(begun) else ""
        if content.get("type") == "any_text":
            inside = self._rule(f"{_TEXT} {quoted(end)}", lazy=True) if end else self._rule(_TEXT, terminal=True)
            return f"{before} {inside}"
        return f"{before} {self.write(content, f'{path}.content')} {quoted(end) if end else ''}"

    def _triggered(self, found: Mapping[str, Any], path: str, last: bool) -> str:
        if not last:
            raise invalid(path, "triggered_tags can only be the last: any text may follow them")
        triggers = found.get("triggers")
        if not isinstance(triggers, list) or not triggers or not all(isinstance(one, str) and one for one in triggers):
            raise invalid(f"{path}.triggers", "a list of texts that are not empty is needed")
        groups: dict[str, list[str]] = {}
        for place, one in enumerate(_objects(found, "tags", path)):
            where, begin = f"{path}.tags[{place}]", _text(one, "begin", f"{path}.tags[{place}]")
            trigger = next((some for some in triggers if begin.startswith(some)), None)
            if trigger is None:
                raise invalid(f"{where}.begin", "none of the triggers is its beginning; add one")
            groups.setdefault(trigger, []).append(self._tag(one, where, begun=trigger))
        any_tag = self._rule(
            " | ".join(
                f"{self._rule(f'{_TEXT} {quoted(trigger)}', lazy=True)} ({' | '.join(tags)})"
                for trigger, tags in groups.items()
            )
        )
        text = self._rule(_TEXT, terminal=True)
        if _flag(found, "stop_after_first", path):
            return any_tag if _flag(found, "at_least_one", path) else f"({any_tag} | {text})"
        return f"{any_tag}{'+' if _flag(found, 'at_least_one', path) else '*'} {text}"

    def _separated(self, found: Mapping[str, Any], path: str) -> str:
        tags = _objects(found, "tags", path)
        any_tag = self._rule(" | ".join(self._tag(one, f"{path}.tags[{place}]") for place, one in enumerate(tags)))
        separator = _text(found, "separator", path, empty=True)
        between = f"{quoted(separator)} " if separator else ""
        several = any_tag if _flag(found, "stop_after_first", path) else f"{any_tag} ({between}{any_tag})*"
        return self._rule(several if _flag(found, "at_least_one", path) else f"({several})?")

    def _rule(self, expression: str, *, lazy: bool = False, terminal: bool = False) -> str:
        """A name for an expression."""
        name = f"{'T' if terminal else 'r'}{len(self.rules)}"
        self.rules.append(f"{name}{'[lazy]' if lazy else ''}: {expression}")
        return name

    def _part(self, grammar: Grammar) -> str:
        name = f"part{len(self.parts)}"
        self.parts[name] = grammar
        return f"@{name}"


def grammar_of(rules: str) -> Grammar:
    """A grammar as clients write it: EBNF has `::=`, Lark does not."""
    return Grammar.ebnf(rules) if "::=" in rules else Grammar.lark(rules)


def quoted(text: str) -> str:
    """As a string of a Lark grammar: as JSON's, and llguidance does not read the one control that JSON leaves."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


# -- what was written --------------------------------------------------------------------------------------------------


def _json_content(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {} if schema is None else schema}


def _schema(found: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    schema = found.get("json_schema")
    return {} if schema is True else _object(found, "json_schema", path)


def _text(found: Mapping[str, Any], name: str, path: str, *, empty: bool = False) -> str:
    text = found.get(name)
    if not isinstance(text, str) or not (text or empty):
        raise invalid(f"{path}.{name}", "a text is needed" if empty else "a text that is not empty is needed")
    return text


def _flag(found: Mapping[str, Any], name: str, path: str) -> bool:
    value = found.get(name)
    if value is not None and not isinstance(value, bool):
        raise invalid(f"{path}.{name}", "it must be true or false", "invalid_type")
    return bool(value)


def _object(found: Mapping[str, Any], name: str, path: str) -> Mapping[str, Any]:
    one = found.get(name)
    if not isinstance(one, dict):
        raise invalid(f"{path}.{name}", "an object is needed", "invalid_type")
    return one


def _objects(found: Mapping[str, Any], name: str, path: str) -> Sequence[Mapping[str, Any]]:
    some = found.get(name)
    if not isinstance(some, list) or not some or not all(isinstance(one, dict) for one in some):
        raise invalid(f"{path}.{name}", "a list of at least one object is needed", "invalid_type")
    return some
