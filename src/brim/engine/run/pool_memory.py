"""Everything that a runner holds on the device while it has a KV pool: made as a whole, freed as a whole.

In: a model, and the shape of a pool. Out: the pool and all buffers beside it, and the model's layers connected to them.
The order in which they are made is part of the contract: on a GPU it decides how they fill the allocator's segments,
and with that which pool fits to the byte.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from brim.engine.attention.latent import KeptLatents
from brim.engine.attention.paged import CurrentStep, PagedLayer, attach, detach
from brim.engine.attention.protocol import AttentionBackend
from brim.engine.device.staging import Staging
from brim.engine.kv.geometry import KvShape, LayerGroup
from brim.engine.kv.tensors import KvTensors
from brim.engine.recurrent.mixers import PackedMixers
from brim.engine.recurrent.states import RecurrentStates
from brim.engine.run.graphs import DecodeGraphs
from brim.engine.run.last_tokens import LastTokens
from brim.engine.run.sampling.history import TokenHistory
from brim.engine.run.shape import RunnerModel
from brim.engine.weights.rotary import SettledRotary


class PoolMemory:
    """The KV pool of a runner, recurrent states, buffers by slot, and captured graphs."""

    kv: KvTensors
    states: RecurrentStates | None  # None: no layer is recurrent
    mixers: PackedMixers | None  # of these states
    backend: AttentionBackend
    last_tokens: LastTokens
    history: TokenHistory  # tokens that penalties look at
    rope_shift: torch.Tensor  # by slot

    def __init__(
        self,
        model: RunnerModel,
        groups: tuple[LayerGroup, ...],
        kv_shape: KvShape,
        step: CurrentStep,
        staging: Staging,
    ) -> None:
        self.kv_shape = kv_shape
        self.graphs: DecodeGraphs | None = None  # captured when all else is there
        self.graphs_failed = False  # a replay raised: what they hold is not known
        self.graphs_dropped = False  # for that reason
        self._undo: list[Callable[[], None]] = []  # what was changed in the model
        try:
            self._make(model, groups, staging)
            self._attach(model, step)
        except BaseException:
            self.free()
            raise

    def _make(self, model: RunnerModel, groups: tuple[LayerGroup, ...], staging: Staging) -> None:
        shape, backbone = model.shape, model.text_model.backbone
        self.kv = KvTensors(
            model.layers.geometry,
            groups,
            self.kv_shape,
            rows=shape.rows,
            max_length=shape.max_length,
            dtype=shape.kv_dtype,
            device=shape.device,
        )
        self.states = self.mixers = None
        if model.states:
            self.states = RecurrentStates(model.states, shape.max_batch, shape.device, snapshots=shape.max_drafted)
            self.mixers = PackedMixers(backbone, self.states)
            self._undo.append(self.mixers.undo)
        self._undo.append(KeptLatents(backbone).undo)
        self._undo.append(SettledRotary(backbone, shape.max_length).undo)
        self.backend = model.make_backend()
        self.last_tokens = LastTokens(shape.rows, shape.device)
        self.history = TokenHistory(shape.max_batch, shape.max_length, shape.device, staging)
        self.rope_shift = torch.zeros(shape.rows, dtype=torch.int64, device=shape.device)

    def _attach(self, model: RunnerModel, step: CurrentStep) -> None:
        """Let the model's layers attend through the pool."""
        for number, module in enumerate(model.layers.modules):
            group, geometry = self.kv.group_of[number], model.layers.geometry[number]
            layer = PagedLayer(
                self.kv.layers[number],
                self.kv.tables[group],
                group,
                self.kv_shape.block_size,
                geometry.window,
                geometry.lender is not None,
                step,
                self.backend,
                looks_ahead=geometry.window is not None or not model.ahead_in_windows_only,
            )
            self._undo.append(partial(detach, module))  # first: to attach takes memory too
            attach(module, layer)

    def free(self) -> None:
        """Leave the model as it was found, and hold nothing, also where somebody still holds this record.

        The traceback of an error does: without this, a pool that was refused halfway would stay as long as the error.
        """
        while self._undo:
            self._undo.pop()()
        vars(self).clear()
