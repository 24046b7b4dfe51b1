"""A server in a terminal: what is shown, and how much of it where there is little room."""

from __future__ import annotations

from io import StringIO
from typing import Any

from rich.console import Console

from brim.cli.show.top.brim_server import server_view


def request(number: int) -> dict[str, Any]:
    return {
        "id": f"req-{number}",
        "state": "running",
        "seconds": 3.0,
        "prompt_tokens": 10,
        "cached_tokens": 0,
        "drawn_tokens": 5,
        "max_tokens": 1000,
        "blocks": 2,
    }


def report(requests: int = 2, **changes: Any) -> dict[str, Any]:
    return {
        "model": "m[bold]",
        "device_name": "NVIDIA H200",
        "began": 1000.0,
        "time": 1090.0,
        "health": {"status": "ready", "reason": "", "rescues": 1},
        "card": {
            "total_bytes": 1 << 30,
            "parts": [{"name": name, "bytes": 1 << 28} for name in ("weights", "kv_used", "kv_cached", "free")],
        },
        "kv": {"blocks": 100, "blocks_held": 25, "blocks_cached": 50, "blocks_evicted": 7, "tokens": 1600},
        "now": {"free_bytes": 1 << 20},
        "leases": [
            {"pid": 1, "role": "llm", "state": "held", "promised_bytes": None, "held_bytes": 1 << 20},
            {"pid": 2, "role": "tts[/]", "state": "starting", "promised_bytes": 1 << 21, "held_bytes": None},
        ],
        "requests": {
            "running": requests,
            "waiting": 0,
            "inside": requests,
            "places": 260,
            "refused": 0,
            "preemptions": 0,
            "active": [request(number) for number in range(requests)],
            "active_left_out": 0,
            "others": {"count": 3, "blocks": 9},
        },
        "throughput": {"drawn_tokens_per_second": 1234.5, "computed_tokens_per_second": 2000.0},
        "gate": {"state": "open", "since": 0.0, "reason": ""},
        "events": [{"time": 1050.0, "kind": "rescue", "text": "a step ran out of memory"}],
        **changes,
    }


def shown(found: dict[str, Any], width: int = 100, height: int | None = None) -> str:
    console = Console(file=StringIO(), width=width, highlight=False)
    console.print(server_view(found, width, height))
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_everything_is_said() -> None:
    text = shown(report())
    for part in (
        "m[bold] on NVIDIA H200  ready  up 90 s",
        "U  kv_used 256.0 MiB",
        "25% used, 50% cached, of 1,600 tokens",
        "1,234 (2,000 with those of prompts)",
        "2 running, 0 waiting, 2 of 260 queue slots used",
        "1.0 MiB free now",
        "1 rescues, 0 preemptions, 0 refused, 7 blocks evicted",
        "llm (this server)",
        "tts[/]",
        "5 of 1,000",
        "3 of other keys with 9 blocks",
        "a step ran out of memory",
    ):
        assert part in text, part
    assert "free 256" not in text


def test_a_gate_that_holds_says_since_when_and_why() -> None:
    gate = {"state": "holding", "since": 1080.0, "reason": "12 blocks are missing"}
    assert "holding for 10 s: 12 blocks are missing" in shown(report(gate=gate))


def test_a_small_terminal_shows_the_first_requests() -> None:
    for height in (12, 30, 40):
        text = shown(report(200), height=height)
        assert len(text.splitlines()) <= max(height, 30), height
        assert "req-0" in text
        assert "more; 3 of other keys" in text
    assert "req-199" in shown(report(200))


def test_no_line_is_wider_than_the_terminal() -> None:
    for width in (40, 60, 80):
        assert max(map(len, shown(report(), width).splitlines())) <= width
