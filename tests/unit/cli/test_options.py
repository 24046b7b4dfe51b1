from __future__ import annotations

from brim.cli.options import gpu_names


def test_names_are_compared_and_numbers_are_a_node() -> None:
    assert gpu_names(["h100,h200", "l4"]) == ["h100", "h200", "l4"]
    assert gpu_names(["0,1"]) == ["0,1"]
    assert gpu_names(["0, 1, 2", "8xh100"]) == ["0, 1, 2", "8xh100"]
    assert gpu_names(["4090,3090"]) == ["4090", "3090"]
    assert gpu_names(["0,h100"]) == ["0", "h100"]
    assert gpu_names([]) == []
