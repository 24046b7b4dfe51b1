"""The kernels that score prompts, in Triton's interpreter, beside whole rows of logits in float64.

    PYTHONPATH=src TRITON_INTERPRET=1 python tests/unit/engine/run/interpreted_scores.py FILE

Writes what was found into FILE. A script and not a test: Triton decides when it is imported whether it interprets.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from brim.engine.run.scoring.kernels import TritonReduction
from tests.unit.engine.run.scored_cases import CASES, difference


def main() -> None:
    found = [{"case": str(asdict(case)), **asdict(difference(case, TritonReduction()))} for case in CASES]
    Path(sys.argv[-1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
