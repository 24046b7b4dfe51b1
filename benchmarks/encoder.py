"""Encoders beside an engine on one GPU: do the largest media fit, and what do images cost the text beside them?

    python benchmarks/encoder.py --commit $(git rev-parse --short HEAD) --out benchmarks/results/encoder_h200.json
    python benchmarks/encoder.py --tiny                     # on the CPU, a minute: to try this script

Each question is asked in processes of their own while this one holds a ballast that leaves `--free` GiB:

    memory     `--requests` requests with the largest legal image, text beside them. With a lease, all of them succeed;
               without one (the encoder gives back what its worst batch took, and the fit takes it), memory runs out.
    audio      the same with the longest legal audio, of a model whose images are limited to few pixels.
    latency    seconds between two tokens of a text (p50, p99): alone, beside images encoded inline, and beside images
               encoded in a process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from stamp import stamp

GIB = 1 << 30
CASES = (
    "memory with a lease",
    "memory without one",
    "audio with a lease",
    "audio without one",
    "latency inline",
    "latency process",
)
AROUND = {"image": "vision", "audio": "audio"}  # how a config calls the tokens before and behind


@dataclass(frozen=True)
class Scale:
    """How large everything is."""

    model: str | dict[str, Any]
    device: str
    dtype: str
    max_length: int
    max_batch: int
    batch_tokens: int
    texts: int  # streams of text beside the images
    image_side: int  # tokens a side of the images of the latency question
    seconds: float
    budget: str | None = None  # on the CPU, in place of a GPU
    image_pixels: int | None = None  # of the largest image


H200 = Scale("Qwen/Qwen2.5-VL-7B-Instruct", "cuda:0", "bf16", 20_480, 32, 4096, 8, 40, 30.0)
TINY = Scale("brim-tiny-vl", "cpu", "fp32", 512, 8, 128, 4, 4, 2.0, "320MiB")
TINY_AUDIO = {
    "model_type": "qwen2_audio",
    "text_config": {
        "model_type": "qwen2",
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
    },
    "audio_config": {
        "model_type": "qwen2_audio_encoder",
        "d_model": 64,
        "encoder_layers": 2,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 128,
        "num_mel_bins": 16,
        "max_source_positions": 200,
    },
    "audio_token_index": 500,
}
HEARS = {
    False: replace(H200, model="qwen2.5-omni-7b", image_pixels=1 << 18),
    True: replace(TINY, model=TINY_AUDIO),
}


@dataclass
class Load:
    """Texts that never end and media that come one after the other, on one engine."""

    engine: Any
    scale: Scale
    part: Any  # the image or audio of every request, a little different each time
    last: dict[str, float] = field(default_factory=dict)
    gaps: list[float] = field(default_factory=list)
    finished: list[Any] = field(default_factory=list)
    texts: int = 0
    media: int = 0

    def submit_text(self) -> None:
        from brim.engine.requests.params import SamplingParams

        length = self.scale.max_length // 8
        prompt = [10 + self.texts % 50, *range(20, 60)]
        self.engine.submit(prompt, SamplingParams(max_tokens=length, ignore_eos=True), request_id=f"text {self.texts}")
        self.texts += 1

    def submit_media(self) -> None:
        from brim.engine.requests.params import SamplingParams

        inputs = {name: tensor.clone() for name, tensor in self.part.inputs.items()}
        for name in ("pixel_values", "input_features"):
            if name in inputs:
                inputs[name].view(-1)[0] = self.media  # another one, as its digest sees it
        params = SamplingParams(max_tokens=8, ignore_eos=True)
        name = f"media {self.media}"
        self.engine.submit(self._prompt(), params, request_id=name, **{self.part.kind: inputs})
        self.media += 1

    def _prompt(self) -> list[int]:
        """The part between the tokens that stand around it, where the model has those."""
        config, kind = self.engine.loaded.full_config, self.part.kind.removesuffix("s")
        start, end = (getattr(config, f"{AROUND[kind]}_{side}_token_id", None) for side in ("start", "end"))
        inside = [getattr(config, f"{kind}_token_id")] * self.part.tokens
        return [10, *([start] if start is not None else []), *inside, *([end] if end is not None else [])]

    def step(self) -> None:
        updates = self.engine.step()
        now = time.perf_counter()
        for update in updates:
            if update.request_id.startswith("text") and update.token is not None:
                if update.request_id in self.last:
                    self.gaps.append(now - self.last[update.request_id])
                self.last[update.request_id] = now
            if update.completion is not None:
                self.last.pop(update.request_id, None)
                if update.request_id.startswith("text"):
                    self.submit_text()
                else:
                    self.finished.append(update.completion)


def percentiles(gaps: list[float]) -> dict[str, float]:
    ordered = sorted(gaps)
    return {
        "tokens": len(ordered),
        "p50_ms": 1000 * statistics.median(ordered),
        "p99_ms": 1000 * ordered[int(0.99 * (len(ordered) - 1))],
        "most_ms": 1000 * ordered[-1],
    }


# -- one case, in a process of its own -----------------------------------------------------------------------------


def fitted(scale: Scale, encoder: str, leased: bool, opened: ExitStack) -> tuple[Any, Any]:
    """(an engine that has been sized, the report)."""
    from brim.engine.encoders.start import EncoderPlace, start_encoders
    from brim.engine.engine import Engine
    from brim.engine.settings import EngineSettings
    from brim.probes.cpu import CpuProbe
    from brim.records.lease import Expected
    from brim.reserve.sizing import sizing
    from brim.serving import fit_engine

    settings = EngineSettings(
        max_length=scale.max_length,
        max_batch=scale.max_batch,
        max_batch_tokens=scale.batch_tokens,
        encoder=encoder,
        max_image_pixels=scale.image_pixels,
        host_memory=0,
        compile=False,
    )
    device = find_device(scale)
    place = EncoderPlace(scale.device, device_text(scale) if leased else None)
    encoders = start_encoders(
        scale.model, settings, (place,), load_format="dummy", dtype=scale.dtype, seed=0, holds=leased
    )
    if encoders is not None and not leased:
        encoders.start()  # it is there before the fit, and has promised nothing
    expected = Expected(roles=tuple(role for _, role in encoders.leases) if encoders is not None and leased else ())
    part = opened.enter_context(sizing(device, expected=expected, wait_seconds=300))
    probe = CpuProbe(part.part.promised_bytes) if scale.budget else None
    engine = opened.enter_context(
        Engine(
            scale.model,
            kv_tokens=0,
            settings=settings,
            load_format="dummy",
            dtype=scale.dtype,
            device=scale.device,
            probe=probe,
            encoders=encoders,
        )
    )
    return engine, fit_engine(engine, probe=probe, neighbours=part)


def device_text(scale: Scale) -> str:
    if scale.budget is not None:
        return f"cpu:bench-{os.getpid()}:{scale.budget}"
    from brim.probes.nvml import device_uuid

    return str(device_uuid(0))


def find_device(scale: Scale) -> Any:
    from brim.reserve.devices import find_leased

    return find_leased(device_text(scale))


def memory(scale: Scale, leased: bool, requests: int) -> dict[str, Any]:
    """The largest images or audios, one after the other, with text beside them."""
    from brim.errors import BrimError

    with ExitStack() as opened:
        engine, report = fitted(scale, "process", leased, opened)
        largest = engine.worst_audio() or engine.worst_image()
        load = Load(engine, scale, largest)
        ended = ""
        try:
            for _ in range(scale.texts):
                load.submit_text()
            while len(load.finished) < requests:
                if load.media < requests and load.media - len(load.finished) < 2:
                    load.submit_media()
                load.step()
        except BrimError as error:
            ended = str(error)
        succeeded = sum(one.error is None for one in load.finished)
        return {
            "leased": leased,
            "requests": requests,
            "succeeded": succeeded,
            "kind": largest.kind.removesuffix("s"),
            "tokens_each": largest.tokens,
            "errors": sorted({one.error for one in load.finished if one.error} | ({ended} if ended else set())),
            "facts": asdict(engine.encoders.facts),
            "on_device": list(engine.encoders.on_device),
            "figures": asdict(engine.encoders.figures),
            "kv_tokens": report.kv_tokens,
            "items": report.to_json()["items"],
            "text": percentiles(load.gaps) if load.gaps else None,
            "health": str(engine.health.status),
        }


def latency(scale: Scale, encoder: str) -> dict[str, Any]:
    """Gaps between the tokens of texts: alone, then beside a stream of images."""
    import torch

    from brim.engine.media.parts import MediaPart

    with ExitStack() as opened:
        engine, _ = fitted(scale, encoder, True, opened)
        vision = engine.loaded.full_config.vision_config
        side = scale.image_side * vision.spatial_merge_size
        channels = getattr(vision, "in_channels", None) or vision.in_chans
        pixels = torch.zeros(side**2, channels * vision.temporal_patch_size * vision.patch_size**2)
        inputs = {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, side, side]])}
        load = Load(engine, scale, MediaPart(inputs, scale.image_side**2))
        for _ in range(scale.texts):
            load.submit_text()
        found: dict[str, Any] = {"encoder": encoder, "image_tokens": scale.image_side**2}
        for name, with_images in (("warm", True), ("alone", False), ("beside images", True)):
            load.gaps.clear()
            load.last.clear()
            images, until = len(load.finished), time.perf_counter() + scale.seconds / (3 if name == "warm" else 1)
            while time.perf_counter() < until:
                if with_images and load.media - len(load.finished) < 2:
                    load.submit_media()
                load.step()
            while load.media > len(load.finished):
                load.step()
            if name != "warm":
                found[name] = percentiles(load.gaps) | {"images": len(load.finished) - images}
        return found


def measure(name: str, tiny: bool, requests: int) -> dict[str, Any]:
    """One of `CASES`."""
    seen, heard = TINY if tiny else H200, HEARS[tiny]
    match name:
        case "memory with a lease" | "memory without one":
            return memory(seen, name == "memory with a lease", requests)
        case "audio with a lease" | "audio without one":
            return memory(heard, name == "audio with a lease", requests)
        case _:
            return latency(seen, name.removeprefix("latency "))


# -- all of them ---------------------------------------------------------------------------------------------------


def ballast(free_gib: float) -> Any:
    """Memory of the GPU that leaves so much to others."""
    import torch

    torch.cuda.init()
    torch.zeros(1, device="cuda")
    free, _ = torch.cuda.mem_get_info()
    return torch.empty(max(0, free - int(free_gib * GIB)), dtype=torch.uint8, device="cuda")


def run_case(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, "--case", name, "--requests", str(arguments.requests)]
    command += ["--tiny"] if arguments.tiny else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=900, check=False)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return {"failed": done.returncode, "said": lines[-3:]}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--free", type=float, default=24.0, help="GiB that the ballast leaves")
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--tiny", action="store_true", help="on the CPU, with brim-tiny-vl: to try this script")
    parser.add_argument("--only", choices=("memory", "audio", "latency"), help="one question, in less time")
    parser.add_argument("--case", choices=CASES, help="one case in this process, as JSON")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="unknown")
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(arguments.case, arguments.tiny, arguments.requests)), flush=True)
        return
    held = None if arguments.tiny else ballast(arguments.free)
    report: dict[str, Any] = {**stamp(arguments.commit), "free_gib": arguments.free, "cases": {}}
    for name in CASES:
        if name.startswith(arguments.only or ""):
            report["cases"][name] = run_case(name, arguments)
            print(name, json.dumps(report["cases"][name], indent=2), flush=True)
            if arguments.out is not None:  # what was seen stays, also where time runs out
                arguments.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    del held


if __name__ == "__main__":
    main()
