"""Where torch and Triton keep what they have compiled: a cache that cannot be written must not end a start.

torch makes its folder when it is imported, both write into theirs while they compile, and neither goes on where that
fails. So each folder is tried first; one that fails is replaced by a temporary one, in memory or on another disk, until
the command ends.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from brim.units import MIB

TORCH, TRITON = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"
_ELSEWHERE = ("/dev/shm", "/var/tmp", ".")
_TRIED_BYTES = MIB  # as much as a few kernels


@contextmanager
def usable_compiler_caches(say: Callable[[str], object]) -> Iterator[None]:
    """For the time of a command, in its environment and that of the processes it starts; `say` gets the warnings."""
    with ExitStack() as temporary:
        for variable, folder in _folders(os.environ).items():
            problem = _problem(folder)
            if problem is None:
                continue
            found = next((place for place in map(Path, _ELSEWHERE) if _problem(place) is None), None)
            said = f"warning: {variable} {folder} cannot be used ({problem.strerror or problem})"
            if found is None:
                say(f"{said}, and no other folder can")
                continue
            made = tempfile.TemporaryDirectory(prefix="brim-", dir=found, ignore_cleanup_errors=True)
            temporary.callback(_set, variable, os.environ.get(variable))
            _set(variable, temporary.enter_context(made))
            say(f"{said}; what is compiled is kept in {made.name} until the end")
        yield


def _folders(environment: Mapping[str, str]) -> dict[str, Path]:
    """As the libraries find them; torch's own is below the folder for temporary files, which Python chooses itself."""
    home = environment.get("TRITON_HOME") or environment.get("HOME") or str(Path("~").expanduser())
    found = {TRITON: Path(environment.get(TRITON) or Path(home, ".triton", "cache"))}
    if environment.get(TORCH):
        found[TORCH] = Path(environment[TORCH])
    return found


def _set(variable: str, value: str | None) -> None:
    if value is None:
        del os.environ[variable]
    else:
        os.environ[variable] = value


def _problem(folder: Path) -> OSError | None:
    """Why nothing can be kept there; None where it can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_TRIED_BYTES))
    except OSError as error:
        return error
    return None
