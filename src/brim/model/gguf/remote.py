"""GGUF repositories of the hub: which files one has, and their headers, without downloading the weights.

In: a repository and a variant. Out: a `GgufModel`, from the cache where the file was downloaded, else from the network:
only the first bytes of each file are asked for, as many as its header has.
"""

from __future__ import annotations

from importlib import import_module
from io import RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, cast

from brim.errors import SourceNotFound
from brim.model import hub
from brim.model.gguf.files import SUFFIX, choose, find_files, has_gguf, is_projector, model_name, part_names
from brim.model.gguf.header import GgufHeader, read_header
from brim.model.gguf.load import GgufModel, joined, read_files
from brim.units import MIB

_TIMEOUT_S = 20.0
_LEAST_READ = 4 * MIB  # of a request: the header of a usual model takes two or three


def cached_model(repository: str, variant: str | None) -> GgufModel | None:
    """A model whose files are in the hub's cache; None where they are not."""
    folder = hub.cached_folder(repository)
    if folder is None or not has_gguf(folder):
        return None
    try:
        return read_files(find_files(folder, variant))
    except SourceNotFound:
        return None  # another variant was downloaded


def remote_model(repository: str, variant: str | None, file: str | None = None) -> GgufModel:
    """A model of the hub, by the headers of its files."""
    files = {one.name: one for one in hub.listing(repository)}
    names = [name for name in files if name.lower().endswith(SUFFIX)]
    if file is not None and file not in names:
        raise SourceNotFound(f"model '{repository}' has no file {file[:80]} on the hub")
    chosen = file or choose(names, variant, repository)
    folder, slash, last = chosen.rpartition("/")
    parts = [f"{folder}{slash}{part}" for part in part_names(last)]
    missing = [part for part in parts if part not in files]
    if missing:
        raise SourceNotFound(f"model '{repository}': {missing[0][:80]} is not on the hub, a part of {chosen[:80]}")
    header = joined([_header(repository, files[part]) for part in parts])
    projectors = sorted(name for name in names if is_projector(name))
    projector = _header(repository, files[projectors[0]]) if projectors else None
    return GgufModel(model_name(last), header, len(parts), projector)


def _header(repository: str, file: hub.ListedFile) -> GgufHeader:
    reader = cast("BinaryIO", _Ranges(repository, file))
    return read_header(reader, Path(file.name).name, file.size)


class _Ranges(RawIOBase):
    """A file of the hub, read forward in ranges."""

    def __init__(self, repository: str, file: hub.ListedFile) -> None:
        super().__init__()
        self._repository, self._file = repository, file
        self._at = 0
        self._held = b""

    def read(self, size: int = -1) -> bytes:
        wanted = max(0, size)
        if wanted > len(self._held):
            self._held += self._fetch(max(wanted - len(self._held), _LEAST_READ))
        found, self._held = self._held[:wanted], self._held[wanted:]
        return found

    def _fetch(self, count: int) -> bytes:
        if self._at >= self._file.size:
            return b""
        library: Any = hub.need_library(self._repository)
        utilities: Any = import_module("huggingface_hub.utils")
        last = min(self._at + count, self._file.size) - 1
        url = library.hf_hub_url(self._repository, self._file.name)
        headers = {**utilities.build_hf_headers(), "Range": f"bytes={self._at}-{last}", "Accept-Encoding": "identity"}
        with hub.foreign_errors(self._repository):
            answer = utilities.get_session().get(url, headers=headers, timeout=_TIMEOUT_S)
            answer.raise_for_status()
        content: bytes = answer.content
        if answer.status_code != 206:  # the whole file, or the part before the end of it
            content = content[self._at : last + 1]
        self._at += len(content)
        return content
