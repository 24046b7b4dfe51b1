"""How Brim is installed: the name of its distribution, and a command that adds an extra to this very installation.

The package index knows Brim as `brim-llm`; the import and the command are `brim`. What comes out is a command that
works where this process runs: one that was installed from a clone names the clone (pip leaves `direct_url.json`,
PEP 610), one from a repository or an archive its address. Only what came from an index is asked for by name alone. It
says where Brim is on this machine, so it is for whoever runs Brim, never for a client of a server. Not known: which
tool installed it; the command is pip's.
"""

from __future__ import annotations

import json
import shlex
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "brim-llm"


def install_command(extra: str) -> str:
    """The command that installs what an extra needs, beside this installation of Brim."""
    return command_for(extra, _direct_url(), _clone())


def command_for(extra: str, direct_url: str | None, clone: Path | None) -> str:
    """The same for what pip noted of an installation, or for the clone that the package is imported from."""
    noted = json.loads(direct_url) if direct_url else {}
    url = str(noted.get("url", ""))
    if "vcs_info" in noted:
        kind, commit = noted["vcs_info"]["vcs"], noted["vcs_info"]["commit_id"]
        return _pip(f"{DISTRIBUTION}[{extra}] @ {kind}+{url}@{commit}")
    local = _local(url)
    if "dir_info" in noted and local is not None and local.is_dir():
        return _pip(f"{local}[{extra}]", editable=bool(noted["dir_info"].get("editable")))
    if "archive_info" in noted and (local is None or local.is_file()):
        return _pip(f"{DISTRIBUTION}[{extra}] @ {url}")
    if clone is not None:
        return _pip(f"{clone}[{extra}]", editable=True)
    return _pip(f"{DISTRIBUTION}[{extra}]")


def _pip(requirement: str, *, editable: bool = False) -> str:
    return f"pip install {'-e ' if editable else ''}{shlex.quote(requirement)}"


def _local(url: str) -> Path | None:
    """The path of a file's address."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


@cache  # an installation does not change while it runs
def _direct_url() -> str | None:
    from importlib.metadata import PackageNotFoundError, distribution  # a fifth of a plan's time

    try:
        return distribution(DISTRIBUTION).read_text("direct_url.json")
    except PackageNotFoundError:  # run from its source
        return None


def _clone() -> Path | None:
    """The folder of the source that this package is imported from."""
    root = Path(__file__).parents[2]
    return root if (root / "pyproject.toml").is_file() and (root / "src" / "brim").is_dir() else None
