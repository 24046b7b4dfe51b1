"""The page's server: the model of the package in a budget on the CPU, and visits to its page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from brim.engine.engine import Engine
from brim.engine.settings import EngineSettings
from brim.probes.cpu import CpuProbe
from brim.serving import fit_engine
from brim.units import MIB
from tests.integration.browser import Visit, visiting
from tests.integration.served import Built, Served, served

CONTEXT = 192
READY = "['ready', 'degraded'].includes(document.getElementById('state').textContent)"
ACCESSIBLE = Path(__file__).with_name("accessible.js").read_text(encoding="utf-8")


@contextmanager
def fitted_tiny() -> Iterator[Served]:
    """The model of the package in a budget on the CPU, fitted."""
    probe = CpuProbe(32 * MIB)
    settings = EngineSettings(max_batch=4, max_batch_tokens=64, max_length=CONTEXT)
    engine = Engine("brim-tiny", kv_tokens=0, device="cpu", settings=settings, probe=probe)
    report = fit_engine(engine, probe=probe, canary_bytes=4 * MIB, progress=False, scaling="off")
    with served(Built(engine, probe, report), threads=True, model_name="brim-tiny") as found:
        yield found


@contextmanager
def looking(browser: Any, server: Served, tab: str = "memory", **options: Any) -> Iterator[Visit]:
    """The page at a tab; at the end nothing may have gone wrong, and nobody else may have been asked."""
    with visiting(browser, f"{server.url}/#{tab}", **options) as visit:
        visit.until(READY)
        if tab == "planner":
            visit.until("document.querySelectorAll('#plan-bar .part').length > 3")
        yield visit
        assert visit.problems == []
        assert all(url.startswith(f"{server.url}/") for url in visit.asked)
