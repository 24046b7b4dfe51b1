"""Which models can be planned, and how exactly: published configs, and every class of transformers that generates text.

    python benchmarks/coverage.py [--configs FOLDER] [--truth FILE] [--json FILE] [--verbose]

Published configs are held against figures known elsewhere where there are any (parameters and weights within 0.5 %, a
request's cache within 1 %). The default config of every class in the mappings below is held against the class, built on
the meta device (parameters within 0.1 %). Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brim.errors import InputError
from brim.model.kv import kv_footprint
from brim.model.weights import weight_bytes
from brim.records.model import Dtype, ModelSpec
from brim.trace.loading import load_model

TABLES = ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "SPEECH_SEQ_2_SEQ")
WITHIN_PARAMETERS, WITHIN_KV, WITHIN_CLASS = 0.005, 0.01, 0.001


@dataclass
class Tally:
    """What became of some configs."""

    planned: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    unbuildable: list[str] = field(default_factory=list)  # of the refused: transformers builds no model of it either
    right: list[str] = field(default_factory=list)
    wrong: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, found: ModelSpec | InputError, problems: list[str] | None) -> None:
        """`problems` are None where nothing is known to compare with."""
        if isinstance(found, InputError):
            self.refused[name] = str(found)
            return
        self.planned.append(name)
        if problems is not None:
            if problems:
                self.wrong[name] = "; ".join(problems)
            else:
                self.right.append(name)

    def figures(self) -> dict[str, int]:
        return {name: len(getattr(self, name)) for name in ("planned", "refused", "unbuildable", "right", "wrong")}

    def show(self, title: str, verbose: bool) -> None:
        total = len(self.planned) + len(self.refused)
        compared = len(self.right) + len(self.wrong)
        print(
            f"{title}: {len(self.planned)} of {total} planned ({len(self.planned) / max(1, total):.1%}), "
            f"{len(self.refused)} refused; {len(self.right)} of {compared} compared within the bars"
        )
        if self.unbuildable:
            print(f"  of the refused, transformers itself builds no model for {len(self.unbuildable)}")
        for name, problem in self.wrong.items():
            print(f"  wrong    {name}: {problem}")
        if verbose:
            for name, reason in self.refused.items():
                print(f"  refused  {name}: {reason[:160]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(__file__).parents[2] / "shared"
    parser.add_argument("--configs", type=Path, default=shared / "configs", help="a folder of MODEL/config.json")
    parser.add_argument(
        "--truth", type=Path, default=shared / "truth" / "plan_truth.json", help="what is known of them"
    )
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--verbose", action="store_true", help="say why a config is refused")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")

    tallies = {"published": published(arguments.configs, arguments.truth), **by_class()}
    for title, tally in tallies.items():
        tally.show(title, arguments.verbose)
    if arguments.json:
        figures = {title: tally.figures() for title, tally in tallies.items()}
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


def read(path: Path) -> ModelSpec | InputError:
    try:
        return load_model(str(path))
    except InputError as error:
        return error


def published(configs: Path, truth_file: Path) -> Tally:
    truth = json.loads(truth_file.read_text()) if truth_file.is_file() else {}
    tally = Tally()
    for path in sorted(configs.glob("*/config.json")):
        name, found = path.parent.name, read(path.parent)
        known = truth.get(name)
        tally.add(name, found, None if known is None or isinstance(found, InputError) else compare(found, known))
    return tally


def compare(spec: ModelSpec, known: dict[str, Any]) -> list[str]:
    pairs = {
        "params": (spec.parameters, WITHIN_PARAMETERS),
        "weights_bytes": (weight_bytes(spec).total_bytes, WITHIN_PARAMETERS),
        "request_bytes_8192_bf16": (
            kv_footprint(spec, Dtype.BF16).request_bytes(8192),
            known.get("request_tolerance", WITHIN_KV),
        ),
    }
    return [
        f"{name} {found:,} for {known[name]:,.0f} ({found / known[name] - 1:+.2%})"
        for name, (found, within) in pairs.items()
        if name in known and abs(found / known[name] - 1) > within
    ]


def by_class() -> dict[str, Tally]:
    """A tally for every mapping; empty where transformers is not installed."""
    try:
        import transformers
        from transformers.models.auto import modeling_auto
    except ImportError:
        print("transformers is not installed: its classes are left out")
        return {}
    transformers.logging.set_verbosity_error()
    tallies = {}
    for table in TABLES:
        tally = tallies[table] = Tally()
        for kind, name in getattr(modeling_auto, f"MODEL_FOR_{table}_MAPPING_NAMES").items():
            add_class(tally, kind, name if isinstance(name, str) else name[0])
    return tallies


def add_class(tally: Tally, kind: str, name: str) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    try:
        config = CONFIG_MAPPING[kind](architectures=[name])
    except Exception as error:  # noqa: BLE001 - classes whose own defaults are not valid
        tally.refused[kind] = f"transformers makes no default config: {error}"
        tally.unbuildable.append(kind)
        return
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(config.to_json_string(use_diff=False))
        found = read(Path(folder))
    expected = parameters_of(config, name)
    if isinstance(found, InputError) or expected is None:
        tally.add(kind, found, None)
        tally.unbuildable += [kind] if isinstance(found, InputError) and expected is None else []
        return
    off = found.parameters / expected - 1
    wrong = [f"{found.parameters:,} parameters for {expected:,} ({off:+.2%})"] if abs(off) > WITHIN_CLASS else []
    tally.add(kind, found, wrong)


def parameters_of(config: Any, name: str) -> int | None:
    """Those of the class; None where it cannot be built from its own defaults."""
    import torch
    import transformers

    try:
        with torch.device("meta"):
            model = getattr(transformers, name)._from_config(config)
    except Exception:  # noqa: BLE001 - whatever a class raises on defaults that do not fit together
        return None
    return sum(parameter.numel() for parameter in model.parameters())


if __name__ == "__main__":
    main()
