"""A whole model from the Hugging Face hub, into the hub's own cache: config, tokenizer, processor, template, weights.

In: a repository. Out: the folder with its files. Weights are safetensors; files of pickles and of code are left where
they are. Small files come first and weights last, so a cache that has all weights has everything. Several are fetched
at once, and what has come is told in bytes.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

from brim.errors import BrimError, DeviceError, SourceNotFound, first_line
from brim.model import hub
from brim.model.jsonfile import read_object
from brim.records.progress import DOWNLOAD, Stage, Told
from brim.units import format_bytes

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_SMALL = (
    "*config.json",
    "modules.json",  # of sentence-transformers, with the layers behind its pooling
    "*_Dense/model.safetensors",
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "additional_chat_templates/*.jinja",
    "*.model",
    "*.tiktoken",
    INDEX,
)
_NEVER = ("*.py", "*.bin", "*.pt", "*.pth", "*.pkl", "*.pickle")
_AT_ONCE = 4
_LOOK_SECONDS = 0.2
_REMEDY = "check the network, give a directory with its files, or run it with random weights: --load-format dummy"


@dataclass(frozen=True, slots=True)
class _HubFile:
    name: str
    size: int


def download_model(repository: str, told: Told) -> Path:
    """Fetch what is needed to run a model and is not in the cache yet; the folder that it is in."""
    library = hub.need_library(repository)
    if not hub.is_reachable():
        raise hub.unreachable(repository, _REMEDY)
    told(Stage(DOWNLOAD, repository))
    with _foreign_errors(repository):
        config = Path(library.hf_hub_download(repository, "config.json"))
        folder, revision = config.parent, config.parent.name
        info = library.HfApi().model_info(repository, revision=revision, files_metadata=True)
        there = [_HubFile(one.rfilename, one.size or 0) for one in info.siblings or ()]
        small = [file for file in there if _is_small(file.name)]
        _fetch(library, repository, revision, small, told)
        weights = _weights(repository, there, folder)
        _check_room(repository, folder, weights)
        _fetch(library, repository, revision, weights, told)
    return folder


def _is_small(name: str) -> bool:
    return any(fnmatchcase(name, one) for one in _SMALL) and not any(fnmatchcase(name, one) for one in _NEVER)


def _weights(repository: str, there: Sequence[_HubFile], folder: Path) -> list[_HubFile]:
    """The files that hold the model's weights: a repository may have the same ones in other forms besides."""
    sizes = {file.name: file for file in there}
    if WHOLE in sizes:
        return [sizes[WHOLE]]
    if INDEX not in sizes:
        raise SourceNotFound(
            f"model '{repository}' has no {WHOLE} on the hub, and other forms of weights (pickles, GGUF) are not "
            "loaded; choose a repository with safetensors"
        )
    named = read_object(folder / INDEX).get("weight_map")
    names = sorted({str(name) for name in named.values()}) if isinstance(named, dict) else []
    missing = [name for name in names if name not in sizes]
    if missing or not names:
        what = f"names {missing[0]:.80}, which is not on the hub" if missing else "names no files"
        raise SourceNotFound(f"model '{repository}': its {INDEX} {what}; choose another repository")
    return [sizes[name] for name in names]


def _check_room(repository: str, folder: Path, files: Sequence[_HubFile]) -> None:
    """Refuse what will not fit on the disk before hours are spent on it."""
    from huggingface_hub import constants

    wanted = sum(file.size for file in files if not (folder / file.name).exists())
    free = _free_bytes(folder)
    if wanted > free:
        raise DeviceError(
            f"model '{repository}' takes {format_bytes(wanted)} more, and {constants.HF_HUB_CACHE} has "
            f"{format_bytes(free)} free; make room, or set HF_HOME to a folder on another disk"
        )


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _fetch(library: Any, repository: str, revision: str, files: Sequence[_HubFile], told: Told) -> None:
    """All of them, telling how far they are. Whatever ends one of them, or the telling, ends all."""
    counted = _DownloadCount()
    total = sum(file.size for file in files)

    def one(file: _HubFile) -> None:
        library.hf_hub_download(repository, file.name, revision=revision, tqdm_class=counted.bar(file))
        counted.finish(file)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        waiting: set[Future[None]] = {pool.submit(one, file) for file in files}
        try:
            while waiting:
                done, waiting = wait(waiting, _LOOK_SECONDS, FIRST_EXCEPTION)
                for ended in done:
                    ended.result()
                title = f"{repository}, {len(files) - len(waiting)} of {len(files)} files"
                told(Stage(DOWNLOAD, title, counted.done, total, in_bytes=True))
        except BaseException:
            counted.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


class _Stopped(Exception):
    """The download is not wanted any more."""


class _DownloadCount:
    """Bytes of files that are being fetched by several threads."""

    def __init__(self) -> None:
        self._bytes: dict[str, int] = {}
        self._lock = Lock()
        self._stopped = False

    @property
    def done(self) -> int:
        with self._lock:
            return sum(self._bytes.values())

    def stop(self) -> None:
        self._stopped = True

    def finish(self, file: _HubFile) -> None:
        """It may have been in the cache, or have come in a way that is not counted."""
        with self._lock:
            self._bytes[file.name] = file.size

    def _add(self, file: _HubFile, count: float) -> None:
        if self._stopped:
            raise _Stopped
        with self._lock:
            self._bytes[file.name] = min(file.size, self._bytes.get(file.name, 0) + int(count))

    def bar(self, file: _HubFile) -> Any:
        """What the hub's library takes for a bar on the terminal."""
        tqdm: Any = import_module("tqdm").tqdm
        add = self._add

        class Bar(tqdm):  # type: ignore[misc]
            def __init__(self, *given: Any, **options: Any) -> None:
                super().__init__(*given, **{**options, "disable": True})
                add(file, options.get("initial") or 0)

            def update(self, n: float | None = 1) -> None:
                add(file, n or 0)

        return Bar


@contextmanager
def _foreign_errors(repository: str) -> Iterator[None]:
    """What the hub's library raises, in one line with the remedy."""
    from huggingface_hub import constants

    errors: Any = import_module("huggingface_hub.errors")
    try:
        yield
    except BrimError:
        raise
    except errors.GatedRepoError:
        page = f"{constants.ENDPOINT}/{repository}"
        raise SourceNotFound(
            f"model '{repository}' is gated: accept its terms on {page}, then log in with `hf auth login` or HF_TOKEN"
        ) from None
    except errors.RepositoryNotFoundError:
        raise SourceNotFound(
            f"there is no model '{repository}' on the hub, or it is private; check the name, or log in with "
            "`hf auth login` or HF_TOKEN"
        ) from None
    except errors.LocalEntryNotFoundError:
        raise hub.unreachable(repository, _REMEDY) from None
    except errors.EntryNotFoundError:
        raise SourceNotFound(
            f"model '{repository}' has no config.json on the hub; choose a repository for transformers"
        ) from None
    except (errors.HTTPError, OSError) as error:
        raise SourceNotFound(
            f"model '{repository}' cannot be downloaded ({first_line(error)}); try again, what has come is kept"
        ) from None
