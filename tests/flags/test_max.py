"""MAX makes its options from the fields of its config classes, which are read from the published source.

Its own parser cannot be imported without the compiler that comes with it.
"""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

from brim.planning.engines import ENGINES
from tests.flags.commands import commands

pytestmark = pytest.mark.skipif(find_spec("max") is None, reason="make test-flags installs it")

_CLASSES = {
    "pipelines/kv_cache/config.py": "KVCacheConfig",
    "pipelines/lib/pipeline_runtime_config.py": "PipelineRuntimeConfig",
    "pipelines/lib/config/model_config.py": "MAXModelConfig",
    "pipelines/speculative/config.py": "SpeculativeConfig",
}


def options() -> dict[str, str]:
    """Option to the type of its field."""
    found = {"--devices": "str"}  # written by hand in its command line
    for path, name in _CLASSES.items():
        for field, kind in _fields(path, name).items():
            option = field.replace("_", "-")
            found[f"--{option}"] = kind
            if name == "MAXModelConfig":
                found[f"--draft-{option}"] = kind
            if kind.startswith("bool"):
                found[f"--no-{option}"] = kind
    return found


def _fields(path: str, name: str) -> dict[str, str]:
    """The annotated fields of a class and of the classes in the same file that it extends."""
    spec = find_spec("max")
    assert spec is not None
    assert spec.submodule_search_locations
    tree = ast.parse((Path(spec.submodule_search_locations[0]) / path).read_text(encoding="utf-8"))
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    wanted, found = [name], {}
    while wanted:
        node = classes.get(wanted.pop())
        if node is not None:
            wanted += [base.id for base in node.bases if isinstance(base, ast.Name)]
            fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]
            found |= {ast.unparse(one.target): ast.unparse(one.annotation) for one in fields}
    return found


@pytest.mark.parametrize("name", commands("max"))
def test_max_has_the_options(name: str) -> None:
    command = commands("max")[name]
    assert command.args[:2] == ("max", "serve")
    known = options()
    rest = list(command.args[2:])
    while rest:
        option = rest.pop(0)
        assert option in known
        if not known[option].startswith("bool"):
            value = rest.pop(0)
            if known[option].startswith(("int", "float")):
                float(value)


def test_the_drafts_have_names_that_max_knows() -> None:
    spec = find_spec("max")
    assert spec is not None
    assert spec.submodule_search_locations
    text = (Path(spec.submodule_search_locations[0]) / "pipelines/speculative/config.py").read_text(encoding="utf-8")
    methods = next(line for line in text.splitlines() if line.startswith("SpeculativeMethod = "))
    assert set(ENGINES["max"].drafts.values()) <= set(ast.literal_eval(methods.partition("Literal")[2]))
