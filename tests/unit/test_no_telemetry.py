"""Nothing is sent anywhere that nobody has named: modules that can open a connection are listed here, with why."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "brim"
OPENING = {"aiohttp", "ftplib", "http.client", "httpx", "huggingface_hub", "requests", "smtplib", "socket"}
OPENING |= {"urllib.request", "urllib3", "websockets", "zmq"}
CALLS = {"open_connection", "create_connection"}  # of asyncio
TO_WHOM = {
    "model/hub.py": "the Hugging Face hub, or its mirror, where a model is named by its id there",
    "model/download.py": "the same, for weights",
    "model/gguf/remote.py": "the same, for headers of GGUF files",
    "client/client.py": "the server that `brim chat` and `brim bench` are given",
    "monitor/asking.py": "the server that `brim top` or `brim watch` is given",
    "monitor/listening.py": "none: it resolves the name of that server",
    "serve/prepare/remote/fetch.py": "https addresses in requests, with --allow-remote-media",
    "serve/block_events.py": "none: gateways subscribe, with --kv-events",
    "serve/server.py": "none: it listens",
    "serve/ranks.py": "none: a free port of this machine",
    "ray/ranks.py": "none: the same",
    "encoding.py": "none: the engine that has started this process, by a pair of sockets",
    "engine/encoders/process.py": "none: the same",
    "engine/encoders/wire.py": "none: the same",
}


def opened_by(tree: ast.AST) -> set[str]:
    """What a module imports, or calls, of those that open connections."""
    named: set[str] = set()
    for one in ast.walk(tree):
        if isinstance(one, ast.Import):
            named |= {alias.name for alias in one.names}
        elif isinstance(one, ast.ImportFrom) and one.module:
            named |= {one.module, *(f"{one.module}.{alias.name}" for alias in one.names)}
        elif isinstance(one, ast.Attribute) and one.attr in CALLS:
            named.add("socket")
        elif isinstance(one, ast.Call) and getattr(one.func, "id", "") == "import_module":
            named |= {word.value for word in one.args if isinstance(word, ast.Constant)}
    return {
        name
        for name in named
        if name in OPENING or name.partition(".")[0] in OPENING or name.rpartition(".")[2] in CALLS
    }


def test_only_these_can_open_a_connection() -> None:
    found = {
        str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if opened_by(ast.parse(path.read_text("utf-8")))
    }
    assert found == TO_WHOM.keys()


def test_however_it_is_imported() -> None:
    for text in (
        "import socket",
        "from urllib import request",
        "import http.client as c",
        'import_module("httpx")',
        "loop.create_connection(x)",
    ):
        assert opened_by(ast.parse(text)), text
    assert not opened_by(ast.parse("from urllib.parse import urlsplit\nimport asyncio\nasyncio.run(x)"))
