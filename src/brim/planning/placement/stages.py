"""Pipeline stages: which layers each has, and what else it holds.

In: a model, the number of stages and the engine's rule for layers that the stages do not divide. Out: a `PlacedPart`
for each stage. The first holds the input embeddings, the last norm and head, and the embeddings again where the head
is tied to them. A stage without the head has no vocabulary: neither logits nor a sampler.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise

from brim.errors import InvalidRequest
from brim.planning.placement.record import PlacedPart, StageRule
from brim.records.model import LayerSpec, ModelSpec, Tensor

EMPTY_LAYER = LayerSpec(None, None, ())
_INPUT_TABLES = ("wte", "wpe")


def stage_layers(layers: int, stages: int, rule: StageRule) -> tuple[range, ...]:
    """The layers of each stage. What is left over goes to the stages before the last, to the last, or to the first."""
    each, left = divmod(layers, stages)
    if rule is StageRule.BEFORE_LAST:
        more = range(stages - 1 - left, stages - 1)
    elif rule is StageRule.LAST:
        more = range(stages - left, stages)
    else:
        more = range(left)
    sizes = [each + (stage in more) for stage in range(stages)]
    return tuple(range(start, end) for start, end in pairwise([0, *accumulate(sizes)]))


def check_stages(spec: ModelSpec, stages: int) -> None:
    if stages > len(spec.layers):
        raise InvalidRequest(f"pp {stages}: {spec.name} has {len(spec.layers)} layers; use at most so many stages")


def stage_parts(spec: ModelSpec, stages: int, rule: StageRule, *, towers_everywhere: bool) -> tuple[PlacedPart, ...]:
    """What each stage holds. `towers_everywhere`: the engine loads encoders on every stage, and runs the first's."""
    found = []
    for stage, layers in enumerate(stage_layers(len(spec.layers), stages, rule)):
        first, last = stage == 0, stage == stages - 1
        tensors = (*(input_tensors(spec) if first else ()), *(_output_tensors(spec, again=not first) if last else ()))
        alone = only_layers(spec, layers, tensors)
        found.append(
            PlacedPart(
                stage=stage,
                layers=layers,
                whole=spec,
                spec=replace(alone, vocab=spec.vocab if last else 0, towers=spec.towers if first else ()),
                weights=at_their_places(spec, layers, tensors, towers=first or towers_everywhere),
            )
        )
    return tuple(found)


def only_layers(spec: ModelSpec, layers: range, tensors: tuple[Tensor, ...]) -> ModelSpec:
    """A model of these layers alone; one empty layer where there are none."""
    kept = spec.layers[layers.start : layers.stop] or (EMPTY_LAYER,)
    return replace(spec, layers=kept, tensors=tensors, files_bytes=None)


def at_their_places(spec: ModelSpec, layers: range, tensors: tuple[Tensor, ...], *, towers: bool) -> ModelSpec:
    """The same for its weights: other layers are empty."""
    kept = tuple(layer if index in layers else EMPTY_LAYER for index, layer in enumerate(spec.layers))
    outer = with_head_elsewhere(spec, tensors)
    return replace(spec, layers=kept, tensors=outer, towers=spec.towers if towers else (), files_bytes=None)


def with_head_elsewhere(spec: ModelSpec, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """With none of the head, where another device has it: a table of embeddings without a head would be the head."""
    heads = [tensor for tensor in spec.tensors if tensor.name == "lm_head" and tensor not in tensors]
    return (*tensors, *(replace(head, count=0) for head in heads))


def input_tensors(spec: ModelSpec) -> tuple[Tensor, ...]:
    """Tables of embeddings, and what is computed from them before the first layer."""
    return tuple(tensor for tensor in spec.tensors if _is_input(tensor))


def _output_tensors(spec: ModelSpec, *, again: bool) -> tuple[Tensor, ...]:
    """Norm and head. A head that is the input's table is held `again`, unless the stage has it anyway."""
    output = tuple(tensor for tensor in spec.tensors if not _is_input(tensor))
    if not again or any(tensor.name.endswith("lm_head") for tensor in output):
        return output
    tables = (tensor for tensor in input_tensors(spec) if len(tensor.shape) == 2 and tensor.units == 0)
    return (*output, *list(tables)[:1])


def _is_input(tensor: Tensor) -> bool:
    parts = tensor.name.split(".")
    return any("embed" in part or "per_layer" in part or part in _INPUT_TABLES for part in parts)
