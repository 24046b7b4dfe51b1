"""The Hugging Face hub, through its own library: the local cache first, the network only when it is there.

Only JSON files are fetched here, for plans; `brim.model.download` fetches whole models. Without the library
(the extra `hub`) an error says what to install.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import urlsplit

from brim.errors import HubUnreachable, SourceNotFound, first_line
from brim.install import install_command

_TIMEOUT_S = 5.0
_REACH_S = 1.0


def cached_snapshot(repository: str) -> Path | None:
    """The folder of a model in the local hub cache; None where it is not there or the hub library is not installed."""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    found = try_to_load_from_cache(repository, "config.json")
    return Path(found).parent if isinstance(found, str) else None


def cached_folder(repository: str) -> Path | None:
    """The folder of whatever was fetched of a repository's main; None where nothing was."""
    try:
        from huggingface_hub import constants
    except ImportError:
        return None
    stored = Path(constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}"
    try:
        folder = stored / "snapshots" / (stored / "refs" / "main").read_text(encoding="utf-8").strip()
        return folder if folder.is_dir() else None
    except (OSError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of a repository."""

    name: str
    size: int


def listing(repository: str) -> list[ListedFile]:
    """The files of a repository, asked of the hub."""
    library = need_library(repository)
    if not is_reachable():
        raise unreachable(repository)
    with foreign_errors(repository):
        info = library.HfApi().model_info(repository, files_metadata=True, timeout=_TIMEOUT_S)
    return [ListedFile(one.rfilename, one.size or 0) for one in info.siblings or ()]


@contextmanager
def foreign_errors(repository: str) -> Iterator[None]:
    """What the hub's library raises, in one line with the remedy."""
    errors: Any = import_module("huggingface_hub.errors")
    try:
        yield
    except errors.RepositoryNotFoundError:
        raise SourceNotFound(f"there is no model '{repository}' on the hub, or it is private; check the name") from None
    except (errors.HTTPError, OSError) as error:
        raise SourceNotFound(f"model '{repository}' cannot be read on the hub ({first_line(error)})") from None


def download(repository: str, side_files: tuple[str, ...]) -> Path:
    """Fetch a model's config and what of the side files it has; the folder they are in."""
    hf_hub_download = need_library(repository).hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

    if not is_reachable():
        raise unreachable(repository)
    try:
        config = Path(hf_hub_download(repository, "config.json", etag_timeout=_TIMEOUT_S))
    except LocalEntryNotFoundError:
        raise unreachable(repository) from None
    except (HfHubHTTPError, OSError) as error:
        raise SourceNotFound(
            f"model '{repository}' cannot be fetched ({first_line(error)}); give a directory or a config.json"
        ) from None
    for name in side_files:
        try:
            hf_hub_download(repository, name, etag_timeout=_TIMEOUT_S)
        except EntryNotFoundError:
            continue  # most models have only some of these
    return config.parent


def need_library(repository: str) -> Any:
    """The hub's own library."""
    try:
        import huggingface_hub
    except ImportError:
        raise HubUnreachable(
            f"model '{repository}' is not local; to fetch it from the hub: {install_command('hub')}"
        ) from None
    return huggingface_hub


def is_reachable() -> bool:
    """Whether the hub may be asked, and answers."""
    from huggingface_hub import constants

    return not constants.HF_HUB_OFFLINE and _reachable(constants.ENDPOINT)


def unreachable(repository: str, remedy: str = "give a directory or a config.json") -> HubUnreachable:
    return HubUnreachable(f"model '{repository}' is not in the local hub cache and the hub cannot be reached; {remedy}")


def _reachable(endpoint: str) -> bool:
    """Whether the hub, or the proxy on the way to it, answers at all: its library retries for half a minute."""
    from urllib.request import getproxies, proxy_bypass  # only here: it takes a tenth of a plan's time to import

    address = urlsplit(endpoint)
    proxy = getproxies().get(address.scheme)
    if proxy and not proxy_bypass(address.netloc):
        address = urlsplit(proxy if "//" in proxy else f"http://{proxy}")
    return _answers(address.hostname or "", address.port or (443 if address.scheme == "https" else 80))


def _answers(host: str, port: int) -> bool:
    """Whether a connection is made in time. In a thread: the lookup of a name has no timeout of its own."""
    import socket  # only here: few plans are of a model that must be fetched

    answered = Event()

    def connect() -> None:
        try:
            with socket.create_connection((host, port), timeout=_REACH_S):
                answered.set()
        except OSError:
            return

    attempt = Thread(target=connect, daemon=True)
    attempt.start()
    attempt.join(_REACH_S)
    return answered.is_set()
