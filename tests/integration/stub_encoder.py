"""An encoder without a tower: a child process that starts at once, and does what files in a folder tell it.

`hold`: batches wait until it is gone. `die`: a batch ends the process. `cannot`: it does not start, for lack of memory.
The folder is the source's model. Features are the same for the same first byte of the inputs.
"""

from __future__ import annotations

import mmap
import os
import socket
import sys
import time
from array import array
from pathlib import Path

from brim.engine.encoders.wire import Message, Wire, WireClosed

WIDTH, LEVELS, ROWS, INPUT_BYTES = 384, 3, 64, 1 << 21
BUDGET = 64 * 4 * 1536


def facts() -> Message:
    return {
        "budgets": {"image_grid_thw pixel_values": BUDGET},
        "call_patches": ROWS * 4,
        "audio_frames": None,
        "rows": ROWS,
        "part_rows": ROWS,
        "width": WIDTH,
        "levels": LEVELS,
        "dtype": "float32",
        "input_bytes": INPUT_BYTES,
        "weight_bytes": 0,
        "predicted_bytes": None,
        "promised_bytes": 0,
        "held_bytes": 0,
        "peak_bytes": 0,
        "reserved_bytes": 0,
        "warnings": [],
    }


def main(connection: int, inputs: int, outputs: int) -> None:
    wire = Wire(socket.socket(fileno=connection))
    told = Path(wire.receive()["model"])
    if (told / "cannot").exists():
        wire.send({"op": "cannot", "why": "3.0 GiB are wanted and 1.0 GiB are left", "memory": True})
        return
    os.ftruncate(inputs, INPUT_BYTES)
    os.ftruncate(outputs, ROWS * WIDTH * 4)
    given, made = mmap.mmap(inputs, INPUT_BYTES), mmap.mmap(outputs, ROWS * WIDTH * 4)
    wire.send({"op": "ready", "facts": facts(), "handle": None})
    while True:
        message = wire.receive()
        while (told / "hold").exists():
            time.sleep(0.002)
        if (told / "die").exists():
            os._exit(9)
        shade = given[message["parts"][0][0]["start"]] / 256
        rows = array("f", [shade]) * (message["rows"] * WIDTH)
        made[: len(rows) * 4] = rows.tobytes()
        wire.send({"op": "done", "batch": message["batch"]})


if __name__ == "__main__":
    try:
        main(*map(int, sys.argv[1:]))
    except WireClosed:
        sys.exit(0)
