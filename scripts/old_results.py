"""Results that are older than the code they measure: `python scripts/old_results.py [--json]`.

For each file in `benchmarks/results`: its commit, and how many commits since then changed the package, its benchmark
left out. A commit that this history does not have is said to be unknown.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def git(*words: str) -> str | None:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def row(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8"))
    first = found[0] if isinstance(found, list) else found
    commit = first.get("commit") if isinstance(first, dict) else None
    known = isinstance(commit, str) and git("cat-file", "-e", f"{commit}^{{commit}}") is not None
    since = git("rev-list", "--count", f"{commit}..HEAD", "--", "src/brim") if known else None
    return {"result": path.name, "commit": commit, "commits_since": None if since is None else int(since)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [row(path) for path in sorted((ROOT / "benchmarks" / "results").glob("*.json"))]
    rows.sort(key=lambda one: (one["commits_since"] is not None, -(one["commits_since"] or 0)))
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    for one in rows:
        since = "an unknown commit" if one["commits_since"] is None else f"{one['commits_since']:,} commits ago"
        print(f"{since:>20}  {one['result']} ({one['commit']})")


if __name__ == "__main__":
    main()
