"""The server in front of an engine on a GPU, against the same engine offline: throughput, and times that clients see.

One process is the server: random weights in the dimensions of a real model, compiled and fitted as `brim serve` does.
Before it serves, it runs the workloads offline, so that both figures are of one engine in one run. This process is its
clients: all at once, streaming over HTTP, prompts of token ids. There is no tokenizer for random weights: one with as
many made-up words as the model has tokens makes text of them, with the code and at the cost of a real one.

    python benchmarks/serve.py [--model llama-3.1-8b] [--no-compile] [--rounds 3] [--out FILE] [--commit HASH]
    python benchmarks/serve.py --dry-run            # on the CPU, with the model in the package
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import string
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from stamp import stamp
from throughput import WORKLOADS, Workload, prompts_of

BAR = 0.9  # of the offline throughput
DRY_WORKLOADS = (Workload(8, 32, 16), Workload(24, 32, 24))
_START_SECONDS = 400


# -- the server's process ------------------------------------------------------------------------------------------


def made_up_tokenizer(vocab: int, folder: Path) -> Any:
    """A tokenizer with a word for each token, byte-level like those of Llama 3."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    letters, words = string.ascii_lowercase, {}
    for number in range(vocab):
        word, left = "", number
        while left or not word:
            word, left = word + letters[left % 26], left // 26
        words[f"Ġ{word}{number % 10}"] = number  # Ġ is how byte-level tokenizers write a space
    made = Tokenizer(models.BPE(words, []))
    made.decoder = decoders.ByteLevel()
    found = PreTrainedTokenizerFast(tokenizer_object=made, clean_up_tokenization_spaces=False, name_or_path=str(folder))
    found.save_pretrained(folder)  # for the process that makes tokens
    return found


@dataclass(frozen=True, slots=True)
class Starter:
    """Loads and fits, and measures the engine alone before anybody is served."""

    options: argparse.Namespace
    folder: Path

    def load(self, told: Any) -> Any:
        from brim.engine.engine import Engine
        from brim.engine.settings import EngineSettings
        from brim.model.source import load_model
        from brim.probes.cpu import CpuProbe
        from brim.serve.service import Loaded

        if self.options.dry_run:
            settings = EngineSettings(max_batch=24, max_batch_tokens=256, max_length=256)
            probe = CpuProbe(1 << 30)
            engine = Engine("brim-tiny", device="cpu", settings=settings, kv_tokens=0, probe=probe, progress=told)
            return Loaded(engine, probe)
        from brim.probes.cuda import CudaProbe

        settings = EngineSettings(max_batch=512, max_batch_tokens=8192, max_length=8192, compile=self.options.compile)
        engine = Engine(
            self.options.model,
            load_format="dummy",
            dtype="bf16",
            device="cuda",
            settings=settings,
            kv_tokens=0,
            progress=told,
            tokenizer=made_up_tokenizer(load_model(self.options.model).vocab, self.folder / "tokenizer"),
        )
        return Loaded(engine, CudaProbe(engine.device.index or 0))

    def fit(self, loaded: Any, told: Any) -> Any:
        from brim.serving import fit_engine

        report = fit_engine(loaded.engine, probe=loaded.probe, progress=told)
        found = {
            "kv_tokens": report.kv_tokens,
            "fit_seconds": report.seconds.total,
            "vocab": loaded.engine.loaded.vocab,
            "workloads": offline(loaded.engine, self.options),
        }
        (self.folder / "offline.json").write_text(json.dumps(found), encoding="utf-8")
        return report


def offline(engine: Any, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The workloads without a server."""
    from brim.engine.requests.params import SamplingParams

    def run(workload: Workload, seed: int) -> float:
        prompts = prompts_of(workload, engine.loaded.vocab, seed)
        params = SamplingParams(max_tokens=workload.output, temperature=0, ignore_eos=True)
        began = time.perf_counter()
        completions = engine.generate(prompts, params)
        seconds = time.perf_counter() - began
        assert all(len(one.tokens) == workload.output for one in completions)
        return workload.requests * workload.output / seconds

    found = []
    for workload in workloads(options):
        run(Workload(min(64, workload.requests), workload.prompt, 16), 7)  # compiles the shapes of prompts
        rounds = [run(workload, 100 + seed) for seed in range(options.rounds)]
        found.append({"workload": workload.name, "tokens_per_second": rounds})
        print(f"offline {workload.name}: " + ", ".join(f"{rate:,.0f}" for rate in rounds), file=sys.stderr, flush=True)
    return found


def workloads(options: argparse.Namespace) -> tuple[Workload, ...]:
    return DRY_WORKLOADS if options.dry_run else WORKLOADS


def serve(options: argparse.Namespace) -> int:
    from brim.serve.server import Server, listen
    from brim.serve.settings import ServeSettings

    if options.switch_interval:
        sys.setswitchinterval(options.switch_interval)
    settings = ServeSettings("served", port=options.port, max_queue=1024)
    server = Server(settings, Starter(options, options.folder), say=lambda line: print(line, file=sys.stderr))
    return asyncio.run(server.run(listen(settings.host, settings.port)))


# -- the clients' process ------------------------------------------------------------------------------------------


def started(options: argparse.Namespace, folder: Path) -> subprocess.Popen[bytes]:
    """The server's process, when it is ready."""
    arguments = ["--serve", "--folder", str(folder), "--port", str(options.port), "--model", options.model]
    arguments += ["--rounds", str(options.rounds), "--switch-interval", str(options.switch_interval)]
    arguments += [] if options.compile else ["--no-compile"]
    arguments += ["--dry-run"] if options.dry_run else []
    process = subprocess.Popen([sys.executable, __file__, *arguments])
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            urlopen(f"http://127.0.0.1:{options.port}/health").close()
            return process
        except (URLError, OSError):
            time.sleep(0.2)
    process.kill()
    sys.exit("the server did not start")


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """Of the server's process, all threads."""
    fields = Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def served(workload: Workload, vocab: int, options: argparse.Namespace, seed: int) -> Any:
    """All clients of a workload at once."""
    from brim.bench.lengths import Between
    from brim.bench.loops import Mix
    from brim.bench.measure import Closed, LoadMeasurement, LoadSettings
    from brim.client.address import parse_url

    mix = Mix(Between(workload.prompt, workload.prompt), Between(workload.output, workload.output), seed)
    load = LoadSettings(Closed(workload.requests), mix, requests=workload.requests, vocab=vocab)
    url = parse_url(f"http://127.0.0.1:{options.port}")
    report = asyncio.run(LoadMeasurement(url, None, "served", load).run())
    assert len(report.answered) == workload.requests, report.errors
    assert report.answer_tokens == workload.requests * workload.output
    return report


def measured(options: argparse.Namespace) -> dict[str, Any]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        process = started(options, Path(folder))
        try:
            alone = json.loads((Path(folder) / "offline.json").read_text(encoding="utf-8"))
            for workload, offline_row in zip(workloads(options), alone["workloads"], strict=True):
                served(Workload(8, workload.prompt, 8), alone["vocab"], options, 99)
                rows.append(row(workload, alone["vocab"], offline_row, process, options))
                print(json.dumps(rows[-1]), flush=True)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(120)
    return {"kv_tokens": alone["kv_tokens"], "fit_seconds": alone["fit_seconds"], "workloads": rows}


def row(
    workload: Workload,
    vocab: int,
    offline_row: dict[str, Any],
    process: subprocess.Popen[bytes],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """A workload served, beside its offline figures; the best rounds are compared."""
    reports, cpu = [], []
    for seed in range(options.rounds):
        before = cpu_seconds(process)
        reports.append(served(workload, vocab, options, seed))
        cpu.append(cpu_seconds(process) - before)
    best = max(reports, key=lambda report: report.tokens_per_second)
    alone = max(offline_row["tokens_per_second"])
    return {
        "workload": workload.name,
        "offline_tokens_per_second": alone,
        "offline_rounds": offline_row["tokens_per_second"],
        "served_tokens_per_second": best.tokens_per_second,
        "served_rounds": [report.tokens_per_second for report in reports],
        "share": best.tokens_per_second / alone,
        "bar": BAR,
        "ttft": best.ttft.to_json(),
        "inter_token": best.inter_token.to_json(),
        "end_to_end": best.end_to_end.to_json(),
        "server_cpu_seconds": cpu,
        "client_cpu_seconds": [report.client_cpu_seconds for report in reports],
        "seconds": [report.seconds for report in reports],
    }


def show(found: dict[str, Any]) -> None:
    for one in found["workloads"]:
        print(
            f"{one['workload']:<20} served {one['served_tokens_per_second']:,.0f} of "
            f"{one['offline_tokens_per_second']:,.0f} tokens/s offline: {one['share']:.1%} (bar {BAR:.0%})"
        )
        for name in ("ttft", "inter_token"):
            print(f"  {name}: p50 {one[name]['p50_ms']:,.1f} ms, p99 {one[name]['p99_ms']:,.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--port", type=int, default=8353)
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, with the model in the package")
    parser.add_argument("--switch-interval", type=float, default=0.0, help="of the server's threads, in seconds")
    parser.add_argument("--serve", action="store_true", help="be the server")
    parser.add_argument("--folder", type=Path, help="where the server leaves its offline figures")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="unknown")
    options = parser.parse_args()
    if options.serve:
        sys.exit(serve(options))
    found = {**stamp(options.commit), "model": "brim-tiny" if options.dry_run else options.model, **measured(options)}
    show(found)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
