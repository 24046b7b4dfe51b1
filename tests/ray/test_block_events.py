"""Block events as a gateway subscribes to them, from a server that was asked to publish them."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("zmq")
pytest.importorskip("msgpack")

import msgpack
import zmq

from brim.errors import InvalidRequest
from brim.serve.block_events import BlockPublisher
from tests.integration.served import served
from tests.integration.test_chat import engine_of
from tests.ray.cluster import free_port


def test_a_subscriber_sees_what_is_stored() -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    with zmq.Context() as context, context.socket(zmq.SUB) as subscriber:
        subscriber.setsockopt(zmq.SUBSCRIBE, b"kv@tiny")
        subscriber.connect(address)
        engine = engine_of(copy=7, kv_tokens=2048)
        with served(engine, threads=True, kv_events=address, kv_events_topic="kv@tiny") as one:
            time.sleep(0.3)
            prompt = list(range(5, 45))
            assert one.post("/v1/completions", {"prompt": prompt, "max_tokens": 4, "ignore_eos": True}).is_success
            found, numbers = [], []
            while not any(event[0] == "BlockStored" for event in found):
                assert subscriber.poll(10_000), "nothing was published"
                topic, number, batch = subscriber.recv_multipart()
                seconds, events = msgpack.unpackb(batch)
                assert topic == b"kv@tiny"
                assert abs(seconds - time.time()) < 60
                numbers.append(int.from_bytes(number, "big"))
                found += events
    assert numbers == sorted(set(numbers))
    stored = [event for event in found if event[0] == "BlockStored"]
    _, hashes, parent, tokens, size, *_ = stored[0]
    assert parent is None
    assert (size, len(tokens)) == (8, 8 * len(hashes))
    assert [token for event in stored for token in event[3]][: len(prompt) // 8 * 8] == prompt[: len(prompt) // 8 * 8]
    assert all(0 <= one < 1 << 64 for one in hashes)


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="kv-events nowhere"):
        BlockPublisher("nowhere", "")
