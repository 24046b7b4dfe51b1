"""A model of the catalogue planned as a GGUF file that is not here: quants of repositories, and Ollama's names.

In: a name and a tag. Out: the catalogue's model in that format, with a warning that says what it was taken for. Its
weights are what llama.cpp's quantiser would write, which the plan calls hypothetical. Ollama's library has Q4_K_M under
a tag that names no format; that a library's model is the catalogue's is told by its name and size alone.
"""

from __future__ import annotations

import re
from dataclasses import replace

from brim.errors import SourceNotFound
from brim.model.catalogue import CatalogueEntry, entries, find_entry
from brim.model.quantisers.gguf_mixes import MIXES
from brim.model.quantisers.weight_formats import GGUF_FORMATS
from brim.model.siblings import find_sibling
from brim.records.model import GGUF, Dtype, ModelSpec, Quantisation
from brim.suggest import did_you_mean, shown, suggestions

_PLAIN = {"f16": Dtype.FP16, "fp16": Dtype.FP16, "bf16": Dtype.BF16, "f32": Dtype.FP32, "fp32": Dtype.FP32}
_OLLAMA_DEFAULT = "q4_k_m"
_AT_END = re.compile(rf"(?:^|-)({'|'.join(sorted((*MIXES, *_PLAIN), key=len, reverse=True))})$")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([bm])")
_SIZE_OFF = 0.15  # of the parameters: names round them
_REPOSITORY = re.compile(r"[-_.]gguf$")


def is_format(tag: str) -> bool:
    """Whether a tag names a format that sizes are known of."""
    return tag.lower() in MIXES or tag.lower() in _PLAIN


def in_format(spec: ModelSpec, tag: str) -> ModelSpec:
    """A model as a GGUF file in a format."""
    name = tag.lower()
    if name in _PLAIN:
        return replace(spec, dtype=_PLAIN[name], quantisation=Quantisation(GGUF, None))
    if name not in MIXES:
        raise SourceNotFound(
            f"'{tag[:40]}' is not a format whose size is known without its file; download it, or name one of "
            f"{', '.join([*MIXES, *_PLAIN]).upper()}"
        )
    return replace(spec, dtype=Dtype.FP16, quantisation=Quantisation(GGUF, GGUF_FORMATS[name]))


def entry_of_repository(repository: str) -> CatalogueEntry | None:
    """The catalogue's model that a GGUF repository is made from, by its name."""
    name = _REPOSITORY.sub("", repository.rpartition("/")[2].lower())
    unprefixed = name.partition("_")[2]  # "Qwen_Qwen3-8B": some write the organisation before the name
    for one in filter(None, (name, unprefixed)):
        found = find_entry(one) or find_sibling(one)
        if found is not None:
            return found
    return None


def split_tag(tag: str) -> tuple[str, str | None]:
    """(what stands before the format, format) of a tag of Ollama's: ("8b-instruct", "q4_k_m")."""
    lower = tag.lower()
    found = _AT_END.search(lower)
    return (lower[: found.start()], found[1]) if found else (lower, None)


def ollama_model(name: str, tag: str) -> tuple[CatalogueEntry, str | None, str]:
    """(entry, format, warning) of a name of Ollama's; the format is None where the library has the model's own."""
    size, named = split_tag("" if tag.lower() == "latest" else tag)
    entry = _by_words(name, size)
    if entry is None:
        raise _unknown(name, tag)
    own = _own_method(entry)
    stored = None if named is None and own == "mxfp4" else named or _OLLAMA_DEFAULT
    words = f"in {stored.upper()}" if stored else f"in {own}, as published"
    why = "" if named else ", which Ollama's library has where a tag names no format"
    text = shown(f"{name}:{tag}")
    return entry, stored, f"'{text}' is taken as {entry.name} of the catalogue ({entry.hub_id}), {words}{why}"


def _by_words(name: str, size: str) -> CatalogueEntry | None:
    whole = f"{name}-{size}" if size else name
    found = find_entry(whole) or find_sibling(whole)
    if found is not None:
        return found
    plain = {_squashed(one.name): one for one in _unquantised()}
    if _squashed(whole) in plain:
        return plain[_squashed(whole)]
    longer = [entry for key, entry in plain.items() if size and key.startswith(_squashed(whole))]
    if len(longer) == 1:  # qwen3:30b is qwen3-30b-a3b
        return longer[0]
    alone = plain.get(_squashed(name))
    return alone if alone is not None and size and _is_of_size(alone, size) else None


def _unquantised() -> list[CatalogueEntry]:
    return [one for one in entries().values() if _own_method(one) in ("mxfp4", None)]


def _own_method(entry: CatalogueEntry) -> str | None:
    found = entry.config.get("quantization_config", {}).get("quant_method")
    return found if isinstance(found, str) else None


def _squashed(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.lower())


def _is_of_size(entry: CatalogueEntry, size: str) -> bool:
    """Whether "14b" is about what the model has."""
    from brim.model.config import read_config

    found = _SIZE.match(size)
    if found is None:
        return False
    named = float(found[1]) * (1e9 if found[2] == "b" else 1e6)
    parameters = read_config(entry.config, name=entry.name).parameters
    return abs(parameters - named) <= _SIZE_OFF * parameters


def _unknown(name: str, tag: str) -> SourceNotFound:
    near = suggestions(f"{name}-{split_tag(tag)[0]}".removesuffix("-latest"), entries())
    return SourceNotFound(
        f"model '{shown(f'{name}:{tag}')}' reads as Ollama's model {name[:40]} with the tag {tag[:40]}, and the "
        f"catalogue has none like it; {did_you_mean(near)}give a GGUF file, org/name:Q4_K_M of a hub repository, or a "
        "name of `brim models`"
    )
