"""An engine and its encoder start side by side; only what is measured waits."""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from brim.cli.engine_options import make_engine
from brim.cli.fit import budget_probe, engine_place, fit_wishes
from brim.cli.main import make_parser
from brim.cli.neighbours.encoders import encoders_beside
from brim.cli.neighbours.options import decide_part, part_of_device
from brim.records.fit import FitReport
from brim.records.lease import LeaseState
from brim.records.progress import Stage
from brim.reserve.ledger import Ledger
from brim.serving import fit_engine

SMALL = ("--max-seqs", "2", "--batch-tokens", "64", "--max-len", "128", "--scaling", "off", "--canary", "1MiB")
LAB = "cpu:lab:128MiB"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRIM_LEASES", str(tmp_path / "leases"))
    return tmp_path / "leases"


def asked(device: str = LAB) -> argparse.Namespace:
    wanted = ("--encoder", "process", "--device", device, "--no-store", "--wait-neighbours", "60s", "--quiet")
    return make_parser("fit").parse_args(["fit", "brim-tiny-vl", *SMALL, *wanted])


def started(folder: Path, *, together: bool) -> tuple[FitReport, list[tuple[str, LeaseState | None]]]:
    """The fit of an engine with an encoder, and at each stage what the encoder's lease was.

    `together`: the encoder is suspended until the engine loads its weights. Otherwise it is ready before that.
    """
    options, stages = asked(), []
    ledger = Ledger(folder, "cpu:lab")

    def told(stage: Stage) -> None:
        with ledger.opened() as page:
            states = [lease.state for lease in page.leases if lease.role != "llm"]
        stages.append((stage.title, states[0] if states else None))
        if stage.title == "load (weights)":
            os.kill(pid, signal.SIGCONT)

    with encoders_beside(options, engine_place(options), False) as (place, encoders):
        assert encoders is not None
        (pid,) = encoders.pids
        if together:
            os.kill(pid, signal.SIGSTOP)
        else:
            encoders.start()
        with part_of_device(options, place, told, encoders) as part:
            probe = budget_probe(place, part)
            with make_engine(options, kv_tokens=0, probe=probe, progress=told, encoders=encoders) as engine:
                assert probe is not None
                decide_part(part, probe)
                report = fit_engine(engine, probe=probe, progress=told, neighbours=part, **fit_wishes(options))
    return report, stages


def test_weights_are_loaded_while_an_encoder_starts_and_the_fit_waits_until_it_holds(folder: Path) -> None:
    together, stages = started(folder, together=True)
    assert ("load (weights)", None) in stages
    fitting = [state for title, state in stages if not title.startswith(("load", "neighbours"))]
    assert fitting
    assert set(fitting) == {LeaseState.HELD}
    apart, _ = started(folder, together=False)
    assert figures(together) == figures(apart)


def figures(report: FitReport) -> object:
    """All of a report but times, and the numbers of processes."""
    found = report.to_json()
    items = [{**item, "note": None} for item in found["items"]]
    return json.dumps({**found, "items": items, "seconds": None}, sort_keys=True)
