"""What several commands share: the type of the subparsers, and options that mean the same everywhere."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from brim.errors import InvalidRequest
from brim.suggest import shown

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


_NUMBERS = re.compile(r"\s*\d{1,3}\s*(?:,\s*\d{1,3}\s*)+")


def gpu_names(given: list[str]) -> list[str]:
    """The devices or nodes to plan for: names in one option are separated by commas, and "0,1" is one node."""
    return [name for text in given for name in ([text] if _NUMBERS.fullmatch(text) else text.split(","))]


# Flags of vLLM, llama.cpp and SGLang that mean what an option of Brim means. llama.cpp's --ctx-size does not: it is the
# context of all its slots together.
SYNONYMS = {
    "--max-len": ("--max-model-len", "--context-length"),
    "--max-seqs": ("--max-num-seqs", "--max-running-requests"),
    "--concurrency": ("--parallel", "-np"),
    "--batch-tokens": ("--max-num-batched-tokens", "--ubatch-size", "-ub", "--chunked-prefill-size"),
    "--tp": ("--tensor-parallel-size", "-tp", "--tp-size"),
    "--pp": ("--pipeline-parallel-size", "-pp", "--pp-size"),
    "--dp": ("--data-parallel-size", "-dp", "--dp-size"),
    "--gpu-layers": ("--n-gpu-layers", "-ngl"),
    "--cpu-moe": ("--n-cpu-moe", "-ncmoe"),
    "--lora-rank": ("--max-lora-rank",),
    "--loras": ("--max-loras",),
    "--kv-dtype": ("--kv-cache-dtype",),
    "--weights": ("--quantization",),
}
SYNONYM_HELP = (
    "Flags of vLLM, llama.cpp and SGLang that mean the same are understood too: "
    + ", ".join(name for names in SYNONYMS.values() for name in names if name.startswith("--"))
    + ", --enable-expert-parallel and --enforce-eager (no graphs)."
)


def add_synonyms(parser: argparse.ArgumentParser, *options: str) -> None:
    """Other engines' names of options that the parser has; they are not listed one by one in its help."""
    for option in options:
        own = next(action for action in parser._actions if option in action.option_strings)
        parser.add_argument(
            *SYNONYMS[option],
            dest=own.dest,
            type=own.type or str,
            choices=own.choices,
            default=argparse.SUPPRESS,
            help=argparse.SUPPRESS,
        )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", dest="as_json", help="machine-readable, with stable keys")


def check_svg(path: Path | None) -> None:
    """A picture is written as SVG, whatever its name says."""
    if path is not None and path.suffix.lower() not in ("", ".svg"):
        raise InvalidRequest(
            f"svg '{shown(str(path))}': the picture is written as SVG; name it {shown(path.with_suffix('.svg').name)}"
        )


def write_file(path: Path, text: str) -> None:
    """Write a file that the user named; an error names the path and the reason."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(
            f"svg {path}: cannot be written ({error.strerror}); name a file in a writable folder"
        ) from None
