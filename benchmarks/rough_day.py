"""A rough day of `brim serve` with a model that sees, through its own command: what does each blow cost the others?

    python benchmarks/rough_day.py --free 40 --out benchmarks/results/rough_day_40gib_h200.json --commit HASH
    python benchmarks/rough_day.py --tiny --seconds 5 --kills 3 --replay 20      # on the CPU, to try this script

Random weights in the dimensions of a model of the catalogue, with the tokenizer of the model in the package. A ballast
leaves `--free` GiB of the GPU. Eight clients ask for text all the while:

    start      seconds from the command to a ready server
    alone      text, nothing beside it
    images     `--images` of the largest legal images, four at a time
    kills      the encoder is killed `--kills` times with an image in flight; seconds until images are answered again
    thief      another process takes all free memory for 20 s, and all that becomes free meanwhile (on a GPU only)
    replay     `--replay` seconds of a production-like load: bursts, long prompts, images, clients that hang up

Of text: time to the first token as clients see it, and `prepare_ms` of the request log.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
from dummy_models import read_config
from stamp import stamp
from thief import Thief

GIB = 1 << 30
TEXT_CLIENTS = 8
PHASES = ("alone", "images", "kills", "thief", "replay")
BARS = {
    "ready_seconds": 40.0,
    "text_ttft_p99_ms": 500.0,
    "text_prepare_p99_of_alone": 1.5,
    "encoder_back_seconds": 15.0,
    "images_after_thief_seconds": 60.0,
}
_START_SECONDS = 300.0
_THIEF_SECONDS = 20.0
_SPECIAL_TOKENS = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")


# -- the model and the server --------------------------------------------------------------------------------------


def make_model(name: str, folder: Path) -> int:
    """A folder with the dimensions of `name` and the tokenizer of `brim-tiny-vl`; the side of its largest image."""
    import brim

    tiny = Path(brim.__file__).parent / "models" / "brim-tiny-vl"
    shutil.copytree(tiny, folder)
    processor = json.loads((folder / "preprocessor_config.json").read_text(encoding="utf-8"))
    if name != "brim-tiny-vl":
        config, small = read_config(name), json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config |= {token: small[token] for token in (*_SPECIAL_TOKENS, "pad_token_id", "eos_token_id")}
        config["architectures"] = small["architectures"]
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        processor["size"]["longest_edge"] = 1 << 24  # as the family's own
        (folder / "preprocessor_config.json").write_text(json.dumps(processor), encoding="utf-8")
    return int(processor["size"]["longest_edge"] ** 0.5)


class Server:
    """`brim serve` in a process of its own, and its request log."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.url = f"http://127.0.0.1:{options.port}"
        self.log: list[dict[str, Any]] = []
        command = [sys.executable, "-m", "brim", "serve", str(folder), "--load-format", "dummy", "--no-store"]
        command += ["--port", str(options.port), "--encoder", "process", "--quiet", *options.serve]
        self._began = time.perf_counter()
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        threading.Thread(target=self._read_log, daemon=True).start()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.startswith("{"):
                self.log.append(json.loads(line))
            else:
                sys.stderr.write(line)

    def wait(self) -> float:
        """Seconds from the command to a ready server."""
        while time.perf_counter() - self._began < _START_SECONDS and self.process.poll() is None:
            try:
                if httpx.get(f"{self.url}/health").status_code == 200:
                    return time.perf_counter() - self._began
            except httpx.TransportError:
                pass  # it does not listen yet
            time.sleep(0.1)
        sys.exit("the server did not start")

    def encoder_pid(self) -> int | None:
        """The process that encodes, as its lease names it."""
        leases = httpx.get(f"{self.url}/v1/memory", timeout=30).json()["leases"] or []
        return next((one["pid"] for one in leases if "encoder" in one["role"]), None)

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(90)
        except subprocess.TimeoutExpired:
            self.process.kill()


# -- clients -------------------------------------------------------------------------------------------------------


def jpeg(side: int, number: int) -> str:
    """An image of its own that compresses well, as a data URL."""
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (side, side), (number * 37 % 256, number * 101 % 256, number * 11 % 256))
    draw, draws = ImageDraw.Draw(picture), random.Random(number)
    for _ in range(40):
        x, y, size = draws.randrange(side), draws.randrange(side), draws.randrange(8, max(9, side // 4))
        draw.ellipse((x, y, x + size, y + size), fill=tuple(draws.randrange(256) for _ in range(3)))
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode()


class Images:
    """The client that sends images, each one another."""

    def __init__(self, server: Server, side: int) -> None:
        self._client = httpx.AsyncClient(base_url=server.url, timeout=180)
        self._side = side
        self._sent = 0

    async def ask(self) -> dict[str, Any]:
        self._sent += 1
        url = await asyncio.to_thread(jpeg, self._side, self._sent)
        parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is this?"}]
        body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 8, "ignore_eos": True}
        began = time.perf_counter()
        answer = await self._client.post("/v1/chat/completions", json=body)
        found = {"status": answer.status_code, "seconds": round(time.perf_counter() - began, 3)}
        if answer.status_code == 503:
            found["retry_after"] = answer.headers.get("retry-after")
        return found if answer.status_code == 200 else {**found, "said": answer.text[:300]}

    async def until_answered(self, most_seconds: float) -> float | None:
        """Seconds until one is answered; None where that took too long."""
        began = time.perf_counter()
        while time.perf_counter() - began < most_seconds:
            if (await self.ask())["status"] == 200:
                return round(time.perf_counter() - began, 2)
            await asyncio.sleep(0.5)
        return None


async def text_beside(server: Server, work: Coroutine[Any, Any, Any], seed: int) -> tuple[dict[str, Any], Any]:
    """Text clients while `work` is done: what they saw, and what came of the work."""
    from brim.bench.lengths import Between
    from brim.bench.loops import Mix
    from brim.bench.measure import Closed, LoadMeasurement, LoadSettings
    from brim.bench.report import latency
    from brim.client.address import parse_url

    load = LoadSettings(Closed(TEXT_CLIENTS), Mix(Between(32, 256), Between(16, 64), seed), requests=1_000_000)
    measurement = LoadMeasurement(parse_url(server.url), None, None, load)
    before = len(server.log)
    task = asyncio.create_task(measurement.run())
    try:
        result = await work
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    report = measurement.report()
    entries = [one for one in server.log[before:] if not one["images"] and one.get("prepare_ms") is not None]
    prepared = latency(one["prepare_ms"] / 1000 for one in entries)
    return {
        "answered": len(report.answered),
        "errors": report.errors,
        "ttft": None if report.ttft is None else report.ttft.to_json(),
        "inter_token": None if report.inter_token is None else report.inter_token.to_json(),
        "prepare": None if prepared is None else prepared.to_json(),
    }, result


# -- the phases ----------------------------------------------------------------------------------------------------


class Day:
    """What happens, one after the other, to one server."""

    def __init__(self, server: Server, images: Images, options: argparse.Namespace) -> None:
        self._server = server
        self._images = images
        self._options = options

    async def alone(self) -> dict[str, Any]:
        text, _ = await text_beside(self._server, asyncio.sleep(self._options.seconds), 1)
        return {"text": text}

    async def images(self) -> dict[str, Any]:
        turns = asyncio.Semaphore(4)

        async def one() -> dict[str, Any]:
            async with turns:
                return await self._images.ask()

        async def all_of_them() -> list[dict[str, Any]]:
            return await asyncio.gather(*(one() for _ in range(self._options.images)))

        text, found = await text_beside(self._server, all_of_them(), 2)
        return {"text": text, **summary(found)}

    async def kills(self) -> dict[str, Any]:
        async def work() -> list[dict[str, Any]]:
            rows = []
            for _ in range(self._options.kills):
                in_flight = asyncio.create_task(self._images.ask())
                await asyncio.sleep(0.2)
                pid = await asyncio.to_thread(self._server.encoder_pid)
                if pid is not None:
                    os.kill(pid, signal.SIGKILL)
                back = await self._images.until_answered(120)
                rows.append({"killed": pid, "in_flight": await in_flight, "back_seconds": back})
            return rows

        text, rows = await text_beside(self._server, work(), 3)
        backs = [row["back_seconds"] for row in rows]
        return {
            "text": text,
            "kills": sum(row["killed"] is not None for row in rows),
            "came_back": sum(back is not None for back in backs),
            "longest_back_seconds": None if None in backs else max(backs, default=None),
            "in_flight_answered": sum(row["in_flight"]["status"] == 200 for row in rows),
            "rows": rows,
        }

    async def thief(self) -> dict[str, Any] | None:
        if self._options.tiny:
            return None  # a budget on the CPU has no memory that a stranger could take

        async def work() -> dict[str, Any]:
            thief = await asyncio.to_thread(Thief, 0, keeps=True)
            thief.begin()
            found, until = [], time.perf_counter() + _THIEF_SECONDS
            while time.perf_counter() < until:
                found.append(await self._images.ask())
                await asyncio.sleep(0.5)
            taken = await asyncio.to_thread(thief.end)
            return {**summary(found), "taken": taken, "served_again": await self._images.until_answered(120)}

        text, found = await text_beside(self._server, work(), 4)
        return {"text": text, **found}

    async def replay(self) -> dict[str, Any]:
        from brim.bench.lengths import Between
        from brim.bench.loops import Mix
        from brim.bench.measure import LoadMeasurement, LoadSettings, Replay
        from brim.bench.production import production_trace
        from brim.client.address import parse_url

        trace = production_trace(self._options.replay, self._options.rate, self._options.context)
        load = LoadSettings(Replay(trace), Mix(Between(1, 1), Between(1, 1)))
        report = await LoadMeasurement(parse_url(self._server.url), None, None, load).run()
        endings = Counter(str(one.ending) for one in report.outcomes)
        return {
            "requests": len(trace.asks),
            "endings": endings,
            "lost": len(trace.asks) - len(report.outcomes),
            "errors": report.errors,
            "ttft": None if report.ttft is None else report.ttft.to_json(),
        }


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "images": len(found),
        "statuses": Counter(str(one["status"]) for one in found),
        "slowest_seconds": max((one["seconds"] for one in found), default=None),
        "refused": [one for one in found if one["status"] != 200][:5],
    }


def ballast(free_gib: float) -> Callable[[], None]:
    """Takes memory of the GPU from its driver until so much is left; gives it back when called."""
    from driver_memory import Driver

    driver = Driver()
    held, _ = driver.take_all(but=int(free_gib * GIB))
    return lambda: driver.release(held)


async def run(server: Server, side: int, options: argparse.Namespace, report: dict[str, Any]) -> None:
    day = Day(server, Images(server, side), options)
    for name in PHASES:
        if options.only and name not in options.only:
            continue
        report["phases"][name] = await getattr(day, name)()
        print(name, json.dumps(report["phases"][name], indent=1), flush=True)
        report["health"] = httpx.get(f"{server.url}/health", timeout=30).json()
        if options.out:  # what was seen stays, also where time runs out
            options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen3-vl-8b")
    parser.add_argument("--free", type=float, default=40.0, help="GiB that the ballast leaves")
    parser.add_argument("--tiny", action="store_true", help="on the CPU, with brim-tiny-vl")
    parser.add_argument("--seconds", type=float, default=20.0, help="of text alone")
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--replay", type=float, default=600.0, help="seconds")
    parser.add_argument("--rate", type=float, default=2.0, help="requests a second of the replay")
    parser.add_argument("--only", nargs="*", choices=PHASES)
    parser.add_argument("--port", type=int, default=8359)
    parser.add_argument("--serve", nargs=argparse.REMAINDER, default=[], help="further options of brim serve, last")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="unknown")
    options = parser.parse_args()
    options.context = 1024 if options.tiny else 20_480
    small = ("--memory", "512MiB")
    options.serve = [*(small if options.tiny else ("--max-len", str(options.context))), *options.serve]
    return options


def main() -> None:
    options = parse()
    model = "brim-tiny-vl" if options.tiny else options.model
    report: dict[str, Any] = {**stamp(options.commit), "model": model, "bars": BARS, "phases": {}}
    report |= {"serve_options": options.serve} | ({} if options.tiny else {"free_gib": options.free})
    with ExitStack() as undo:
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory())) / "model"
        side = make_model(model, folder)
        if not options.tiny:
            undo.callback(ballast(options.free))
        server = Server(folder, options)
        undo.callback(server.end)
        report["ready_seconds"] = server.wait()
        print(f"ready after {report['ready_seconds']:.1f} s (bar {BARS['ready_seconds']:.0f})", flush=True)
        asyncio.run(run(server, side, options, report))


if __name__ == "__main__":
    main()
