"""Sizes that are fixed in vLLM, torch and the libraries they call. Read off an H200 where they depend on the device."""

from __future__ import annotations

from brim.units import KIB, MIB

ELEMENT_BYTES = 2  # of activations and logits: models in fp32 are run in bf16 too
FP32_BYTES = 4
INT32_BYTES = 4
BLOCK_TOKENS = 16
STEPS_IN_FLIGHT = 2  # the next step is scheduled while one runs: what is behind a window is freed after both
VOCAB_PADDING = 64
LARGEST_CAPTURE = 512  # tokens of the largest step that becomes a graph
ATTENTION_SPLITS = 32  # parts of the context that attention in a captured step may be split into
LATENT_CONTEXT_TOKENS = 64 * KIB  # of an earlier context that MLA expands at once, at most
MULTIPROCESSORS = 132
CACHE_FLUSH_BYTES = 60 * MIB  # as large as the L2 cache: written between timings of a kernel
MATRIX_WORKSPACE_BYTES = 32 * MIB  # of the matrix library, for each stream
LIBRARIES_BYTES = 230 * MIB  # outside torch, from the first snapshot to the end of the profile
