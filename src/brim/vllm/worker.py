"""vLLM's worker with Brim's fit in it.

vLLM starts a worker by `init_device`, `load_model`, `determine_available_memory`, then its core computes the number of
blocks, then `initialize_from_config` and `compile_or_warm_up_model`. The whole fit is in `determine_available_memory`:
afterwards the core's number of blocks is fixed. What was proven stands already, and the last two calls keep it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from functools import cache, partial
from pathlib import Path
from typing import Any

from brim.engine.device.segments import let_segments_grow
from brim.errors import BrimError, DoesNotFit, InvalidRequest
from brim.vllm.names import Where, missing_names
from brim.vllm.refusals import check_allowed, refusals
from brim.vllm.report import report_lines, shared_file, signed, write_json
from brim.vllm.rescue.guarded import StepGuard
from brim.vllm.rescue.refused import in_report
from brim.vllm.runner.engine import StockCalls, VllmEngine, same_cache
from brim.vllm.runner.pieces import score_in_pieces
from brim.vllm.settings import KEY, WorkerSettings, read_settings
from brim.vllm.sizing import Sized, is_cap, size_worker

_AUTO_LENGTH = -1  # vLLM would lower such a length after it has measured
_ADOPTED = ("hash_block_size", "cache_hit_alignment_tokens")  # of a cache, decided by the core after the fit


@cache
def worker_class() -> type[Any]:
    """Brim's worker over the one that vLLM has for this platform."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        from vllm.v1.worker.cpu_worker import CPUWorker as Stock
    elif current_platform.is_cuda():
        from vllm.v1.worker.gpu_worker import Worker as Stock
    else:
        raise InvalidRequest(f"Brim sizes vLLM on CUDA devices and on the CPU; this is {current_platform.device_name}")
    return type("BrimWorker", (FittedWorker, Stock), {"__module__": "brim.vllm"})


class FittedWorker:
    """What Brim's worker has in addition to the stock one; stands before it among the bases of the worker class."""

    vllm_config: Any
    cache_config: Any
    model_runner: Any
    rank: int
    device: Any
    use_v2_model_runner: bool

    def __init__(self, vllm_config: Any, *arguments: Any, **named: Any) -> None:
        self._brim = _begun(vllm_config)
        self._brim_rescue = in_report(vllm_config, os.environ)
        self._brim_guard = StepGuard(self)
        self._brim_engine: VllmEngine | None = None
        self._brim_sized: Sized | None = None
        self._brim_kept: bool | None = None
        self._brim_grows = False  # segments of the allocator, by Brim
        budgeted = self._brim is not None and self._brim.budget_bytes is not None  # it takes the utilization's place
        with _utilization(vllm_config.cache_config, asked=not budgeted):
            super().__init__(_as_stock(vllm_config), *arguments, **named)  # type: ignore[call-arg]

    def init_device(self) -> None:
        """vLLM refuses to start where less than its utilization is free; Brim takes what is there."""
        if self._brim is None:
            super().init_device()  # type: ignore[misc]
            return
        self._brim_grows = _grown_segments(self.vllm_config, self._brim)
        with _utilization(self.cache_config, asked=is_cap(self.cache_config, self._brim)):
            super().init_device()  # type: ignore[misc]

    def determine_available_memory(self) -> int:
        """Bytes for the KV cache, from which the core computes exactly the blocks that stand."""
        if self._brim is None:
            return int(super().determine_available_memory())  # type: ignore[misc]
        self._brim_grows = _grown_segments(self.vllm_config, self._brim)  # again: loading weights may reset it
        engine = self._brim_engine = VllmEngine(
            self,
            StockCalls(super().initialize_from_config, super().compile_or_warm_up_model),  # type: ignore[misc]
        )
        self._compile(engine)
        if self._brim_scores_in_pieces:
            score_in_pieces(self.model_runner, self.vllm_config.model_config.get_vocab_size())
        self._brim_sized = self._sized(engine, self._brim)
        report = self._brim_sized.report
        for line in report_lines(report, engine.stock_seconds):
            self._say(line)
        self._publish()
        return engine.blocks.kv_bytes(report.kv_tokens)

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        engine = self._brim_engine
        if engine is None:
            super().initialize_from_config(kv_cache_config)  # type: ignore[misc]
            return
        self._brim_kept = same_cache(engine.built, kv_cache_config)
        if self._brim_kept:
            self._adopt(kv_cache_config)
        else:
            self._say(
                f"the core asks for {kv_cache_config.num_blocks} blocks, not what was proven: built again, unproven"
            )
            engine.teardown()
            super().initialize_from_config(kv_cache_config)  # type: ignore[misc]
        self._publish()

    def compile_or_warm_up_model(self) -> Any:
        if self._brim_kept and self._brim_engine is not None:
            return self._brim_engine.times
        return super().compile_or_warm_up_model()  # type: ignore[misc]

    def execute_model(self, scheduler_output: Any) -> Any:
        return self._brim_guard.execute(scheduler_output, super().execute_model)  # type: ignore[misc]

    def sample_tokens(self, grammar_output: Any) -> Any:
        return self._brim_guard.sample(partial(super().sample_tokens, grammar_output))  # type: ignore[misc]

    def shutdown(self) -> None:
        if self._brim_sized is not None:
            self._brim_sized.leases.close()
            if self.rank == 0:
                self._shared_file().unlink(missing_ok=True)
        super().shutdown()  # type: ignore[misc]

    def brim_report(self) -> dict[str, Any] | None:
        """The fit of this rank; None where it is stock vLLM. `llm.collective_rpc("brim_report")` asks all ranks."""
        if self._brim_sized is None or self._brim_engine is None:
            return None
        report = self._brim_sized.report
        return {
            **report.to_json(),
            "kv_cache_memory_bytes": self._brim_engine.blocks.kv_bytes(report.kv_tokens),
            "stock_seconds": self._brim_engine.stock_seconds,
            "growing_segments": self._brim_grows,
            "kept": self._brim_kept,
            "rescue": self._brim_rescue,
        }

    def _sized(self, engine: VllmEngine, settings: WorkerSettings) -> Sized:
        try:
            return size_worker(self, engine, settings, self._say)
        except DoesNotFit as error:
            if self.vllm_config.model_config.original_max_model_len != _AUTO_LENGTH:
                raise
            length = self.vllm_config.model_config.max_model_len
            words = f"{error}. A length of auto is the model's own here, {length:,}: give a smaller --max-model-len"
            raise DoesNotFit(words, missing_bytes=error.missing_bytes) from error

    def _compile(self, engine: VllmEngine) -> None:
        """What stock vLLM does in this call before it measures: compile, and make communication buffers."""
        staged = self.vllm_config.parallel_config.pipeline_parallel_size > 1  # buffers between stages are made in it
        if staged or self.device.type == "cuda":
            engine.profile()
            return
        should = getattr(self, "_should_warm_up_model", None)  # newer versions skip it where nothing is compiled
        if should is None or should():
            self.model_runner.warming_up_model()

    @property
    def _brim_scores_in_pieces(self) -> bool:
        """Only the V1 runner needs it. With LoRA its logits depend on which rows they are made of: left alone."""
        asked = self._brim is not None and self._brim.score_in_pieces
        return asked and not self.use_v2_model_runner and self.vllm_config.lora_config is None

    def _adopt(self, kv_cache_config: Any) -> None:
        """What the stock call takes from the core's configuration besides the cache, which stands."""
        self.cache_config.num_gpu_blocks = kv_cache_config.num_blocks
        for name in _ADOPTED:
            if hasattr(kv_cache_config, name):
                setattr(self.cache_config, name, getattr(kv_cache_config, name))

    def _publish(self) -> None:
        """The report for the front process, and where the operator wants it."""
        report = self.brim_report()
        if self.rank != 0 or report is None or self._brim is None:
            return
        for path, body in ((self._shared_file(), signed(report)), (self._brim.report, report)):
            if path is None:
                continue
            try:
                write_json(path, body)
            except OSError as error:
                self._say(f"the report could not be written to {path}: {error}")

    def _shared_file(self) -> Path:
        return shared_file(self.vllm_config.instance_id, self.vllm_config.parallel_config.data_parallel_index)

    def _say(self, words: str) -> None:
        from vllm.logger import init_logger

        if self.rank == 0:
            init_logger("vllm.brim").info("brim: %s", words)


@contextmanager
def _utilization(cache_config: Any, *, asked: bool) -> Iterator[None]:
    """Where nobody asked for a utilization, vLLM must not demand that so much is free."""
    before = cache_config.gpu_memory_utilization
    if not asked:
        cache_config.gpu_memory_utilization = 0.0
    try:
        yield
    finally:
        cache_config.gpu_memory_utilization = before


def _as_stock(vllm_config: Any) -> Any:
    """The configuration without Brim's settings: vLLM names its compiled code by all of it, so it finds stock's."""
    given = vllm_config.additional_config
    if not isinstance(given, Mapping) or KEY not in given:
        return vllm_config
    found = copy(vllm_config)  # others in this process keep theirs
    found.additional_config = {name: value for name, value in given.items() if name != KEY}
    return found


def _begun(vllm_config: Any) -> WorkerSettings | None:
    """The settings of a worker that Brim sizes; None: stock vLLM."""
    import vllm
    from vllm.logger import init_logger
    from vllm.platforms import current_platform

    settings = read_settings(vllm_config.additional_config, os.environ)
    if not settings.enabled:
        return None
    where = Where.CPU if current_platform.is_cpu() else Where.GPU
    found = refusals(vllm_config, missing_names(Path(vllm.__file__).parent, where))
    try:
        check_allowed(found, settings.stock_where_refused)
    except BrimError as error:
        init_logger("vllm.brim").error("brim: %s", error)
        raise
    if found:
        init_logger("vllm.brim").warning("brim: stock vLLM: %s", "; ".join(map(str, found)))
        return None
    return settings


def _grown_segments(vllm_config: Any, settings: WorkerSettings) -> bool:
    """Let segments grow, but not where ranks open each other's memory by handles, which such segments have none of."""
    parallel = vllm_config.parallel_config
    shares_memory = parallel.tensor_parallel_size > 1 and not parallel.disable_custom_all_reduce
    wanted = settings.growing_segments and vllm_config.device_config.device_type == "cuda" and not shares_memory
    return wanted and let_segments_grow()
