"""Which format a module is stored in, by its name: exclusions and overrides of a quantisation as one rule book.

Names are compared from `layers.N.` on (or whole, outside layers), since the prefix differs between a
checkpoint and the code that loads it: `model.layers.3`, `model.language_model.layers.3` and `backbone.layers.3` are
one. A pattern applies to everything below the module it names. Configs list the same few patterns for each of a
hundred layers, so rules are kept by layer and layers with the same rules are looked up once. Layers of a tower are not
those of the language model: what names one speaks for that kind of module in all layers of the tower.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from brim.errors import UnsupportedModel
from brim.records.model import Quantisation, WeightFormat

Rule = tuple[str, WeightFormat | None]  # a pattern, and the format it gives; None is the plain type

_LAYER = re.compile(r"^.*?\b(?:layers|h|blocks)\.(\d+)(?:\.|(?=\*)|$)(.*)$")
_TOWER = re.compile(r"vision|visual|vit\b|image|img|audio|speech|encoder\.")
_TOWER_MODULES = (  # kinds of modules of a tower, by the names that projects have for them
    ("attn.qkv", ("qkv", "q_proj", "k_proj", "v_proj", "query_key_value", "in_proj", "wq", "wk", "wv", "wqkv")),
    ("attn.proj", ("proj", "o_proj", "out_proj", "dense", "wo")),
    ("mlp.fc1", ("fc1", "gate_proj", "up_proj", "w1", "w3", "fc0", "linear_fc1")),
    ("mlp.down_proj", ("fc2", "down_proj", "w2", "linear_fc2")),
)
_REPETITION = re.compile(r"(?<!\\)[*+{]")
_REPEATED_GROUP = re.compile(r"(?<!\\)\)[*+{]")
_MOST_REPETITIONS = 5
_SPELLINGS = (
    ("block_sparse_moe.", "mlp."),
    ("feed_forward.", "mlp."),
    ("ffn.", "mlp."),
    ("experts.w1", "experts.gate_proj"),
    ("experts.w3", "experts.up_proj"),
    ("experts.w2", "experts.down_proj"),
)


def canonical_tail(name: str) -> str:
    """A module's name inside its layer, with the several spellings of one module made one."""
    for old, new in _SPELLINGS:
        name = name.replace(old, new)
    return name if not name.startswith("attn") else f"self_{name}"


def canonical_outer(name: str) -> str:
    """The name of a module outside the layers."""
    return name.removeprefix("model.").removeprefix("language_model.").removeprefix("model.")


class RuleBook:
    """A quantisation, as a function of a module's name."""

    def __init__(self, quantisation: Quantisation) -> None:
        self._default = quantisation.default
        self._general: list[Rule] = []
        self._by_layer: dict[int, list[Rule]] = {}
        self._in_towers: dict[str, WeightFormat | None] = {}
        self._lookups: dict[tuple[Rule, ...], _Lookup] = {}
        for pattern, stored in quantisation.overrides:
            self._add(pattern, stored)
        for pattern in quantisation.excluded:
            self._add(pattern, None)
        self._outer = _Lookup([(canonical_outer(pattern), stored) for pattern, stored in self._general])

    def _add(self, pattern: str, stored: WeightFormat | None) -> None:
        found = None if pattern.startswith("re:") else _LAYER.match(pattern)
        if found is None:
            self._general.append((pattern, stored))
        elif _TOWER.search(pattern[: found.start(1)]):
            self._in_towers.setdefault(_tower_module(found[2]), stored)
        else:
            self._by_layer.setdefault(int(found[1]), []).append((canonical_tail(found[2]), stored))

    def rules_of_layer(self, index: int) -> tuple[Rule, ...]:
        """The rules that only this layer has, in an order that equal layers share."""
        return tuple(sorted(self._by_layer.get(index, ()), key=lambda rule: (rule[1] is None, rule[0])))

    def in_layer(self, index: int, name: str) -> WeightFormat | None:
        """The format of a linear module inside a layer."""
        rules = self.rules_of_layer(index)
        if rules not in self._lookups:
            general = [(canonical_tail(_behind_any_layer(pattern)), stored) for pattern, stored in self._general]
            self._lookups[rules] = _Lookup([*rules, *general])
        return self._lookups[rules].find(canonical_tail(name), self._default, layer=index)

    def outside(self, name: str) -> WeightFormat | None:
        """The format of a linear module outside the layers."""
        return self._outer.find(canonical_outer(name), self._default)

    def in_tower(self, name: str) -> WeightFormat | None:
        """The format of a linear module of a tower."""
        for kind in (_tower_module(name), ""):  # a layer named by itself is all of its modules
            if kind in self._in_towers and ".layer" in name.replace("blocks", "layers"):
                return self._in_towers[kind]
        return self.outside(name)


def _tower_module(name: str) -> str:
    """The kind of a tower's module, whatever it is called; "" for a whole layer."""
    last = name.rpartition(".")[2].rstrip("*")
    return next((kind for kind, names in _TOWER_MODULES if last in names), last)


def _behind_any_layer(pattern: str) -> str:
    """A pattern for all layers (`*.layers.*.mlp.gate`) from the layer on; others as they are."""
    if pattern.startswith("re:"):
        return pattern
    return re.sub(r"^.*\blayers\.\*\.", "*", canonical_outer(pattern))


class _Lookup:
    """Patterns compiled for one kind of layer. Formats come before exclusions."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._exact: dict[str, WeightFormat | None] = {}
        self._anywhere: dict[str, WeightFormat | None] = {}  # a single name, wherever it stands in the path
        self._expressions: list[tuple[re.Pattern[str], WeightFormat | None]] = []
        for pattern, stored in rules:
            if pattern.startswith("re:"):
                self._expressions.append((_compiled(pattern[3:]), stored))
            elif "*" in pattern:
                self._expressions.append((_from_glob(pattern), stored))
            elif "." in pattern or not pattern:
                self._exact.setdefault(pattern, stored)
            else:
                self._anywhere.setdefault(pattern, stored)

    def find(self, name: str, default: WeightFormat | None, layer: int | None = None) -> WeightFormat | None:
        parts = name.split(".")
        for cut in range(len(parts), -1, -1):
            parent = ".".join(parts[:cut])
            if parent in self._exact:
                return self._exact[parent]
        for part in parts:
            if part in self._anywhere:
                return self._anywhere[part]
        full = name if layer is None else f"model.layers.{layer}.{name}"
        for expression, stored in self._expressions:
            if expression.match(name) or expression.match(full):
                return stored
        return default


def _from_glob(pattern: str) -> re.Pattern[str]:
    """A glob, which may also stand for a whole subtree. A leading `*.` may stand for nothing."""
    if pattern.startswith("*."):
        return re.compile(r"(?:.*\.)?" + _glob_body(pattern[2:]) + r"(?:\..*)?$")
    return re.compile(_glob_body(pattern) + r"(?:\..*)?$")


def _glob_body(pattern: str) -> str:
    """Everything between two stars is taken where it comes first, so that no pattern takes long to match."""
    first, *others = (re.escape(part) for part in pattern.split("*"))
    between = "".join(f"(?>.*?{part})" for part in others[:-1])
    return first + between + (f".*{others[-1]}" if others else "")


def _compiled(expression: str) -> re.Pattern[str]:
    """A regular expression, unless it could take hours to match: a config is untrusted input."""
    if _REPEATED_GROUP.search(expression) or len(_REPETITION.findall(expression)) > _MOST_REPETITIONS:
        raise UnsupportedModel(
            f"config field 'quantization_config': the pattern 're:{expression[:60]}' repeats a group, or has more than "
            f"{_MOST_REPETITIONS} repetitions, and could take hours to match; write several simpler ones"
        )
    try:
        return re.compile(expression)
    except (re.error, OverflowError, RecursionError) as error:
        raise UnsupportedModel(
            f"config field 'quantization_config': 're:{expression[:60]}' is not a regular expression: {error}"
        ) from None
