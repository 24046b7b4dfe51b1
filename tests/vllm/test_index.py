"""The private names of vLLM that Brim uses, in the wheels of all versions on the package index."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from brim.vllm.names import NAMES, RESCUE_NAMES, Where, missing_names, source_files
from tests.vllm.wheels import Unreachable, members, wheels

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="make test-vllm installs it")

OLDEST = (0, 26)


def test_every_version_on_the_index_has_the_names(tmp_path: Path) -> None:
    """A new release that moves one is noticed here, by version and name."""
    files = [f"vllm/{file}" for file in sorted(source_files((*NAMES, *RESCUE_NAMES)))]
    missing: dict[str, tuple[str, ...]] = {}
    seen = []
    try:
        for version, address in wheels("vllm").items():
            if tuple(int(part) for part in version.split(".")) < OLDEST:
                continue
            seen.append(version)
            for name, text in members(address, files).items():
                path = tmp_path / version / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            folder = tmp_path / version / "vllm"
            lacks = missing_names(folder, Where.EVERYWHERE) + missing_names(folder, Where.EVERYWHERE, RESCUE_NAMES)
            if lacks:
                missing[version] = lacks
    except Unreachable as reason:
        pytest.skip(str(reason))
    assert "0.26.0" in seen
    assert missing == {}
