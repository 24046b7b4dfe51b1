"""The application: a deployment of engines for each model, and one of front ends, which is the ingress.

    serve run brim.ray:app model=brim-tiny replicas=2

`app` is the builder that Ray Serve calls with its arguments. Everything that can be wrong is found here, before
anything is placed: options, keys, and models that do not fit their GPU.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ray
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

from brim.cli.serve import check_options, serve_settings
from brim.errors import InvalidRequest
from brim.ray.arguments import AppArguments, ModelArguments, read_arguments
from brim.ray.front import make_front
from brim.ray.handles import HandleReplicas
from brim.ray.placement import check_placement
from brim.ray.replica import EngineReplica, write_line
from brim.ray.router import MemoryRequestRouter
from brim.serve.settings import ServeSettings

if TYPE_CHECKING:
    from ray.serve import Application
    from starlette.types import ASGIApp

_ONGOING = 10_000  # requests of a replica or front end: the gate of each server has the bound that counts
_HEALTH_SECONDS = 5.0
_ACCELERATOR = "accelerator_type:"


class FrontReplica:
    """The class of the ingress deployment."""

    def __init__(
        self, settings: ServeSettings, patience_seconds: float, logs: bool, names: Sequence[str], *handles: Any
    ) -> None:
        replicas = {name: HandleReplicas(handle) for name, handle in zip(names, handles, strict=True)}
        self._front = make_front(replicas, settings, patience_seconds, write_line if logs else None)

    def __serve_build_asgi_app__(self) -> ASGIApp:  # the name that Ray Serve calls
        return self._front


def app(given: Mapping[str, Any] | AppArguments) -> Application:
    """Build the application; what is given comes from a command line, a config file or `brim serve --replicas`."""
    arguments = given if isinstance(given, AppArguments) else read_arguments(given)
    models = arguments.all_models()
    settings = [_settings(one) for one in models]
    names = [one.model_name for one in settings]
    if len(set(names)) < len(names):
        raise InvalidRequest(f"models: two are served as '{_twice(names)}'; give one another --served-model-name")
    accelerators = cluster_accelerators()
    for one in models:
        check_placement(one, accelerators)
    secret = secrets.token_bytes(32)  # the same salts at all replicas: prefixes are found wherever a key's request goes
    engines = [
        _engine_deployment(one, chosen, arguments.report_seconds).bind(one.model_dump(), secret)
        for one, chosen in zip(models, settings, strict=True)
    ]
    front = serve.deployment(
        serve.ingress()(FrontReplica),
        name="front",
        num_replicas=arguments.frontends,
        max_ongoing_requests=_ONGOING,
        graceful_shutdown_timeout_s=max(one.drain_seconds for one in settings),
        ray_actor_options={"num_cpus": 0},
        health_check_period_s=_HEALTH_SECONDS,
    )
    own = replace(settings[0], salt_secret=secret)
    logs = not models[0].serve_options().no_request_log
    return front.bind(own, arguments.patience_seconds, logs, names, *engines)


def cluster_accelerators() -> set[str]:
    """The kinds of GPUs that the cluster has, as Ray names them; none where Ray is not running."""
    if not ray.is_initialized():
        return set()
    return {name.removeprefix(_ACCELERATOR) for name in ray.cluster_resources() if name.startswith(_ACCELERATOR)}


def _settings(one: ModelArguments) -> ServeSettings:
    options = one.serve_options()
    check_options(options)
    return serve_settings(options)


def _engine_deployment(one: ModelArguments, settings: ServeSettings, report_seconds: float) -> Any:
    resources: dict[str, Any] = {"num_cpus": one.cpus, "num_gpus": one.gpus}
    options: dict[str, Any] = {}
    if one.tensor_parallel > 1:
        bundle = {"CPU": one.cpus} | ({"GPU": one.gpus} if one.gpus else {})
        options |= {
            "placement_group_bundles": [bundle] * one.tensor_parallel,
            "placement_group_strategy": "PACK",
        }
    if one.accelerator is not None:
        resources["accelerator_type"] = one.accelerator
    if one.max_replicas is None:
        options["num_replicas"] = one.replicas
    else:
        options["autoscaling_config"] = AutoscalingConfig(
            min_replicas=one.min_replicas or one.replicas,
            initial_replicas=max(one.replicas, one.min_replicas or 1),
            max_replicas=one.max_replicas,
            policy=AutoscalingPolicy(policy_function="brim.ray.scaling:by_memory"),
        )
    return serve.deployment(
        EngineReplica,
        name=deployment_name(settings.model_name),
        ray_actor_options=resources,
        max_ongoing_requests=_ONGOING,
        graceful_shutdown_timeout_s=settings.drain_seconds + 5,
        health_check_period_s=_HEALTH_SECONDS,
        max_constructor_retry_count=3,
        request_router_config=RequestRouterConfig(
            request_router_class=MemoryRequestRouter,
            request_router_kwargs={"report_seconds": report_seconds},
            request_routing_stats_period_s=report_seconds,
        ),
        **options,
    )


def deployment_name(model: str) -> str:
    """Ray Serve keeps `#` and `/` for itself."""
    return "engine-" + "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in model)


def _twice(names: Sequence[str]) -> str:
    return next(name for name in names if names.count(name) > 1)
