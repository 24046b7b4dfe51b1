"""Traces against peaks measured on an H200, and the accounting behind them."""

from __future__ import annotations

import json
import re
import statistics
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from brim.cli.main import run
from brim.errors import CannotTrace
from brim.model.catalogue import entries
from brim.records.trace import Phase, Trace, TraceShape
from tests.conftest import TRUTH, needs_truth, read_json, sampled, truth_rows

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from brim.trace.attention import choose_kernel  # noqa: E402
from brim.trace.build import build_model  # noqa: E402
from brim.trace.curve import trace_curves  # noqa: E402
from brim.trace.tracer import trace_config, trace_model  # noqa: E402
from brim.trace.watch import StorageWatch, watching  # noqa: E402

WITHIN = 0.001
MEASURED_WITH = (5, 17)  # the transformers that the truth was measured with


def shape_of(row: dict[str, Any]) -> TraceShape:
    phase, attention = row["phase"], row["attn"]
    if phase == "prefill_b4x1024":
        return TraceShape(tokens=1024, batch=4, attention=attention)
    if found := re.search(r"vision_(\d+)patches", phase):
        return TraceShape(Phase.VISION, tokens=int(found[1]), attention=attention)
    if found := re.search(r"vision_b(\d+)", phase):
        return TraceShape(Phase.VISION, tokens=1, batch=int(found[1]), attention=attention)
    found = re.fullmatch(r"prefill(\d+)(_alllogits|_kv)?", phase)
    assert found
    rows, kept = (0 if found[2] == "_alllogits" else 1), found[2] == "_kv"
    return TraceShape(tokens=int(found[1]), logit_rows=rows, keeps_kv=kept, attention=attention)


@cache
def model_of(name: str, attention: str) -> tuple[Any, str]:
    return build_model(read_json(TRUTH / "configs" / name / "config.json"), attention=attention)


@cache
def traces_of(name: str) -> list[tuple[dict[str, Any], Trace]]:
    found = []
    for row in truth_rows():
        if row["model"] == name:
            model, attention = model_of(name, row["attn"])
            trace = trace_model(model, shape_of(row), name=name, attention=attention, with_timeline=True)
            found.append((row, trace))
    return found


MODELS = sorted({row["model"] for row in truth_rows()})


@needs_truth
@pytest.mark.parametrize("name", sampled(MODELS, MODELS[::3]))
def test_the_peak_is_the_measured_one(name: str) -> None:
    for row, found in traces_of(name):
        assert found.peak_bytes == pytest.approx(row["peak_allocated_bytes"], rel=WITHIN), row["phase"]
        assert found.live[0].bytes <= found.peak_bytes == sum(one.bytes for one in found.live)
        assert found.timeline is not None
        assert found.timeline.operations[found.timeline.peak_at].live_bytes == found.peak_bytes


@needs_truth
@pytest.mark.parametrize("name", sampled(MODELS, MODELS[::3]))
def test_reserved_is_near_the_measured_one(name: str) -> None:
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    if version > MEASURED_WITH and name in ("Qwen--Qwen3-30B-A3B", "google--gemma-4-26B-A4B"):
        pytest.skip("newer transformers copy less in their experts than what was measured")
    rows = traces_of(name)
    errors = [found.reserved_bytes / row["peak_reserved_expandable_bytes"] - 1 for row, found in rows]
    assert max(errors) <= 0.05
    assert min(errors) >= -0.07
    assert sum(error < -0.02 for error in errors) <= 1
    default = [
        abs(found.reserved_default_bytes / row["peak_reserved_default_bytes"] - 1)
        for row, found in rows
        if row["peak_reserved_default_bytes"]
    ]
    assert statistics.median(default) <= 0.12  # the bar is 10 % over all rows: benchmarks/activation.py prints it


def watched(function: Any) -> StorageWatch:
    watch = StorageWatch(())
    with torch.no_grad(), watching(watch):
        kept = function()
        watch.finish()
    del kept
    return watch


def test_views_and_in_place_results_cost_nothing() -> None:
    def body() -> Any:
        x = torch.empty(1024, device="meta")  # 4096 bytes
        y = x.view(32, 32).transpose(0, 1)[3:]
        x.add_(1)
        torch.add(x, x, out=x)
        return x, y, x.unsqueeze(0).expand(7, -1)

    assert watched(body).peak_bytes == 4096


def test_a_storage_lives_as_long_as_its_last_view() -> None:
    def body() -> Any:
        view = torch.empty(1024, device="meta")[:1]  # the whole storage stays
        other = torch.empty(1024, device="meta")
        del other
        return view, torch.empty(1024, device="meta")

    assert watched(body).peak_bytes == 2 * 4096


def test_sizes_are_rounded_as_the_allocator_rounds() -> None:
    assert watched(lambda: [torch.empty(1, device="meta") for _ in range(3)]).peak_bytes == 3 * 512


def test_real_numbers_stay_real_beside_meta_tensors() -> None:
    def body() -> Any:
        lengths = torch.tensor([3, 5])
        x = torch.empty(8, 4, device="meta")
        return [part * 2 for part in x.split(lengths.tolist())], x[torch.tensor([1, 2])]

    assert watched(body).peak_bytes >= 512


def test_the_kernel_that_torch_would_choose() -> None:
    def tensor(heads: int, width: int, dtype: Any = torch.bfloat16) -> Any:
        return torch.empty((1, heads, 64, width), dtype=dtype, device="meta")

    mask = torch.empty((1, 1, 64, 64), dtype=torch.bool, device="meta")
    assert choose_kernel(tensor(8, 128), tensor(8, 128), tensor(8, 128), None) == "flash"
    assert choose_kernel(tensor(8, 128), tensor(8, 128), tensor(8, 128), mask) == "efficient"
    assert choose_kernel(tensor(8, 512), tensor(8, 512), tensor(8, 512), None) == "efficient"
    assert choose_kernel(tensor(8, 192), tensor(8, 192), tensor(8, 128), None) == "efficient"
    assert choose_kernel(*(tensor(8, 128, torch.float32),) * 3, None) == "efficient"
    assert choose_kernel(*(tensor(8, 33),) * 3, None) == "flash"
    assert choose_kernel(*(tensor(8, 33),) * 3, mask) == "math"


TINY = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}


def test_absurd_sizes_allocate_nothing() -> None:
    found = trace_config(TINY, TraceShape(tokens=10**9), name="tiny")
    assert found.peak_bytes > 10**12
    with pytest.raises(CannotTrace, match="tokens is 0"):
        trace_config(TINY, TraceShape(tokens=0), name="tiny")


def test_steps_of_a_batch() -> None:
    decode = trace_config(TINY, TraceShape(Phase.DECODE, 1, batch=64, attention="brim-fused"), name="tiny")
    speculated = TraceShape(Phase.VERIFY, 4, batch=64, logit_rows=0, attention="brim-fused")
    verify = trace_config(TINY, speculated, name="tiny")
    assert 0 < decode.peak_bytes < verify.peak_bytes
    kept = trace_config(TINY, TraceShape(Phase.DECODE, 1, batch=4, context=100), name="tiny")
    cache = 3 * 2 * 2 * 32 * 2 * 101 * 4  # the model's own cache is copied when a token is added
    assert kept.peak_bytes >= cache


def test_types_and_logits() -> None:
    half, full = (trace_config(TINY, TraceShape(tokens=512), name="tiny", dtype=t).peak_bytes for t in ("fp16", "fp32"))
    assert 1.7 < full / half < 2.1
    every, last = (trace_config(TINY, TraceShape(tokens=512, logit_rows=r), name="tiny").peak_bytes for r in (0, 1))
    assert every - last >= 0
    assert every >= 512 * 1000 * 2


def test_a_mixture_and_a_hybrid_run_on_the_meta_device() -> None:
    routed = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    mixture = {**TINY, **routed, "model_type": "qwen3_moe"}
    delta = {
        **TINY,
        "model_type": "qwen3_5_text",
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "num_hidden_layers": 4,
    }
    for config in (mixture, delta):
        assert trace_config(config, TraceShape(tokens=256), name="tiny").peak_bytes > 10**5


def test_a_curve_of_a_tiny_model() -> None:
    (curve,) = trace_curves(TINY, name="tiny").values()
    truth = trace_config(TINY, TraceShape(tokens=5000), name="tiny").peak_bytes
    assert curve.peak_bytes(5000) == pytest.approx(truth, rel=WITHIN)
    assert curve.held_back_error <= WITHIN


def test_prompts_behind_one_another_are_one_long_row() -> None:
    packed = trace_config(TINY, TraceShape(Phase.PACKED, 256, batch=8, attention="brim-fused"), name="tiny")
    single = trace_config(TINY, TraceShape(tokens=2048, logit_rows=8, attention="brim-fused"), name="tiny")
    assert packed.peak_bytes == single.peak_bytes


def test_a_curve_over_the_batch() -> None:
    (curve,) = trace_curves(TINY, name="tiny", phases=(Phase.DECODE,)).values()
    assert curve.unit == "sequences"
    shape = TraceShape(Phase.DECODE, 1, batch=200, attention="brim-fused")
    assert curve.peak_bytes(200) == pytest.approx(trace_config(TINY, shape, name="tiny").peak_bytes, rel=0.02)


def test_a_rank_of_several() -> None:
    whole, half = (trace_config(TINY, TraceShape(tokens=2048), name="tiny", ranks=ranks) for ranks in (1, 2))
    hidden_wide = 4 * 2048 * 256 * 2  # what every rank holds: embeddings, residuals, the input of the MLP
    assert half.peak_bytes - hidden_wide == pytest.approx((whole.peak_bytes - hidden_wide) / 2, rel=0.05)
    with pytest.raises(CannotTrace, match="tp 3 does not divide"):
        trace_config(TINY, TraceShape(tokens=16), name="tiny", ranks=3)
    with pytest.raises(CannotTrace, match="cannot be sharded"):
        trace_config({**TINY, "model_type": "nemotron_h"}, TraceShape(tokens=16), name="tiny", ranks=2)


BAD = {
    "unknown phase": ["--phase", "dream"],
    "no such tower": ["--phase", "vision"],
    "no tokens": ["--tokens", "0"],
    "logits": ["--logits", "99999"],
    "attention": ["--attn", "magic"],
    "dtype": ["--dtype", "int3"],
    "ranks": ["--tp", "3"],
    "svg": ["--svg", "/no/such/folder/x.svg"],
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_exit_code_2(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(TINY))
    assert run(["trace", str(config), *BAD[kind]]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "llama_next"},
        {"hidden_size": "wide"},
        {"num_attention_heads": 0},
        {"num_hidden_layers": 10**18},
        {"hidden_size": 10**18},
    ],
)
def test_a_config_that_transformers_refuses(change: dict[str, Any]) -> None:
    with pytest.raises(CannotTrace):
        trace_config({**TINY, **change}, TraceShape(tokens=16), name="tiny")


def test_remote_code_is_not_run() -> None:
    config = {**TINY, "model_type": "mystery", "auto_map": {"AutoModel": "modeling_mystery.Mystery"}}
    with pytest.raises(CannotTrace, match="never run"):
        trace_config(config, TraceShape(tokens=16), name="mystery")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, picture = tmp_path / "config.json", tmp_path / "trace.svg"
    config.write_text(json.dumps(TINY))
    assert run(["trace", str(config), "--tokens", "512", "--svg", str(picture), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) >= {"peak_bytes", "reserved_bytes", "reserved_default_bytes", "at", "live", "seconds"}
    assert set(found["at"]) == {"module", "op", "shapes"}
    assert set(found["live"][0]) == {"bytes", "op", "module", "shape"}
    assert picture.read_text().startswith("<svg")
    assert run(["trace", str(config), "--phase", "decode", "--batch", "8"]) == 0
    assert "Alive at the peak" in capsys.readouterr().out


def test_a_trillion_parameters_take_seconds() -> None:
    found = trace_config(entries()["kimi-k2.6"].config, TraceShape(tokens=4096), name="kimi")
    assert found.seconds < 15  # five on an idle machine; tests share theirs


def test_a_plan_of_several_ranks_takes_the_curve_of_one(tmp_path: Path) -> None:
    import brim

    options: dict[str, Any] = {"gpu": "h200", "tp": 2, "cache": tmp_path}

    def activation(**more: Any) -> tuple[int, str]:
        item = next(one for one in brim.plan("llama-3.2-1b", **options, **more).items if one.name == "activation")
        return item.bytes, str(item.source)

    formula = activation()
    traced = activation(trace=True)
    assert formula[1] == "formula"
    assert traced[1] == "traced"
    assert activation() == traced, "it was kept"
    assert abs(traced[0] / formula[0] - 1) < 0.05
    one_rank = next(
        one for one in brim.plan("llama-3.2-1b", gpu="h200", cache=tmp_path).items if one.name == "activation"
    )
    assert one_rank.bytes > traced[0]
