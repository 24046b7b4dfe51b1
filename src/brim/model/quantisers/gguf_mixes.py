"""What llama.cpp's quantiser writes under names such as Q4_K_M: the type of every tensor, by its rules.

In: the name of a mix, what a matrix is for, and where it stands. Out: a type of GGUF. The rules look at dimensions
alone: how many layers there are, how many query heads share a KV head, how many experts. They are those for files made
without an importance matrix, except for the i-quants, which are made with one. Publishers who choose types by hand
(dynamic quants) write other files under the same names: those are known from their headers only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from brim.model.quantisers.ggml_types import BY_NAME


class Part(StrEnum):
    """What a matrix is for, as far as the rules tell them apart."""

    HEAD = "head"  # or embeddings that are the head too
    EMBEDDINGS = "embeddings"
    QUERY = "query"
    KEY = "key"
    VALUE = "value"  # or queries, keys and values in one matrix
    ATTENTION_OUTPUT = "attention output"
    DOWN = "down"
    GATE_OR_UP = "gate or up"
    OTHER = "other"


# Names that families have for these matrices; c_proj is read by what it is in.
_PARTS: Mapping[str, Part] = {
    "q_proj": Part.QUERY,
    "k_proj": Part.KEY,
    "v_proj": Part.VALUE,
    "o_proj": Part.ATTENTION_OUTPUT,
    "out_proj": Part.ATTENTION_OUTPUT,
    **dict.fromkeys(("down_proj", "fc2", "fc_out", "w2", "dense_4h_to_h", "output_linear"), Part.DOWN),
    **dict.fromkeys(("gate_proj", "up_proj", "fc1", "fc_in", "w1", "w3", "c_fc", "dense_h_to_4h"), Part.GATE_OR_UP),
    **dict.fromkeys(("gate_up_proj", "input_linear"), Part.GATE_OR_UP),
}
_FUSED_QKV = frozenset(  # families whose files have queries, keys and values in one matrix
    {"phi3", "phi3_v", "phi", "falcon", "bloom", "mpt", "gpt2", "gpt_neox", "gpt_bigcode", "chatglm", "qwen", "dbrx"}
)


def part_of(name: str, family: str) -> Part:
    """What a matrix of a layer is for, by its name in checkpoints."""
    last = name.rpartition(".")[2]
    if last == "c_proj":
        return Part.DOWN if "mlp" in name else Part.ATTENTION_OUTPUT
    found = _PARTS.get(last, Part.OTHER)
    if found in (Part.QUERY, Part.KEY, Part.VALUE) and family in _FUSED_QKV:
        return Part.VALUE
    if found is Part.ATTENTION_OUTPUT and "attn" not in name:
        return Part.OTHER  # of a state-space layer
    return found


@dataclass(frozen=True, slots=True)
class Place:
    """Where a matrix stands: in which of the layers that have such a one, in what kind of model."""

    layer: int = 0
    layers: int = 1
    group: int = 1  # query heads of a KV head
    experts: int = 0
    of_expert: bool = False

    @property
    def first_eighth(self) -> bool:
        return self.layer < self.layers // 8

    @property
    def first_sixteenth(self) -> bool:
        return self.layer < self.layers // 16

    @property
    def more_bits(self) -> bool:
        """The ends of the model, and every third layer between them."""
        inner = self.layers // 8 <= self.layer < 7 * self.layers // 8
        return not inner or (self.layer - self.layers // 8) % 3 == 2

    @property
    def grouped(self) -> bool:
        """Values are small beside the rest, so that more bits for them cost little."""
        return self.group >= 4

    @property
    def eight_experts(self) -> bool:
        return self.experts == 8

    @property
    def as_large_as_70b(self) -> bool:
        return self.layers == 80 and self.group > 1


# The type that most matrices of a mix are in.
MIXES: Mapping[str, str] = {
    **{name: name for name in ("q8_0", "q6_k", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "iq4_xs")},
    "q5_k_m": "q5_k",
    "q5_k_s": "q5_k",
    "q4_k_m": "q4_k",
    "q4_k_s": "q4_k",
    "q3_k_l": "q3_k",
    "q3_k_m": "q3_k",
    "q3_k_s": "q3_k",
    "q2_k": "q2_k",
    "q2_k_s": "q2_k",
    "iq3_m": "iq3_s",
    "iq3_s": "iq3_s",
    "iq3_xs": "iq3_s",
    "iq3_xxs": "iq3_xxs",
    "iq2_m": "iq2_s",
    "iq2_s": "iq2_xs",
    "iq2_xs": "iq2_xs",
    "iq2_xxs": "iq2_xxs",
    "iq1_m": "iq1_m",
    "iq1_s": "iq1_s",
    "tq2_0": "tq2_0",
    "tq1_0": "tq1_0",
    "mxfp4_moe": "q8_0",  # but experts
}

_TWO_BITS = ("iq2_m", "iq2_s", "iq2_xs", "iq2_xxs", "iq1_m", "iq1_s")
_FIVE_BIT_OUTPUT = (  # of the mixes with 8 experts
    *("q2_k", "iq3_xs", "iq3_xxs", "q3_k_s", "q3_k_m", "iq4_nl", "q4_k_s", "q4_k_m", "iq3_s", "iq3_m", "iq4_xs"),
)

_Rule = Callable[[Place], str | None]  # a type, or None: the mix's own


def _always(name: str) -> _Rule:
    return lambda place: name


def _where(condition: Callable[[Place], bool], name: str, otherwise: str | None = None) -> _Rule:
    return lambda place: name if condition(place) else otherwise


def _grouped(place: Place) -> bool:
    return place.grouped


def _more_bits(place: Place) -> bool:
    return place.more_bits


def _first_eighth(place: Place) -> bool:
    return place.first_eighth


_EMBEDDINGS: Mapping[str, _Rule] = {
    **dict.fromkeys(("iq2_xxs", "iq2_xs", "iq1_s", "iq1_m"), _always("q2_k")),
    **dict.fromkeys(("iq2_s", "iq2_m", "iq3_xxs"), _always("iq3_s")),
    **dict.fromkeys(("tq1_0", "tq2_0"), _always("q4_k")),
}
_VALUE: Mapping[str, _Rule] = {
    **dict.fromkeys(_TWO_BITS, lambda place: "q4_k" if place.grouped or place.experts >= 4 else "q2_k"),
    **dict.fromkeys(("iq2_s", "iq2_m"), lambda place: "q4_k" if place.grouped or place.experts >= 4 else "iq3_s"),
    "q2_k": _where(_grouped, "q4_k", "q3_k"),
    "q2_k_s": _where(_grouped, "q4_k"),
    **dict.fromkeys(("iq3_xxs", "iq3_xs", "iq3_s"), _where(_grouped, "q4_k")),
    "iq3_m": _always("q4_k"),
    "q3_k_m": lambda place: "q5_k" if place.layer < 2 else "q4_k",
    "q3_k_l": _always("q5_k"),
    **dict.fromkeys(("iq4_nl", "iq4_xs"), _where(_grouped, "q5_k")),
    **dict.fromkeys(("q4_k_m", "q5_k_m"), _where(_more_bits, "q6_k")),
    "q4_k_s": lambda place: "q5_k" if place.layer < 4 else None,
}
_DOWN: Mapping[str, _Rule] = {
    **dict.fromkeys(_TWO_BITS, _where(_first_eighth, "q2_k")),
    **dict.fromkeys(("iq2_s", "iq2_m"), _where(_first_eighth, "iq3_s")),
    "q2_k": _always("q3_k"),
    "q2_k_s": _where(_first_eighth, "q4_k"),
    "q3_k_m": lambda place: "q5_k" if place.first_sixteenth else "q4_k",
    "iq3_m": lambda place: "q4_k" if place.first_eighth or (place.eight_experts and place.more_bits) else None,
    "q3_k_l": _always("q5_k"),
    **dict.fromkeys(("q4_k_m", "q5_k_m"), _where(_more_bits, "q6_k")),
    "q4_k_s": _where(_first_eighth, "q5_k"),
}
_ATTENTION_OUTPUT: Mapping[str, _Rule] = {
    "q2_k": _always("q3_k"),
    "iq3_xxs": _always("iq3_s"),
    "q3_k_m": _always("q4_k"),
    "q3_k_l": _always("q5_k"),
    "iq3_m": _always("q4_k"),
    **dict.fromkeys(("iq1_s", "iq1_m"), _always("iq2_xxs")),
    **dict.fromkeys(("iq2_s", "iq2_m"), _always("iq3_s")),
}
_QUERY_OR_KEY: Mapping[str, _Rule] = {"iq3_xs": _always("iq3_xxs"), "iq3_xxs": _always("iq2_s")}
_GATE_OR_UP: Mapping[str, _Rule] = {
    "iq3_xs": lambda place: "iq3_xxs" if place.layers // 8 <= place.layer < 7 * place.layers // 8 else None
}
_RULES: Mapping[Part, Mapping[str, _Rule]] = {
    Part.EMBEDDINGS: _EMBEDDINGS,
    Part.QUERY: _QUERY_OR_KEY,
    Part.KEY: _QUERY_OR_KEY,
    Part.VALUE: _VALUE,
    Part.ATTENTION_OUTPUT: _ATTENTION_OUTPUT,
    Part.DOWN: _DOWN,
    Part.GATE_OR_UP: _GATE_OR_UP,
}
# What a matrix becomes whose rows are no whole number of blocks.
_NARROW = {"q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0", "tq1_0": "q4_0", "tq2_0": "q4_0"}


def matrix_type(mix: str, part: Part, place: Place, columns: int) -> str:
    """The type of a matrix with so many columns."""
    found = _head(mix) if part is Part.HEAD else _inner(mix, part, place)
    if columns % BY_NAME[found].block:
        found = "q8_0" if part is Part.HEAD else _NARROW.get(found, "iq4_nl")
    return found if columns % BY_NAME[found].block == 0 else "f16"


def _head(mix: str) -> str:
    if mix in ("iq3_xxs", *_TWO_BITS):
        return "q5_k"
    return "q8_0" if MIXES[mix] == "q8_0" else "q6_k"


def _inner(mix: str, part: Part, place: Place) -> str:
    if mix == "mxfp4_moe":
        return "mxfp4" if place.of_expert else MIXES[mix]
    if place.eight_experts:
        special = _with_eight_experts(mix, part)
        if special is not None:
            return special
    rule = _RULES.get(part, {}).get(mix)
    found = (rule(place) if rule else None) or MIXES[mix]
    if part is Part.VALUE and place.as_large_as_70b and found in ("q3_k", "q4_k") and mix not in _TWO_BITS:
        return "q5_k"
    return found


def _with_eight_experts(mix: str, part: Part) -> str | None:
    """Attention is a small part of such a model, and gets more bits."""
    if part in (Part.KEY, Part.VALUE) and mix not in _TWO_BITS:
        return "q8_0"
    if part is Part.KEY:
        return "q4_k"
    if part is Part.ATTENTION_OUTPUT:
        return "q5_k" if mix in (*_TWO_BITS, *_FIVE_BIT_OUTPUT) else MIXES[mix]
    return None
