"""Where a model comes from: a directory, a config.json, a GGUF file, Brim itself, the catalogue, or the hub.

In: what the user wrote. Out: a `ModelSpec`. Only JSON and the headers of safetensors and GGUF files are read: remote
code is never run, weights are never loaded. A hub id is looked for in the local cache first, then in the catalogue,
then on the hub, and then among the siblings of the catalogue's models: the real config is better than a sibling's. A
quant of a GGUF repository (`org/name:Q4_K_M`) is looked for in the cache, on the hub, and then planned from the
catalogue's model. A name without an organisation is looked for among Brim's own models, in the catalogue, and among
siblings; one with a tag (`qwen3:8b`) is read as Ollama has them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brim.errors import HubUnreachable, SourceNotFound
from brim.model import hub
from brim.model.catalogue import CatalogueEntry, entries, find_entry
from brim.model.checkpoint import stored_weights
from brim.model.config import UnlistedReader, read_config
from brim.model.gguf.files import SUFFIX, find_files, has_gguf
from brim.model.gguf.planned import entry_of_repository, in_format, is_format, ollama_model
from brim.model.jsonfile import read_object
from brim.model.names import HUB_ID, NameKind, WrittenName, is_address, parse_name
from brim.model.packaged import packaged_folder, packaged_names
from brim.model.siblings import find_sibling
from brim.records.model import ModelSpec
from brim.suggest import did_you_mean, shown, suggestions

if TYPE_CHECKING:
    from brim.model.gguf.load import GgufModel

_SIDE_FILES = ("hf_quant_config.json", "preprocessor_config.json", "model.safetensors.index.json")


@dataclass(frozen=True, slots=True)
class _Located:
    """Where a model's config is: in a file, in the catalogue, or in the header of a GGUF file.

    `format` is that of a GGUF file that is not here. `source` is what an engine loads the model by, where that is not
    what was written. `warning`: why that is not exactly what was named.
    """

    name: str
    config: Path | None = None
    entry: CatalogueEntry | None = None
    gguf: GgufModel | None = None
    format: str | None = None
    source: str | None = None
    warning: str | None = None


def load_model(source: str, *, unlisted: UnlistedReader | None = None) -> ModelSpec:
    """A spec from whatever the user wrote. `unlisted` reads configs of families that Brim has no reader for."""
    found = _locate(source)
    if found.gguf is not None:
        from brim.model.gguf.load import spec_of

        return replace(spec_of(found.gguf, unlisted), source=found.source)
    if found.entry is not None:
        spec = _from_catalogue(found.entry.name)
        spec = spec if found.format is None else in_format(spec, found.format)
        if found.warning is None:
            return spec
        named = found.source or spec.source
        return replace(spec, source=named, warnings=(found.warning, *spec.warnings))
    assert found.config is not None
    return replace(_from_file(found.config, found.name, unlisted), source=_loaded_by(source, found))


def _loaded_by(source: str, found: _Located) -> str:
    """What an engine loads a model by: its hub id, or the directory that its config is in."""
    if found.source is not None or found.name == source:
        return found.source or source
    return str(Path(source).parent) if source.endswith(".json") else source


def load_config(source: str) -> tuple[str, dict[str, Any]]:
    """(name, config dict) from whatever the user wrote, for running the model's own code."""
    found = _locate(source)
    if found.gguf is not None:
        from brim.model.gguf.load import config_and_name

        return config_and_name(found.gguf)
    if found.entry is not None:
        return found.name, found.entry.config
    assert found.config is not None
    return found.name, read_object(found.config)


def _locate(source: str) -> _Located:
    if not source.strip():
        raise SourceNotFound(
            "model is empty; give a directory, a config.json, a GGUF file, a catalogue name or a hub id"
        )
    try:
        path = Path(source).expanduser()
        exists = path.exists()
        folder, variant = _folder_and_variant(source)
    except (OSError, ValueError, RuntimeError):
        raise SourceNotFound(f"model '{source[:60]}' is neither a path nor a name") from None
    if exists:
        return _in_directory(path, path.resolve().name) if path.is_dir() else _at_file(path)
    if folder is not None:
        return _in_gguf(folder, variant)
    if source.startswith((".", "/", "~")) or (source.lower().endswith((".json", SUFFIX)) and not is_address(source)):
        raise SourceNotFound(
            f"{source[:200]}: no such file or directory; give a model directory, a config.json or a GGUF file"
        )
    written = parse_name(source)
    if written.kind is NameKind.HUB:
        return _by_hub_quant(written) if written.tag or written.file else _by_hub_id(source, written.name)
    return _by_tag(written) if written.kind is NameKind.TAGGED else _by_name(source)


def _folder_and_variant(source: str) -> tuple[Path | None, str]:
    """(folder, variant) of `folder:Q4_K_M`; None where that is no folder."""
    before, _, variant = source.rpartition(":")
    folder = Path(before).expanduser()
    return (folder, variant) if before and variant and folder.is_dir() else (None, "")


def is_hub_id(source: str) -> bool:
    """Whether this is written like org/name of the hub, and is no path of this machine."""
    return bool(HUB_ID.fullmatch(source)) and not source.startswith(".") and not Path(source).exists()


def _by_hub_id(source: str, name: str) -> _Located:
    """A repository; `source` is how it was written, which may be an address."""
    cached = hub.cached_snapshot(name)
    if cached is not None:
        return replace(_in_directory(cached, name), source=name)
    entry = find_entry(name)
    if entry is not None:
        return _Located(entry.name, entry=entry)
    try:
        if "gguf" in name.lower():
            return _by_hub_quant(WrittenName(NameKind.HUB, name))
        return replace(_in_directory(hub.download(name, _SIDE_FILES), name), source=name)
    except SourceNotFound:
        sibling = find_sibling(name)
        if sibling is None:
            raise
        return replace(_as_sibling(source, sibling), source=name)


def _by_hub_quant(written: WrittenName) -> _Located:
    """A quant of a GGUF repository, or a file of one."""
    from brim.model.gguf.files import variant_of
    from brim.model.gguf.remote import cached_model, remote_model

    if written.file is not None and not written.file.lower().endswith(SUFFIX):
        return _by_hub_id(written.name, written.name)
    variant = written.tag or (variant_of(written.file) if written.file else None)
    source = f"{written.name}:{variant}" if variant else written.name
    found = cached_model(written.name, variant)
    if found is not None:
        return _Located(found.name, gguf=found, source=source)
    try:
        found = remote_model(written.name, written.tag, written.file)
        return _Located(found.name, gguf=found, source=source)
    except HubUnreachable as error:
        return _planned_quant(written.name, variant, source, error)


def _planned_quant(repository: str, variant: str | None, source: str, why: HubUnreachable) -> _Located:
    """The catalogue's model in a format, where the repository cannot be asked."""
    entry = entry_of_repository(repository)
    if entry is None:
        raise why
    if variant is None:
        raise SourceNotFound(
            f"model '{repository}' is a GGUF repository, and the hub cannot be asked for its files; name a quant of "
            f"it, such as {repository}:Q4_K_M"
        )
    warning = (
        f"'{source}' is planned as {entry.name} of the catalogue ({entry.hub_id}) in {variant.upper()} as llama.cpp "
        "quantises it: its file was not read; give the GGUF file to be exact"
    )
    return _Located(entry.name, entry=entry, format=variant, source=source, warning=warning)


def _by_tag(written: WrittenName) -> _Located:
    """`qwen3-8b:Q4_K_M` of the catalogue, or `qwen3:8b` as Ollama has it."""
    tag = written.tag or ""
    entry = find_entry(written.name) or find_sibling(written.name)
    if entry is not None and is_format(tag):
        warning = f"planned as a GGUF file of {entry.name} in {tag.upper()}, as llama.cpp quantises it"
        return _Located(entry.name, entry=entry, format=tag, warning=warning)
    entry, stored, warning = ollama_model(written.name, tag)
    return _Located(entry.name, entry=entry, format=stored, warning=warning)


def _by_name(source: str) -> _Located:
    own = packaged_folder(source)
    if own is not None:
        return _in_directory(own, source)
    entry = find_entry(source)
    if entry is not None:
        return _Located(entry.name, entry=entry)
    sibling = find_sibling(source)
    if sibling is not None:
        return _as_sibling(source, sibling)
    near = suggestions(source, (*entries(), *packaged_names()))
    raise SourceNotFound(
        f"model '{shown(source)}' is not in the catalogue; {did_you_mean(near)}give a directory, a config.json, a "
        "GGUF file or an org/name of the hub (`brim models` lists the catalogue)"
    )


def _as_sibling(source: str, entry: CatalogueEntry) -> _Located:
    warning = (
        f"'{shown(source)}' is taken as {entry.name} of the catalogue ({entry.hub_id}): base and tuned models have the "
        "same layers, but context and vocabulary may differ; give the model's own config.json to be exact"
    )
    return _Located(entry.name, entry=entry, warning=warning)


def _in_directory(directory: Path, name: str) -> _Located:
    """A folder's config.json; its GGUF file where it has no other weights beside one."""
    config = directory / "config.json"
    if not any(directory.glob("*.safetensors*")) and has_gguf(directory):
        return _in_gguf(directory, None)
    if not config.exists():
        raise SourceNotFound(f"{directory}: no config.json and no GGUF file in it; give a model directory")
    return _Located(name, config)


def _in_gguf(path: Path, variant: str | None) -> _Located:
    from brim.model.gguf.load import read_files

    files = find_files(path, variant)
    return _Located(files.name, gguf=read_files(files), source=str(files.parts[0]))


def _at_file(path: Path) -> _Located:
    if path.suffix.lower() == SUFFIX or _begins_like_gguf(path):
        return _in_gguf(path, None)
    return _Located(path.resolve().parent.name or "model" if path.name == "config.json" else path.stem, path)


def _begins_like_gguf(path: Path) -> bool:
    """Whether a file is a GGUF file under another name, as in Ollama's store of blobs."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError:
        return False


def _from_file(config: Path, name: str, unlisted: UnlistedReader | None) -> ModelSpec:
    """A spec from a config file; one called config.json has a model's other files beside it."""
    if config.name != "config.json":
        return read_config(read_object(config), name=name, unlisted=unlisted)
    spec = read_config(
        read_object(config),
        name=name,
        quantisation=_side_file(config, "hf_quant_config.json"),
        processor=_side_file(config, "preprocessor_config.json"),
        unlisted=unlisted,
    )
    stored = stored_weights(config.parent, len(spec.layers))
    return spec if stored is None else replace(spec, files_bytes=stored.bytes, files_detail=stored.detail)


def _side_file(config: Path, name: str) -> dict[str, Any] | None:
    path = config.with_name(name)
    return read_object(path) if path.is_file() else None


@cache
def _from_catalogue(name: str) -> ModelSpec:
    entry = entries()[name]
    return replace(read_config(entry.config, name=name), source=entry.hub_id)
