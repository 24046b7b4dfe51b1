"""Messages between processes, and tensors in shared memory."""

from __future__ import annotations

import socket
import struct

import pytest
import torch

from brim.engine.encoders.areas import Area, needed_bytes, read_tensors, write_tensors
from brim.engine.encoders.wire import Wire, WireClosed


def test_messages_arrive_whole_and_in_order() -> None:
    left, right = socket.socketpair()
    one, other = Wire(left), Wire(right)
    assert list(other.arrived()) == []
    one.send({"op": "a"})
    one.send({"op": "b", "text": "x" * 100_000})
    assert [message["op"] for message in (other.receive(), other.receive())] == ["a", "b"]
    body = b'{"op": "c"}'
    left.sendall(struct.pack("<I", len(body)) + body[:4])
    assert list(other.arrived()) == []
    left.sendall(body[4:])
    assert list(other.arrived()) == [{"op": "c"}]
    one.close()
    with pytest.raises(WireClosed):
        list(other.arrived())
    other.close()


def test_the_last_words_of_a_process_that_has_gone_are_heard() -> None:
    left, right = socket.socketpair()
    one, other = Wire(left), Wire(right)
    one.send({"op": "cannot"})
    one.close()
    assert list(other.arrived()) == [{"op": "cannot"}]
    with pytest.raises(WireClosed):
        list(other.arrived())
    other.close()


@pytest.mark.parametrize("body", [b"[1]", b"{", b"\xff\xfe"])
def test_what_is_no_message_ends_the_connection(body: bytes) -> None:
    left, right = socket.socketpair()
    left.sendall(struct.pack("<I", len(body)) + body)
    with left, pytest.raises(WireClosed):
        Wire(right).receive()
    right.close()


def test_a_length_beyond_reason_is_refused() -> None:
    left, right = socket.socketpair()
    left.sendall(struct.pack("<I", 1 << 31))
    with left, pytest.raises(WireClosed, match="2147483648 bytes"):
        Wire(right).receive()
    right.close()


def test_tensors_in_an_area_are_those_that_were_written() -> None:
    area = Area.make()
    inputs = {"pixels": torch.randn(3, 5), "grid": torch.tensor([[1, 2, 3]]), "half": torch.ones(7).bfloat16()}
    area.resize(needed_bytes(inputs))
    described, end = write_tensors(area, inputs, 0)
    assert end == needed_bytes(inputs)
    found = read_tensors(area, described)
    assert all(torch.equal(found[name], tensor) for name, tensor in inputs.items())
    for wrong in ({"start": end}, {"start": -8}, {"shape": [1 << 40]}, {"shape": [-1, 5]}, {"dtype": "object"}):
        with pytest.raises(ValueError, match=r"not in the area|no type"):
            read_tensors(area, [{**described[0], **wrong}])
    area.close()
