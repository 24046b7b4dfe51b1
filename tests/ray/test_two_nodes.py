"""Replicas on two nodes: two raylets on this machine. A Ray of its own, so it runs after the others."""

from __future__ import annotations

import pytest

pytest.importorskip("ray.serve")

import ray
from ray import serve
from ray.cluster_utils import Cluster

from tests.ray.cluster import SMALL, OnRay, deploy, free_port, message, wait


def test_a_replica_on_each_of_two_nodes() -> None:
    if ray.is_initialized():
        serve.shutdown()
        ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 80 << 20})
    try:
        cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        port = free_port()
        serve.start(http_options={"host": "127.0.0.1", "port": port, "location": "HeadOnly"})
        found = OnRay(f"http://127.0.0.1:{port}", logs=None)  # type: ignore[arg-type]
        deploy(found, {"model": "brim-tiny", "replicas": 2, "cpus": 1, "options": SMALL})  # one fits each node
        nodes = {one["NodeID"] for one in ray.nodes() if one["Alive"]}
        handle = serve.get_deployment_handle("engine-brim-tiny", "default")
        where = set(handle.broadcast("node").results())
        assert where == nodes
        assert len(nodes) == 2
        for number in range(6):
            answer = found.post("/v1/chat/completions", {"messages": [message(f"{number}")], "max_tokens": 4})
            assert answer.status_code == 200
        wait(lambda: all(one["kv"]["blocks"] > 0 for one in found.replicas()))
    finally:
        serve.shutdown()
        ray.shutdown()
        cluster.shutdown()
