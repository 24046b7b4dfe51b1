"""Makes the incidents of `tests/data/incidents` that need no GPU: Brim's engine under budgets on the CPU.

    python scripts/incidents.py [NAME …]

Every refusal in them is real: a load is run once without a limit to find its peak, the budget is set just above, and
then something happens that takes more. Recordings are made by the recorder of `brim serve`, with short rings, and
compressed. What is played: a neighbour's part is taken from the budget and noted as a process of its own, fragments are
declared to the budget, and the event of `made-host-2` is written as Kubernetes writes it.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from brim.engine.engine import Engine
from brim.engine.requests.params import SamplingParams
from brim.engine.settings import EngineSettings
from brim.probes.cpu import CpuProbe
from brim.record.entries import NoteKind
from brim.record.holders import DeviceHolder, DeviceUse, HolderNotes
from brim.record.layout import FileHeader
from brim.record.writer import RecordingWriter
from brim.serve.lifecycle import SizedEngine
from brim.serve.recording import ServeRecorder, start_entry
from brim.units import MIB

FOLDER = Path(__file__).parents[1] / "tests" / "data" / "incidents"
STEPS, NOTES = 512, 64
GREEDY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)


class Room:
    """An engine under a budget that can be changed, and its recording."""

    def __init__(self, file: Path, model: str = "brim-tiny", kv_tokens: int = 4096, **settings: Any) -> None:
        chosen = EngineSettings(**{"max_batch": 8, "max_batch_tokens": 512, **settings})
        self.probe = CpuProbe(1 << 34)
        self.engine = Engine(model, kv_tokens=0, device="cpu", settings=chosen, probe=self.probe)
        self.engine.build(kv_tokens)
        self.writer = RecordingWriter(file, FileHeader(os.getpid(), time.time(), STEPS, NOTES))
        self.recorder = ServeRecorder(self.writer, self.probe)
        self.kept: list[torch.Tensor] = []

    def record(self) -> None:
        self.writer.start(start_entry(SizedEngine(self.engine, None, None, self.probe), "brim-tiny"))  # type: ignore[arg-type]
        self.engine.observe(self.recorder)

    def submit(self, tokens: int, params: SamplingParams = GREEDY, **media: Any) -> None:
        self.engine.submit([5 + number % 90 for number in range(tokens)], params, **media)

    def run(self, before_step: Callable[[], None] = lambda: None, steps: int = 100_000) -> None:
        for _ in range(steps):
            if self.engine.idle:
                return
            before_step()
            self.engine.step()

    def load(self, prompts: int = 6, tokens: int = 24) -> None:
        for _ in range(prompts):
            self.submit(tokens)
        self.run()

    def limit(self, spare_bytes: int) -> None:
        """From here on, so much above the peak so far."""
        self.probe.budget_bytes = self.probe.reading().peak_reserved_bytes + spare_bytes

    def refused(self) -> bool:
        return self.engine.health.rescues > 0


@contextmanager
def room(name: str, **settings: Any) -> Iterator[Room]:
    with TemporaryDirectory() as folder:
        file = Path(folder) / name
        made = Room(file, **settings)
        yield made
        made.engine.observe(None)
        data = file.read_bytes()
        (FOLDER / f"{name}.brimrec.gz").write_bytes(gzip.compress(data, 9, mtime=0))


def long_prompts(name: str, tokens: int) -> None:
    with room(name) as made:
        made.load()
        made.limit(MIB // 8)
        made.record()
        made.load(10)
        made.submit(tokens)
        made.run()
        assert made.refused()


def scored(name: str, tokens: int) -> None:
    with room(name) as made:
        made.load(3, tokens)
        made.limit(MIB // 16)
        made.record()
        made.load(6, tokens)
        made.submit(tokens, SamplingParams(max_tokens=4, temperature=0.0, prompt_logprobs=5))
        made.run()
        assert made.refused()


def neighbour(name: str, taken_bytes: int, after: int) -> None:
    """Another process takes a part of the budget while it serves."""
    with room(name) as made:
        made.load()
        made.limit(48 * MIB)
        made.record()
        total, notes, count = made.probe.budget_bytes, HolderNotes(), 0

        def look() -> None:
            nonlocal count
            count += 1
            others = () if count < after else (DeviceHolder(4242, taken_bytes, name="trainer"),)
            if count == after:
                made.probe.budget_bytes = made.probe.reading().reserved_bytes + 1024
            own = DeviceHolder(os.getpid(), made.probe.reading().reserved_bytes, name="llm")
            free = total - own.held_bytes - sum(one.held_bytes for one in others)
            for note in notes.notes(time.time(), DeviceUse(total, max(0, free), (own, *others), os.getpid())):
                made.writer.note(note)

        for _ in range(32):
            made.submit(24)
        made.run(look, 60)
        assert made.refused()


def image(name: str, tokens: int) -> None:
    """Its tower runs for the first time, on the largest image that the model takes or a smaller one."""
    with room(name, model="brim-tiny-vl") as made:
        made.load(2, 8)
        made.limit(1024)
        made.record()
        for _ in range(4):
            made.load(2, 8)
        config = made.engine.loaded.full_config
        vision = config.vision_config
        width = vision.patch_size**2 * vision.temporal_patch_size * vision.in_channels
        side = round((tokens * 4) ** 0.5)
        inputs = {
            "pixel_values": torch.randn(tokens * 4, width, generator=torch.Generator().manual_seed(1)),
            "image_grid_thw": torch.tensor([[1, side, side]]),
        }
        prompt = [10, config.vision_start_token_id, *[config.image_token_id] * tokens, config.vision_end_token_id, 11]
        made.engine.submit(prompt, GREEDY, images=inputs)
        made.run()
        assert made.refused()


def drafts(name: str, tokens: int) -> None:
    """Tokens are drafted only once a text repeats itself: the load before had none."""
    with room(name, speculate="lookup", speculate_max_weight=1.0, draft_tokens=tokens) as made:
        longer = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)
        plain = [[5 + (seed * 37 + number * number * 7) % 90 for number in range(24)] for seed in range(8)]

        def one_after_the_other(prompts: list[list[int]], params: SamplingParams) -> None:
            for prompt in prompts:
                made.engine.submit(prompt, params)
                made.run(steps=2)
            made.run()

        one_after_the_other(plain, GREEDY)
        made.limit(0)
        made.record()
        one_after_the_other(plain, GREEDY)
        one_after_the_other([[7, 8, 9, 10] * 6] * 8, longer)
        assert made.refused()


def fragments(name: str, unused_bytes: int) -> None:
    with room(name) as made:
        made.load()
        made.limit(24 * MIB)
        made.record()
        made.load(8)
        made.probe.hold_unused(unused_bytes)
        time.sleep(0.15)  # the recorder's next reading sees them
        for _ in range(6):
            made.submit(24)
        made.run(steps=60)
        assert made.refused()


def preempting(name: str, kv_tokens: int, requests: int) -> None:
    with room(name, kv_tokens=kv_tokens, admission_prior=1, admission_watermark=0.0, max_length=kv_tokens) as made:
        made.record()
        for _ in range(requests):
            made.submit(32, SamplingParams(max_tokens=kv_tokens // 3, temperature=0.0, ignore_eos=True))
        made.run()
        assert made.engine.figures.preemptions > 0


def leak(name: str, each_bytes: int) -> None:
    with room(name) as made:
        made.load()
        made.limit(40 * MIB)
        made.record()

        def lose() -> None:
            free = made.probe.reading().free_bytes
            with made.probe:
                made.kept.append(torch.zeros(min(each_bytes, max(0, free - 1024)), dtype=torch.uint8))
            time.sleep(0.02)

        for _ in range(400):
            if made.refused():
                return
            if made.engine.idle:
                made.submit(24)
            lose()
            made.engine.step()
        assert made.refused()


def killed(name: str) -> None:
    """It ends in the middle of its work, and nothing in it says why."""
    with room(name) as made:
        made.load()
        made.limit(64 * MIB)
        made.record()
        for _ in range(6):
            made.submit(24)
        made.run(steps=20)
        assert not made.refused()
        made.writer.tell(NoteKind.STATE, "ready")


def command(name: str, *words: str) -> None:
    """The output of a command that ends by itself."""
    done = subprocess.run(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False
    )
    assert done.returncode
    (FOLDER / f"{name}.log").write_text(done.stdout.replace(str(Path.home()), "~"), encoding="utf-8")


def serve(name: str, *options: str) -> None:
    command(name, "-m", "brim", "serve", "brim-tiny", "--port", "0", "--record", "off", "--no-store", *options)


EVENT = """\
  Containers:
    vllm:
      State:          Waiting
        Reason:       CrashLoopBackOff
      Last State:     Terminated
        Reason:       OOMKilled
        Exit Code:    137
      Limits:
        memory:          32Gi
        nvidia.com/gpu:  1
  Events:
    Warning  BackOff  2m (x14 over 9m)  kubelet  Back-off restarting failed container vllm in pod llm-0
"""
MAKES: dict[str, Callable[[str], object]] = {
    "made-long-prompts-1": lambda name: long_prompts(name, 400),
    "made-long-prompts-2": lambda name: long_prompts(name, 256),
    "made-scored-1": lambda name: scored(name, 200),
    "made-scored-2": lambda name: scored(name, 128),
    "made-neighbour-1": lambda name: neighbour(name, 40 * MIB, 20),
    "made-neighbour-2": lambda name: neighbour(name, 44 * MIB, 12),
    "made-neighbour-3": lambda name: neighbour(name, 46 * MIB, 14),
    "made-image-1": lambda name: image(name, 64),
    "made-image-2": lambda name: image(name, 36),
    "made-drafts-1": lambda name: drafts(name, 7),
    "made-drafts-2": lambda name: drafts(name, 12),
    "made-fragments-1": lambda name: fragments(name, 25 * MIB),
    "made-fragments-2": lambda name: fragments(name, 26 * MIB),
    "made-preempting-1": lambda name: preempting(name, 512, 8),
    "made-preempting-2": lambda name: preempting(name, 768, 8),
    "made-leak-1": lambda name: leak(name, MIB // 2),
    "made-leak-2": lambda name: leak(name, MIB // 4),
    "made-leak-3": lambda name: leak(name, MIB),
    "made-host-1": lambda name: command(name, "-c", "import torch\ntorch.empty(1 << 50)"),
    "made-host-2": lambda name: (FOLDER / f"{name}.log").write_text(EVENT, encoding="utf-8"),
    "made-weights-1": lambda name: serve(name, "--memory", "8MiB"),
    "made-weights-2": lambda name: serve(name, "--memory", "6MiB", "--canary", "1MiB"),
    "made-killed-1": killed,
    "made-pool-1": lambda name: serve(name, "--memory", "400MiB", "--kv-tokens", "64"),
}


def main() -> None:
    for name in sys.argv[1:] or MAKES:
        MAKES[name](name)
        print(name)


if __name__ == "__main__":
    main()
