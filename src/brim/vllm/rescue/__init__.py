"""Rescue inside vLLM: a step that runs out of memory costs one request at most.

vLLM's scheduler and its worker may live in different processes, and the core calls both. So the two sides talk through
what vLLM itself carries: a scheduled step says of which epoch it is (`marks`), and the result of one that failed is a
`FailedStep`. The worker's side is `guarded`, the scheduler's `scheduler`, which asks `retry` what to run and puts the
requests back by `undo`. The decisions are those of `brim.guard`.
"""
