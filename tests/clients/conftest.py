"""Real `brim serve` processes for the clients that people use; all tests here skip where those are not installed.

`make test-clients` installs them. Nothing leaves the machine: what the clients would fetch or report is switched off
before they are imported.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.clients.serving import MODEL, serving

OFFLINE = {
    "DO_NOT_TRACK": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_EVALUATE_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "TRANSFORMERS_OFFLINE": "1",
}

if find_spec("litellm") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    os.environ.update(OFFLINE)


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of the text model, without the `/v1`; in fp32, so that figures can be compared with a reference."""
    with serving(f"{MODEL} --dtype fp32 --kv-tokens 8192", tmp_path_factory.mktemp("text")) as found:
        yield found


@pytest.fixture(scope="session")
def vision_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of the model that sees; its weights are random."""
    with serving("brim-tiny-vl --kv-tokens 2048 --image-pixels 65536", tmp_path_factory.mktemp("vision")) as found:
        yield found
