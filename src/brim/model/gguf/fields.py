"""Typed reading of a GGUF header: values by their key without the architecture before it, and tensors by name.

What is missing is None, since converters leave out what a family does not have. What is of the wrong type is refused
where it is used: in the family's own reader, as if a config.json had it.
"""

from __future__ import annotations

from typing import Any

from brim.errors import InvalidConfig
from brim.model.fields import LARGEST_LAYER_COUNT
from brim.model.gguf.header import GgufHeader, GgufTensor


class HeaderFields:
    """The keys of one architecture, and the names of tensors."""

    def __init__(self, header: GgufHeader) -> None:
        self._header = header
        self._tensors = {tensor.name: tensor for tensor in header.tensors}
        self.architecture = header.architecture

    def where(self, key: str) -> str:
        return f"{self._header.file}: {self.architecture}.{key}"

    def raw(self, key: str) -> Any:
        """A number, or a list of them; None where there is none."""
        value = self._header.metadata.get(f"{self.architecture}.{key}")
        if isinstance(value, str):
            raise InvalidConfig(self.where(key), "must be a number, not text")
        return value

    def first(self, *keys: str) -> Any:
        """The value of the first of several keys that is there."""
        return next((value for key in keys if (value := self.raw(key)) is not None), None)

    def by_layer(self, key: str) -> list[Any]:
        """A value for every layer, also where one is given for all; nothing where there is none."""
        value = self.raw(key)
        if value is None:
            return []
        if not isinstance(value, list):
            return [value] * self.layers
        if len(value) < self.layers:
            raise InvalidConfig(self.where(key), f"has {len(value)} entries for {self.layers} layers")
        return value[: self.layers]

    def largest(self, key: str) -> Any:
        """The largest of a value that some layers have, and others have as 0."""
        return max(self.by_layer(key), default=None)

    @property
    def layers(self) -> int:
        """Layers that run: those behind them, for predicting several tokens, are not loaded."""
        blocks, behind = self.raw("block_count"), self.raw("nextn_predict_layers") or 0
        for key, value in (("block_count", blocks), ("nextn_predict_layers", behind)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise InvalidConfig(self.where(key), "missing or not a number")
        if not 1 <= blocks - behind <= LARGEST_LAYER_COUNT:
            raise InvalidConfig(self.where("block_count"), f"is {blocks}, outside 1 to {LARGEST_LAYER_COUNT}")
        return int(blocks - behind)

    def tensor(self, name: str) -> GgufTensor | None:
        return self._tensors.get(name)

    def has(self, name: str) -> bool:
        """Whether there is such a tensor; `blk.*.` stands for any layer."""
        if "*" not in name:
            return name in self._tensors
        before, after = name.split("*")
        return any(one.startswith(before) and one.endswith(after) for one in self._tensors)
