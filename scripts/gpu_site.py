"""A folder with what `brim serve` needs beside torch and transformers, for a machine that can install nothing.

Pure Python wheels only, so that any Python of the machine can read them. Put it first on the path there:

    python scripts/gpu_site.py                      # here: makes gpu-carry/site, which git ignores
    PYTHONPATH=src:gpu-carry/site python …          # there
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGES = (
    "starlette",
    "uvicorn",
    "prometheus-client",
    # what those need
    "anyio",
    "click",
    "h11",
    "idna",
    "typing-extensions",
)
FOLDER = Path(__file__).parents[1] / "gpu-carry" / "site"
_PURE = ("--only-binary", ":all:", "--platform", "any", "--implementation", "py", "--abi", "none")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="3.12", help="version of Python on the other machine")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    options = parser.parse_args()
    shutil.rmtree(options.folder, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(options.folder)]
    done = subprocess.run([*command, *_PURE, "--python-version", options.python, *PACKAGES], check=False)
    if done.returncode:
        sys.exit("not all of them could be downloaded as pure wheels")
    size = sum(path.stat().st_size for path in options.folder.rglob("*") if path.is_file())
    print(f"{options.folder}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
