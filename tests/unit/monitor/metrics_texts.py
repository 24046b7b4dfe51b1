"""`/metrics` in the forms of the engines, with counts that can be set."""

from __future__ import annotations

from collections.abc import Mapping


def histogram(name: str, labels: str, reached: Mapping[str, float], seconds: float = 1.0) -> str:
    """Counts up to each bound, as Prometheus' clients write them."""
    lines = [f"# HELP {name} Histogram.", f"# TYPE {name} histogram", f"{name}_sum{{{labels}}} {seconds}"]
    lines += [f'{name}_bucket{{{labels},le="{bound}"}} {count}' for bound, count in reached.items()]
    return "\n".join([*lines, f"{name}_count{{{labels}}} {list(reached.values())[-1]}", ""])


def vllm(
    generated: float = 5000.0, preemptions: float = 3.0, first: float = 10.0, engines: int = 1, model: str = "org/model"
) -> str:
    """vLLM 0.26 and newer; `first`: requests whose first token came within 0.25 s."""
    text = '# HELP python_info Python\npython_info{version="3.12"} 1.0\nprocess_start_time_seconds 1000.0\n'
    for engine in range(engines):
        labels = f'engine="{engine}",model_name="{model}"'
        text += f"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{{labels}}} 8.0
vllm:num_requests_waiting{{{labels}}} 3.0
vllm:num_requests_waiting_by_reason{{{labels},reason="capacity"}} 3.0
vllm:kv_cache_usage_perc{{{labels}}} 0.75
vllm:prefix_cache_queries_total{{{labels}}} 1000.0
vllm:prefix_cache_queries_created{{{labels}}} 1.7e+09
vllm:prefix_cache_hits_total{{{labels}}} 400.0
vllm:num_preemptions_total{{{labels}}} {preemptions}
vllm:prompt_tokens_total{{{labels}}} 20000.0
vllm:generation_tokens_total{{{labels}}} {generated}
vllm:request_success_total{{{labels},finished_reason="stop"}} 40.0
vllm:request_success_total{{{labels},finished_reason="length"}} 2.0
vllm:cache_config_info{{block_size="16",cache_dtype="auto",engine="{engine}",num_gpu_blocks="1000",sink="None"}} 1.0
"""
        text += histogram(
            "vllm:time_to_first_token_seconds", labels, {"0.1": 0.0, "0.25": first, "0.5": first, "+Inf": first}
        )
        text += histogram(
            "vllm:inter_token_latency_seconds",
            labels,
            {"0.01": 0.0, "0.025": 9 * first, "0.05": 10 * first, "+Inf": 10 * first},
        )
    return text


def sglang(*, ranks: int = 1, priorities: bool = False, counted: bool = True) -> str:
    """SGLang with --enable-metrics; `counted`: of a version that counts tokens of the pool."""
    text = ""
    for rank in range(ranks):
        for priority in ("", "1", "2") if priorities else (None,):
            own = "" if priority is None else f',priority="{priority}"'
            labels = f'engine_type="unified",model_name="org/other",moe_ep_rank="0",pp_rank="0"{own},tp_rank="{rank}"'
            text += f"""# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{{{labels}}} 12.0
sglang:num_queue_reqs{{{labels}}} 5.0
sglang:token_usage{{{labels}}} 0.25
sglang:max_total_num_tokens{{{labels}}} 8000.0
sglang:kv_cache_memory_usage_gb{{{labels}}} 2.0
sglang:weight_memory_usage_gb{{{labels}}} 15.0
sglang:num_retracted_requests_total{{{labels}}} 7.0
"""
            if counted:
                text += f"""sglang:kv_used_tokens{{{labels}}} 2000.0
sglang:kv_evictable_tokens{{{labels}}} 4000.0
sglang:kv_available_tokens{{{labels}}} 2000.0
"""
    labels = 'engine_type="unified",model_name="org/other"'
    text += f"""sglang:prompt_tokens_total{{{labels}}} 100.0
sglang:generation_tokens_total{{{labels}}} 50.0
sglang:cached_tokens_total{{cache_source="device",{labels}}} 30.0
sglang:num_requests_total{{{labels}}} 9.0
"""
    for streaming in ("true", "false"):
        text += histogram(
            "sglang:time_to_first_token_seconds",
            f'is_streaming="{streaming}",{labels}',
            {"0.1": 5.0, "0.2": 5.0, "+Inf": 5.0},
        )
    return text


BRIM = """# TYPE brim_state gauge
brim_state{state="ready"} 1.0
brim_running 2.0
brim_waiting 1.0
brim_kv_blocks{state="held"} 5.0
brim_kv_blocks{state="cached"} 1.0
brim_kv_blocks{state="free"} 4.0
brim_kv_bytes 1.048576e+06
vllm:num_requests_running 2.0
vllm:kv_cache_usage_perc 0.5
vllm:cache_config_info{block_size="16",num_gpu_blocks="10"} 1.0
"""
