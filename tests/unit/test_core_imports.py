"""A plain installation: every module outside of the extras imports with what that installs, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys

OF_EXTRAS = ("brim.engine", "brim.encoding", "brim.ray", "brim.serve", "brim.vllm")

# In a process of its own: a finder that knows only the standard library, Brim and what Brim requires without extras.
IMPORT_ALL = """
import importlib, json, pkgutil, re, sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

def required(name, found):
    for line in requires(name) or ():
        other = re.match(r"[\\w.-]+", line).group().lower().replace("_", "-")
        if "extra ==" not in line and other not in found:
            found.add(other)
            try:
                required(other, found)
            except PackageNotFoundError:
                pass  # for another platform
    return found

installed = required("brim-llm", {"brim-llm"})
allowed = {
    package for package, names in packages_distributions().items()
    if any(name.lower().replace("_", "-") in installed for name in names)
} | set(sys.stdlib_module_names) | {"brim"}

class PlainInstall:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in allowed:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, PlainInstall())
import brim

failed = {}
of_extras = tuple(json.loads(sys.argv[1]))
modules = [m.name for m in pkgutil.walk_packages(brim.__path__, "brim.", onerror=lambda name: None)]
core = [name for name in modules if not name.startswith(of_extras) and not name.endswith("__main__")]
for name in core:
    try:
        importlib.import_module(name)
    except ImportError as error:
        failed[name] = str(error)
print(json.dumps({"core": len(core), "failed": failed}))
"""


def test_core_imports_without_extras() -> None:
    child = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, json.dumps(OF_EXTRAS)], capture_output=True, text=True, check=True
    )
    result = json.loads(child.stdout)
    assert result["core"] > 200
    assert result["failed"] == {}
