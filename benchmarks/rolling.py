"""What a rolling conversation costs, by its low-water mark: tokens recomputed, and tokens forgotten at once.

A long conversation of random turns goes through the policy (`brim.guard.rolling`) token by token, without a model: a
turn computes its prompt but for the blocks that it shares with the turn before. The line `everything` computes the
whole prompt in every turn.

    python benchmarks/rolling.py [--threshold 8192] [--turns 4000] [--out FILE] [--commit HASH]
"""

from __future__ import annotations

import argparse
import json
import platform
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from brim.guard.rolling import RollingSettings, roll

BLOCK = 16
SHARES = (0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9)


@dataclass(frozen=True)
class Row:
    """One low-water mark."""

    low_water_share: float
    computed_per_new_token: float  # of prompts; new are the tokens of users and answers
    everything_per_new_token: float  # the same where no prompt is found again
    forgotten_at_once: float  # tokens of the conversation, on average of the times that it rolls
    turns_between: float  # two times that it rolls


def conversation(turns: int, draw: random.Random) -> Iterator[tuple[int, int]]:
    """Tokens of the user's turns and of the answers."""
    for _ in range(turns):
        yield draw.randint(20, 400), draw.randint(20, 600)


def measure(share: float, threshold: int, turns: int, opening: int = 200, room: int = 600) -> Row:
    settings = RollingSettings(threshold, int(threshold * share))
    kept: list[int] = []  # tokens of the exchanges
    computed = everything = new = forgotten = rolls = 0
    found = 0  # tokens of the next prompt that are in the pool
    for asked, answered in conversation(turns, random.Random(0)):
        sizes = [*kept, asked]

        def count(numbers: Sequence[int], sizes: list[int] = sizes) -> int:
            return opening + sum(sizes[number] for number in numbers)

        rolled = roll([False] * len(sizes), count, room, settings)
        if rolled.dropped:
            rolls += 1
            forgotten += sum(sizes[number] for number in rolled.dropped)
            found = opening
        computed += rolled.tokens - found // BLOCK * BLOCK
        everything += rolled.tokens
        kept = [sizes[number] for number in rolled.kept]
        kept[-1] += answered
        found = opening + sum(kept)
        new += asked + answered
    return Row(share, computed / new, everything / new, forgotten / max(1, rolls), turns / max(1, rolls))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threshold", type=int, default=8192)
    parser.add_argument("--turns", type=int, default=4000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="unknown")
    options = parser.parse_args()
    rows = [measure(share, options.threshold, options.turns) for share in SHARES]
    print(f"{'low water':>10} {'computed':>10} {'everything':>11} {'forgotten at once':>18} {'turns between':>14}")
    for row in rows:
        print(
            f"{row.low_water_share:>10.0%} {row.computed_per_new_token:>9.2f}x {row.everything_per_new_token:>10.1f}x "
            f"{row.forgotten_at_once:>18,.0f} {row.turns_between:>14.1f}"
        )
    if options.out:
        result = {
            "python": platform.python_version(),
            "commit": options.commit,
            "threshold": options.threshold,
            "turns": options.turns,
            "rows": [asdict(row) for row in rows],
        }
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
