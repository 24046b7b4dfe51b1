"""How long `brim serve` takes until it answers, with the model in the package: a process from its start to `/health`.

Wall time and CPU time of the process are both recorded: on a machine that others use, the second tells more.

    python benchmarks/serve_start.py [--rounds 3] [--out FILE] [--commit HASH]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from stamp import stamp

BAR_SECONDS = 15.0
_MOST_SECONDS = 180


def start(port: int) -> dict[str, Any]:
    """One start: seconds until it is listening, and until it is ready."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "brim.cli.main", "serve", "--port", str(port), "--quiet", "--no-store"]
    process = subprocess.Popen(command)
    found: dict[str, Any] = {"phases": {}}
    try:
        while time.perf_counter() - began < _MOST_SECONDS and process.poll() is None:
            status, health = look(port)
            now = time.perf_counter() - began
            if health:
                found.setdefault("listening_seconds", now)
                found["phases"].setdefault(health.get("phase", health["status"]).partition(" ")[0], round(now, 2))
            if status == 200:
                return {"ready_seconds": now, "cpu_seconds": cpu_seconds(process.pid), **found}
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    sys.exit("the server did not start")


def look(port: int) -> tuple[int, dict[str, Any]]:
    try:
        with urlopen(f"http://127.0.0.1:{port}/health") as answer:
            return answer.status, json.load(answer)
    except URLError as error:
        return (503, json.load(error)) if hasattr(error, "read") else (0, {})
    except OSError:
        return 0, {}


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--port", type=int, default=8357)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="unknown")
    options = parser.parse_args()
    rounds = []
    for number in range(options.rounds):
        rounds.append(start(options.port + number))
        print(json.dumps(rounds[-1]), flush=True)
    best = min(one["ready_seconds"] for one in rounds)
    result = {**stamp(options.commit), "bar_seconds": BAR_SECONDS, "best_seconds": best, "starts": rounds}
    result["load_average"] = os.getloadavg()
    print(f"ready after {best:.1f} s at best, of at most {BAR_SECONDS:.0f}")
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
