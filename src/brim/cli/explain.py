"""`brim explain`: why a server ran out of memory, what each part took, and which flag prevents it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from brim.cli.options import add_json, check_svg, write_file
from brim.errors import InvalidRequest

if TYPE_CHECKING:
    from brim.cli.options import Commands
    from brim.explain.explanation import Explanation


def add_command(commands: Commands) -> None:
    parser = commands.add_parser(
        "explain",
        help="why it ran out of memory: the cause, its evidence, and the flag that prevents it",
        description="Reads recordings of brim serve and brim watch; logs of vLLM, SGLang, LightLLM, TensorRT-LLM, TGI, "
        "llama.cpp and Ollama; torch's out-of-memory messages, tracebacks and memory snapshots; nvidia-smi tables and "
        "Kubernetes events. Files of one incident are given together.",
    )
    parser.set_defaults(run=run)
    parser.add_argument("file", nargs="+", type=Path, metavar="FILE", help="what was left behind")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="also draw memory over time, or the ledger of a log")
    parser.add_argument("--model", metavar="MODEL", help="what was served, where the files do not say")
    parser.add_argument(
        "--replay",
        action="store_true",
        help="run the last steps again on the meta device: which tensor and module made the peak (needs torch)",
    )
    parser.add_argument("--replay-svg", type=Path, metavar="FILE", help="draw the replayed step, as brim trace does")
    parser.add_argument("--diff", action="store_true", help="compare two starts: which line changed by how much")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    check_svg(options.svg)
    check_svg(options.replay_svg)
    if options.diff:
        return _diff(options)
    from brim.explain.explanation import explain

    pictured = options.replay_svg is not None
    found = explain(options.file, model=options.model, replayed=options.replay or pictured, with_timeline=pictured)
    if pictured:
        _draw_replay(found, options.replay_svg)
    if options.svg is not None:
        from brim.cli.show.incident_picture import incident_svg

        write_file(options.svg, incident_svg(found))
    if options.as_json:
        print(json.dumps(found.to_json(), indent=2))
        return 0
    from brim.cli.show.explanation import show_explanation

    show_explanation(found)
    return 0


def _draw_replay(found: Explanation, path: Path) -> None:
    if not found.replays:
        raise InvalidRequest(f"--replay-svg: there is nothing to draw; {found.unknown[-1]}")
    from brim.cli.show.timeline import timeline_svg

    write_file(path, timeline_svg(found.replays[0].trace))


def _diff(options: argparse.Namespace) -> int:
    from brim.explain.difference import compare_starts

    if len(options.file) != 2:
        raise InvalidRequest(f"--diff compares two files, and {len(options.file)} are named; name two")
    if options.svg is not None:
        raise InvalidRequest("--svg draws one incident, and --diff compares two; leave one of them out")
    found = compare_starts(*options.file)
    if options.as_json:
        print(json.dumps(found.to_json(), indent=2))
        return 0
    from brim.cli.show.explanation import show_difference

    show_difference(found)
    return 0
