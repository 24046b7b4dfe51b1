"""Headers: every type of tensor, as the package writes and reads it, and whatever else a file may hold."""

from __future__ import annotations

import struct
import time
import tracemalloc
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.errors import BrimError, InvalidConfig, SourceNotFound
from brim.model.gguf.configs import ARCHITECTURES
from brim.model.gguf.header import GgufHeader, GgufTensor, read_header, read_header_file
from brim.model.gguf.load import GgufModel, spec_of
from brim.model.quantisers.ggml_types import GGML_TYPES
from brim.model.quantisers.weight_formats import matrix_bytes
from brim.units import MIB
from tests.unit.model.gguf.making import F32, KEYS, stored_bytes, tensors, write

TYPES = list(gguf.GGML_QUANT_SIZES)


def test_the_table_of_types_is_the_package_s() -> None:
    for kind, (block, size) in gguf.GGML_QUANT_SIZES.items():
        found = GGML_TYPES[int(kind)]
        assert (found.name, found.block, found.block_bytes) == (kind.name.lower(), block, size)
        assert matrix_bytes(found.format, 48, 8 * 256) == 48 * 8 * 256 // block * size


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_tensors_of_every_type_have_the_package_s_bytes(tmp_path: Path, kind: gguf.GGMLQuantizationType) -> None:
    if kind.name in ("I8", "I16", "I32", "I64", "F64", "BF16"):
        stored = {"plain": ((6, 256), F32), "other": ((4, 3, 512), kind)}
    else:
        stored = {"matrix": ((6, 256), kind), "experts": ((4, 3, 512), kind), "norm": ((256,), F32)}
    path = write(tmp_path / "model.gguf", stored=stored)
    by_package = {tensor.name: int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors}
    found = read_header_file(path)
    assert {tensor.name: tensor.bytes for tensor in found.tensors} == by_package
    assert {tensor.name: tensor.shape for tensor in found.tensors} == {
        name: shape for name, (shape, _) in stored.items()
    }


def test_metadata_without_the_tokenizer(tmp_path: Path) -> None:
    general = {
        "general.file_type": 15,
        "llama.rope.freq_base": 5e5,
        "llama.pattern": [True, False],
        "general.long": "x" * 9999,
    }
    found = read_header_file(write(tmp_path / "model.gguf", general=general))
    assert found.architecture == "llama"
    assert found.metadata == {
        "general.architecture": "llama",
        "general.file_type": 15,
        **{f"llama.{key}": value for key, value in KEYS.items()},
        "llama.rope.freq_base": 5e5,
        "llama.pattern": [True, False],
    }
    assert sum(tensor.bytes for tensor in found.tensors) == stored_bytes(tensors())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write(tmp_path_factory.mktemp("gguf") / "model.gguf").read_bytes()


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def head(version: int = 3, tensors: int = 0, keys: int = 1) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is not a GGUF file"),
    "another file": (b"PK\3\4" + bytes(64), "is not a GGUF file"),
    "a pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1", "Git LFS pointer.*git lfs pull"),
    "an older format": (b"tjgg" + bytes(64), "older than GGUF"),
    "version 1": (b"GGUF" + struct.pack("<III", 1, 0, 0), "version 1 of GGUF, and 2 and 3 are read"),
    "version 9": (head(9), "version 9 of GGUF"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "only a head": (head(), "truncated: it ends inside its header"),
    "many keys": (head(keys=1 << 60), "1,152,921,504,606,846,976 metadata keys, more than any model"),
    "many tensors": (head(tensors=1 << 60), "tensors, more than any model"),
    "a long key": (head() + struct.pack("<Q", 1 << 50), "a metadata key of 1,125,899,906,842,624 bytes"),
    "a key that is not text": (head() + text(b"\xff\xfe"), "a metadata key that is not text"),
    "an unknown type": (head() + text(b"a") + struct.pack("<I", 77), "a value of unknown type 77"),
    "a long text": (head() + text(b"a") + struct.pack("<IQ", 8, 1 << 62), "truncated"),
    "many texts": (head() + text(b"a") + struct.pack("<IIQ", 9, 8, 1 << 62), "texts in the array 'a', more than"),
    "many numbers": (head() + text(b"a") + struct.pack("<IIQ", 9, 4, 1 << 62), "truncated"),
    "arrays of arrays": (head() + text(b"a") + struct.pack("<IIQ", 9, 9, 2), "an array of arrays"),
    "an array of nothing known": (head() + text(b"a") + struct.pack("<IIQ", 9, 50, 2), "an array of unknown type 50"),
    "the same key twice": (head(keys=2) + 2 * (text(b"a") + struct.pack("<II", 4, 1)), "the key 'a' twice"),
    "an odd alignment": (head() + text(b"general.alignment") + struct.pack("<II", 4, 33), "no power of two"),
    "many dimensions": (head(tensors=1, keys=0) + text(b"t") + struct.pack("<I", 9), "of 9 dimensions"),
    "a huge tensor": (
        head(tensors=1, keys=0) + text(b"t") + struct.pack("<IQQIQ", 2, 1 << 40, 1 << 40, 0, 0),
        "of a shape that f32 cannot have",
    ),
    "a row that is no whole block": (
        head(tensors=1, keys=0) + text(b"t") + struct.pack("<IQIQ", 1, 100, 12, 0),
        "of a shape that q4_k cannot have",
    ),
    "an unknown tensor type": (
        head(tensors=1, keys=0) + text(b"t") + struct.pack("<IQIQ", 1, 256, 99, 0),
        "of type 99, which is not known; it may be of a newer llama.cpp",
    ),
    "tensors behind the end": (
        head(tensors=1, keys=0) + text(b"t") + struct.pack("<IQIQ", 1, 256, 0, 0),
        r"truncated: 1,0\d\d bytes of tensors are missing",
    ),
    "the same tensor twice": (
        head(tensors=2, keys=0) + 2 * (text(b"t") + struct.pack("<IQIQ", 1, 0, 0, 0)),
        "the tensor 't' twice",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_wrong_is_said_in_bounded_memory(tmp_path: Path, kind: str) -> None:
    content, message = HOSTILE[kind]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidConfig, match=f"'bad.gguf': .*{message}") as caught:
            read_header_file(path)
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)


class Endless(BytesIO):
    """A file that claims to be as large as it likes: zeros without end behind what it begins with."""

    def read(self, size: int | None = -1) -> bytes:
        found = super().read(size)
        return found + bytes((size or 0) - len(found))


def test_a_header_without_end_is_given_up() -> None:
    """The worst that a large file can do: millions of empty texts."""
    begin = head(keys=9) + text(b"a") + struct.pack("<IIQ", 9, 8, 7 << 20)
    started = time.perf_counter()
    with pytest.raises(InvalidConfig, match=r"'large\.gguf': "):
        read_header(Endless(begin), "large.gguf", 1 << 40)
    assert time.perf_counter() - started < 20


def read_or_refuse(content: bytes) -> None:
    """Either a model, or an error in Brim's words."""
    with suppress(BrimError):
        header = read_header(BytesIO(content), "m.gguf", len(content))
        spec_of(GgufModel("m", header, 1))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_damaged_files_are_read_or_refused(whole: bytes, data: st.DataObject) -> None:
    header_bytes = 11_000  # where the header of this file ends, about
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, header_bytes))
        change = data.draw(st.sampled_from(["flip", "insert", "delete", "number", "cut"]))
        if change == "flip":
            content[at] ^= data.draw(st.integers(1, 255))
        elif change == "insert":
            content[at:at] = data.draw(st.binary(min_size=1, max_size=16))
        elif change == "delete":
            del content[at : at + data.draw(st.integers(1, 32))]
        elif change == "number":
            content[at : at + 8] = struct.pack("<Q", data.draw(st.integers(0, (1 << 64) - 1)))
        else:
            del content[at:]
            content += bytes(header_bytes)
    read_or_refuse(bytes(content))


_NUMBERS = st.one_of(st.integers(0, 5), st.integers(0, (1 << 64) - 1), st.just(256))
_VALUES = st.one_of(
    _NUMBERS, st.booleans(), st.floats(), st.just("text"), st.lists(st.one_of(_NUMBERS, st.floats()), max_size=4)
)
_ANY_KEY = st.sampled_from(
    [
        *KEYS,
        *(
            "attention.key_length",
            "attention.sliding_window",
            "attention.sliding_window_pattern",
            "rope.dimension_count",
        ),
        *("attention.kv_lora_rank", "attention.q_lora_rank", "attention.shared_kv_layers", "attention.value_length"),
        *("expert_count", "expert_used_count", "expert_feed_forward_length", "expert_shared_feed_forward_length"),
        *("nextn_predict_layers", "leading_dense_block_count", "shortconv.l_cache", "full_attention_interval"),
        *("ssm.inner_size", "ssm.state_size", "ssm.time_step_rank", "ssm.group_count", "ssm.conv_kernel"),
    ]
)


@settings(max_examples=25, deadline=None)
@given(keys=st.dictionaries(_ANY_KEY, _VALUES, max_size=6))
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_any_values_of_keys_are_read_or_refused(architecture: str, keys: dict[str, object]) -> None:
    metadata = {f"{architecture}.{key}": value for key, value in {**KEYS, **keys}.items()}
    tensor = GgufTensor("token_embd.weight", (32, 256), GGML_TYPES[0])
    header = GgufHeader("m.gguf", {"general.architecture": architecture, **metadata}, (tensor,))
    with suppress(BrimError):
        spec_of(GgufModel("m", header, 1))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").mkdir()
    with pytest.raises(SourceNotFound, match="not a regular file"):
        read_header_file(tmp_path / "a.gguf")
