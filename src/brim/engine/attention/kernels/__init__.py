"""Brim's Triton kernels over paged keys and values, and the sizes they are launched with."""
