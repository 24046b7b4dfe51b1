"""The size and shape of the house, as figures: `python scripts/house.py [--json] [--no-request]`.

Lines and files of the package, folders by files, class names that are used more than once, the largest classes by
methods, and the files that one chat request passes through, found by a server that answers one.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from urllib.error import URLError
from urllib.request import Request, urlopen

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "brim"
SHOWN = 15


@dataclass(frozen=True, slots=True)
class House:
    files: int
    lines: int
    classes: int
    shared_names: dict[str, int]  # class names used more than once
    largest_classes: dict[str, int]  # by methods
    folders: dict[str, int]  # by files, the largest first


def modules() -> Iterator[tuple[Path, ast.Module, int]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        yield path, ast.parse(text), text.count("\n")


def measure() -> House:
    files = lines = 0
    names: Counter[str] = Counter()
    methods: dict[str, int] = {}
    folders: defaultdict[str, int] = defaultdict(int)
    for path, tree, length in modules():
        files, lines = files + 1, lines + length
        folders[str(path.parent.relative_to(PACKAGE.parent))] += 1
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                names[node.name] += 1
                own = sum(isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) for one in node.body)
                methods[f"{path.relative_to(PACKAGE)}:{node.name}"] = own
    return House(
        files,
        lines,
        sum(names.values()),
        {name: count for name, count in names.most_common() if count > 1},
        dict(sorted(methods.items(), key=lambda one: -one[1])[:SHOWN]),
        dict(sorted(folders.items(), key=lambda one: -one[1])[:SHOWN]),
    )


class Recorder:
    """Which of the package's files have functions that ran."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.on = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if self.on and event == "call":
            name = frame.f_code.co_filename
            if name.startswith(str(PACKAGE)):
                self.files.add(str(Path(name).relative_to(PACKAGE)))


def one_request() -> list[str]:
    """Files with functions that run for one chat request, from the body to the last event, all in this process."""
    from brim.engine.engine import Engine
    from brim.engine.settings import EngineSettings
    from brim.serve.prepare.worker import Tokenising
    from brim.serve.server import Loaded, Server, address, listen
    from brim.serve.settings import ServeSettings

    recorder = Recorder()
    threading.setprofile(recorder)
    engine = Engine("brim-tiny", settings=EngineSettings(max_batch=2, max_length=256), kv_tokens=512, device="cpu")

    class Start:
        def load(self, told: object) -> Loaded:
            return Loaded(engine, None)

        def fit(self, loaded: Loaded, told: object) -> None:
            return None

    listening = listen("127.0.0.1", 0)
    tokenising = partial(Tokenising, new_pool=partial(ThreadPoolExecutor, 1))
    server = Server(ServeSettings("tiny", port=0), Start(), tokenising=tokenising, write_log=lambda line: None)
    thread = threading.Thread(target=lambda: asyncio.run(server.run(listening, signals=False)))
    thread.start()
    url = address(listening)
    body = {"messages": [{"role": "user", "content": "What is 3 plus 4?"}], "max_tokens": 8, "stream": True}
    post = Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    while not _ready(url):
        time.sleep(0.1)
    urlopen(post).read()  # what is done once is done
    recorder.on = True
    urlopen(post).read()
    recorder.on = False
    server.stop()
    thread.join(60)
    return sorted(recorder.files)


def _ready(url: str) -> bool:
    try:
        return bool(urlopen(f"{url}/health").status == 200)
    except URLError:
        return False


def show(house: House, request: list[str] | None) -> None:
    print(f"{house.lines:,} lines in {house.files} files, {house.classes} classes")
    repeated = sum(house.shared_names.values())
    print(f"{repeated} classes share {len(house.shared_names)} names: " + _listed(house.shared_names))
    print("largest classes by methods: " + _listed(house.largest_classes))
    print("folders by files: " + _listed(house.folders))
    if request is not None:
        print(f"one chat request runs functions of {len(request)} files")


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in list(counts.items())[:SHOWN])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--no-request", action="store_true", help="read the sources only; needs no torch")
    options = parser.parse_args()
    house = measure()
    request = None if options.no_request else one_request()
    if options.json:
        print(json.dumps({**asdict(house), "request_files": request}, indent=1))
    else:
        show(house, request)


if __name__ == "__main__":
    main()
