"""A model from its GGUF files: dimensions by its family's reader, weights byte for byte from the tables of tensors.

In: headers. Out: a `ModelSpec` whose weights are exact, with their bytes by layer. Where the dimensions give another
number of parameters than the tables have, the spec says so: then its KV cache may be wrong too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from brim.errors import InvalidConfig, UnsupportedModel
from brim.model.config import UnlistedReader, read_config
from brim.model.gguf.configs import config_of
from brim.model.gguf.files import GgufFiles, variant_of
from brim.model.gguf.header import GgufHeader, GgufTensor, read_header_file
from brim.model.gguf.projector import ARCHITECTURE as PROJECTOR
from brim.model.gguf.projector import towers_of
from brim.model.quantisers.gguf_mixes import MIXES
from brim.model.quantisers.weight_formats import GGUF_FORMATS
from brim.records.model import GGUF, ModelSpec, Quantisation, StoredParts, WeightFormat

_LAYER = re.compile(r"blk\.(\d+)\.")
_OUTPUT = ("output.", "output_norm")
_EMBEDDINGS = "token_embd.weight"
_NOT_WEIGHTS = ("rope_freqs", "rope_factors")  # computed when a model is converted
_PARAMETERS_OFF = 0.02  # of the parameters, before a difference is told

# Mixes in the order of the numbers that headers have for them; those without a name were taken out of the format.
_FILE_TYPES = (
    *("f32", "f16", "q4_0", "q4_1", "", "", "", "q8_0", "q5_0", "q5_1", "q2_k", "q3_k_s", "q3_k_m", "q3_k_l"),
    *("q4_k_s", "q4_k_m", "q5_k_s", "q5_k_m", "q6_k", "iq2_xxs", "iq2_xs", "q2_k_s", "iq3_xs", "iq3_xxs", "iq1_s"),
    *("iq4_nl", "iq3_s", "iq3_m", "iq2_s", "iq2_m", "iq4_xs", "iq1_m", "bf16", "", "", "", "tq1_0", "tq2_0"),
    *("mxfp4_moe", "nvfp4", "q1_0", "q2_0"),
)


@dataclass(frozen=True, slots=True)
class GgufModel:
    """The headers of a model: one with the tensors of all parts, and that of a projector."""

    name: str
    header: GgufHeader
    parts: int
    projector: GgufHeader | None = None
    projector_file: str | None = None


def read_files(files: GgufFiles) -> GgufModel:
    """The headers of files on this machine. Projectors of another model are left out."""
    headers = [read_header_file(path) for path in files.parts]
    header = joined(headers)
    for path in files.projectors:
        projector = read_header_file(path)
        if projector.architecture == PROJECTOR and _belongs(projector, header):
            return GgufModel(files.name, header, len(headers), projector, str(path))
    return GgufModel(files.name, header, len(headers))


def joined(headers: Sequence[GgufHeader]) -> GgufHeader:
    """One header of all parts: the first has the metadata, and each has its tensors."""
    first = headers[0]
    tensors = tuple(tensor for header in headers for tensor in header.tensors)
    promised = first.metadata.get("split.tensors.count")
    if len(headers) > 1 and isinstance(promised, int) and promised != len(tensors):
        raise InvalidConfig(first.file, f"promises {promised} tensors in all parts, which have {len(tensors)}")
    if len({tensor.name for tensor in tensors}) < len(tensors):
        raise InvalidConfig(first.file, "has parts that are not of one file: they have tensors of the same names")
    parts = first.metadata.get("split.count")
    if len(headers) == 1 and isinstance(parts, int) and parts > 1:
        raise InvalidConfig(first.file, f"is one of {parts} parts, and its name does not say which", "rename it back")
    return GgufHeader(first.file, first.metadata, tensors)


def spec_of(model: GgufModel, unlisted: UnlistedReader | None = None) -> ModelSpec:
    """The model of these headers."""
    header = model.header
    kind = header.metadata.get("general.type")
    if header.architecture == PROJECTOR or kind in ("adapter", "imatrix"):
        raise UnsupportedModel(
            f"{header.file} holds {'a multimodal projector' if kind is None else f'an {kind}'} and no model; give the "
            "model's own file"
        )
    spec = read_config(config_of(header), name=model.name, unlisted=unlisted)
    towers = towers_of(model.projector) if model.projector else ()
    parts = _stored_parts(header, spec, model.projector)
    words = "1 GGUF file" if model.parts == 1 else f"{model.parts} GGUF files"
    return replace(
        spec,
        towers=towers,
        quantisation=Quantisation(GGUF, _format(header)),
        files_bytes=parts.bytes,
        files_detail=f"from the header{'s' if model.parts > 1 else ''} of {words}",
        stored_parts=parts,
        projector=model.projector_file,
        warnings=(*spec.warnings, *_compared(header, spec)),
    )


def config_and_name(model: GgufModel) -> tuple[str, dict[str, Any]]:
    """What `transformers` would read of the model, for tracing its code."""
    return model.name, config_of(model.header)


def _belongs(projector: GgufHeader, header: GgufHeader) -> bool:
    """Whether a projector's output is as wide as the model."""
    width = header.metadata.get(f"{header.architecture}.embedding_length")
    own = [projector.metadata.get(f"clip.{key}.projection_dim") for key in ("vision", "audio")]
    return width in own or own == [None, None]


def _format(header: GgufHeader) -> WeightFormat:
    """The format of the file: the mix that it names, or the type of most of its bytes."""
    by_type: dict[str, int] = {}
    for tensor in header.tensors:
        by_type[tensor.type.name] = by_type.get(tensor.type.name, 0) + tensor.bytes
    most = max(by_type, key=lambda name: by_type[name])
    number = header.metadata.get("general.file_type")
    named = _FILE_TYPES[number] if isinstance(number, int) and 0 <= number < len(_FILE_TYPES) else ""
    named = named or variant_of(header.file).lower() or most
    if named in MIXES and (MIXES[named] in by_type or named in by_type):
        return GGUF_FORMATS[named]
    types = {tensor.type.name: tensor.type for tensor in header.tensors}
    return types[most].format


def _stored_parts(header: GgufHeader, spec: ModelSpec, projector: GgufHeader | None) -> StoredParts:
    layers = [0] * len(spec.layers)
    embeddings = output = 0
    for tensor in header.tensors:
        found = _LAYER.match(tensor.name)
        if found is None:
            output += tensor.bytes if tensor.name.startswith(_OUTPUT) else 0
            embeddings += 0 if tensor.name.startswith(_OUTPUT) else tensor.bytes
        elif int(found[1]) < len(layers):
            layers[int(found[1])] += tensor.bytes
    tied = not any(tensor.name == "output.weight" for tensor in header.tensors)
    shared = sum(tensor.bytes for tensor in header.tensors if tensor.name == _EMBEDDINGS) if tied else 0
    towers = sum(tensor.bytes for tensor in projector.tensors) if projector else 0
    return StoredParts(tuple(layers), embeddings, output, shared, towers)


def _compared(header: GgufHeader, spec: ModelSpec) -> tuple[str, ...]:
    stored = sum(tensor.elements for tensor in header.tensors if _is_weight(tensor, len(spec.layers)))
    if abs(stored - spec.parameters) <= _PARAMETERS_OFF * stored:
        return ()
    return (
        f"the tensors of {header.file} have {stored / 1e9:.2f} B parameters, and its dimensions as "
        f"{header.architecture[:40]!r} give {spec.parameters / 1e9:.2f} B: weights are exact, but KV may not be",
    )


def _is_weight(tensor: GgufTensor, layers: int) -> bool:
    found = _LAYER.match(tensor.name)
    return not any(name in tensor.name for name in _NOT_WEIGHTS) and (found is None or int(found[1]) < layers)
