"""Brim on Ray Serve: replicas on several GPUs and machines, with requests routed by memory (docs/ray.md).

    serve run brim.ray:app model=brim-tiny replicas=2

Ray does placement, restarts and networking; `brim.guard.routing` decides by memory. The only package that imports Ray.
"""

from __future__ import annotations

from brim.ray.application import app
from brim.ray.arguments import AppArguments, ModelArguments

__all__ = ["AppArguments", "ModelArguments", "app"]
