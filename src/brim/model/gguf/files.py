"""Which files are a model: parts of a split file, the variants in a folder, and the projector beside them.

In: a file or folder, and the variant that was asked for ("Q4_K_M"), where there was one. Out: `GgufFiles`. What is no
single model is an error that lists the variants and says how to choose. Only names are looked at here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from brim.errors import InvalidRequest, SourceNotFound

SUFFIX = ".gguf"
_SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_TYPE = r"(?:ud-)?(?:i?q\d[a-z0-9_]*|tq\d_\d|bf16|fp?16|fp?32|mxfp4[a-z0-9_]*|nvfp4)"
_VARIANT = re.compile(rf"(?:^|[-_.])({_TYPE})(?=$|[-_.])", re.IGNORECASE)
_PROJECTOR = "mmproj"
_PREFERRED = ("f16", "bf16", "q8_0", "f32")  # where a projector is there in several types
_MOST_LISTED = 20


@dataclass(frozen=True, slots=True)
class GgufFiles:
    """The files of one model: all parts in order, and projectors beside it, the best first."""

    name: str
    parts: tuple[Path, ...]
    projectors: tuple[Path, ...] = ()


def find_files(path: Path, variant: str | None = None) -> GgufFiles:
    """The files of the model at a path."""
    if path.is_dir():
        return _in_folder(path, variant)
    if variant is not None:
        raise InvalidRequest(f"{path.name}:{variant[:40]}: a variant is chosen in a folder, and this is a file")
    return of_file(path, [file for file in _gguf_in(path.parent) if file.parent == path.parent])


def of_file(path: Path, beside: Iterable[Path]) -> GgufFiles:
    """The model that a file is, or is a part of."""
    if is_projector(path.name):
        raise InvalidRequest(
            f"{path.name} is a multimodal projector, which is a part of a model; give the model's own file: the "
            "projector beside it is counted with it"
        )
    projectors = sorted((file for file in beside if is_projector(file.name)), key=_preference)
    return GgufFiles(model_name(path.name), tuple(_parts(path)), tuple(projectors))


def model_name(name: str) -> str:
    """A file's name without its ending and without the number of its part."""
    found = _SPLIT.fullmatch(name)
    return found["stem"] if found else re.sub(r"\.gguf$", "", name, flags=re.IGNORECASE)


def variant_of(name: str) -> str:
    """The type that a file's name ends in: "Q4_K_M"; "" where it has none."""
    found = _VARIANT.findall(model_name(name))
    return found[-1].upper() if found else ""


def is_projector(name: str) -> bool:
    return _PROJECTOR in name.lower()


def has_gguf(folder: Path) -> bool:
    """Whether there are GGUF files in a folder."""
    return bool(_gguf_in(folder))


def choose(names: Iterable[str], variant: str | None, where: str) -> str:
    """The first file of the one model among these names; `where` is what they are in."""
    firsts = [name for name in sorted(names) if _is_first(name) and not is_projector(name)]
    if not firsts:
        raise SourceNotFound(f"{where}: no GGUF file of a model in it; give a folder or repository that has one")
    fitting = firsts if variant is None else _of_variant(firsts, variant)
    if len(fitting) == 1:
        return fitting[0]
    shown = fitting or firsts
    listed = ", ".join(_choice(name) for name in shown[:_MOST_LISTED]) + (", ..." if len(shown) > _MOST_LISTED else "")
    what = "no" if not fitting else f"{len(fitting)}"
    asked = f" {variant[:40]}" if variant else ""
    example = next((found for name in shown if (found := variant_of(name))), shown[0].rpartition("/")[2])
    raise SourceNotFound(f"{where}: {what}{asked} models in it ({listed}); choose one, such as {where}:{example}")


def _in_folder(folder: Path, variant: str | None) -> GgufFiles:
    files = {str(file.relative_to(folder)): file for file in _gguf_in(folder)}
    if not any(not is_projector(name) for name in files) and files:
        raise SourceNotFound(f"{folder}: it has a multimodal projector and no model; put the model's file beside it")
    chosen = files[choose(files, variant, str(folder))]
    return of_file(chosen, [file for file in files.values() if file.parent in (folder, chosen.parent)])


def _of_variant(names: list[str], variant: str) -> list[str]:
    """By type; else by a part of the name."""
    wanted = variant.lower()
    by_type = [name for name in names if variant_of(name).lower() == wanted]
    by_folder = [name for name in names if wanted in name.lower().split("/")[:-1]]
    by_name = [name for name in names if name.lower() in (wanted, wanted + SUFFIX)]
    return by_type or by_folder or by_name or [name for name in names if wanted in name.lower()]


def _choice(name: str) -> str:
    return variant_of(name) or name


def _gguf_in(folder: Path) -> list[Path]:
    """Those in a folder, and in folders in it, where repositories keep the parts of large files."""
    try:
        found = [*folder.glob("*"), *folder.glob("*/*")]
        return sorted(file for file in found if file.suffix.lower() == SUFFIX and file.is_file())
    except OSError as error:
        raise SourceNotFound(f"{folder}: cannot be read ({error.strerror or error})") from None


def _is_first(name: str) -> bool:
    found = _SPLIT.fullmatch(name.rpartition("/")[2])
    return found is None or int(found["number"]) == 1


def part_names(name: str) -> list[str]:
    """The names of all parts of a file that may be one of several."""
    found = _SPLIT.fullmatch(name)
    if found is None:
        return [name]
    count = int(found["count"])
    if not 1 <= int(found["number"]) <= count:
        raise SourceNotFound(f"{name}: is part {int(found['number'])} of {count}; the name of the file is wrong")
    return [f"{found['stem']}-{one:05}-of-{count:05}{name[-len(SUFFIX) :]}" for one in range(1, count + 1)]


def _parts(path: Path) -> list[Path]:
    names = part_names(path.name)
    missing = [name for name in names if not path.with_name(name).is_file()]
    if missing:
        listed = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise SourceNotFound(
            f"{path.name}: {len(missing)} of its {len(names)} parts are not beside it ({listed}); download them too"
        )
    return [path.with_name(name) for name in names]


def _preference(path: Path) -> tuple[int, str]:
    found = variant_of(path.name).lower()
    return (_PREFERRED.index(found) if found in _PREFERRED else len(_PREFERRED), path.name)
