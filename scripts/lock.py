"""Locks what the tests and the demo install: `make lock` writes `locks/` from the ranges in `pyproject.toml`.

For each of `test` (the newest that is allowed, within `locks/test.in`), `oldest` (the lowest version of everything
that `pyproject.toml` names) and `clients` (as `test`, with the clients of `tests/clients/clients.in` and what they ask
of the rest) two files come out, for Python 3.11 to 3.13 and every platform:

- `NAME.txt`: all packages but torch, with transitive ones and hashes;
- `NAME-torch.txt`: versions of torch and of the CUDA libraries that some of its builds ask for, without hashes, because
  one version of torch has several builds. It is a constraint: a build without CUDA installs none of them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "locks"
HEADER = "# Made by `make lock` from pyproject.toml.\n"
TORCH = re.compile(r"(torch|cuda-[\w-]+|nvidia-(?!ml-py)[\w-]+)==")

WAYS = {
    "test": ["--constraint", "locks/test.in"],
    "oldest": ["--resolution", "lowest-direct"],
    "clients": ["tests/clients/clients.in", "--constraint", "locks/test.in"],
}


def resolve(way: list[str]) -> list[str]:
    """The pinned packages, each with its hashes, as requirement lines."""
    command = [
        *[str(Path(sys.executable).with_name("uv")), "pip", "compile", "pyproject.toml", "--quiet"],
        *["--extra", "engine", "--extra", "dev", "--group", "build"],
        *["--universal", "--python-version", "3.11", "--no-python-downloads"],
        *["--generate-hashes", "--no-header", "--no-annotate", *way],
    ]
    text = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return re.split(r"\n(?=\S)", text.strip())


def main() -> None:
    for name, way in WAYS.items():
        packages = resolve(way)
        others = [package for package in packages if not TORCH.match(package)]
        torch = [package.split("\\")[0].strip() for package in packages if TORCH.match(package)]
        (LOCKS / f"{name}.txt").write_text(HEADER + "\n".join(others) + "\n")
        (LOCKS / f"{name}-torch.txt").write_text(HEADER + "\n".join(torch) + "\n")
        print(f"locks/{name}.txt: {len(others)} packages; locks/{name}-torch.txt: {len(torch)}")


if __name__ == "__main__":
    main()
