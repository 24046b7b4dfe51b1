"""What an application on Ray is told: which models, how many replicas of each, and what one replica takes.

The same fields come from `serve run brim.ray:app model=… replicas=2`, from the `args` of a Serve config file, and from
`brim serve --replicas N`. How an engine is set up are the options of `brim serve`, in `options`: they are declared
there alone. Bad values fail when the application is built, before anything is placed.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from contextlib import redirect_stderr
from io import StringIO
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from brim.errors import InvalidRequest


class ModelArguments(BaseModel):
    """One model: its engine, its replicas, and the resources of each."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(default="brim-tiny", description="as `brim serve` takes it")
    options: str = Field(default="", description="options of `brim serve` for each replica: '--max-len 8k'")
    replicas: int = Field(default=1, ge=1, description="replicas at the start; always, without max_replicas")
    min_replicas: int | None = Field(default=None, ge=1, description="autoscaling: the fewest (replicas)")
    max_replicas: int | None = Field(default=None, ge=1, description="autoscaling: the most; without it there is none")
    gpus: float = Field(default=0.0, ge=0, description="GPUs of a rank; a fraction shares a card, through leases")
    cpus: float = Field(default=1.0, ge=0, description="CPUs of a rank, for Ray's accounts")
    tensor_parallel: int = Field(default=1, ge=1, description="ranks of a replica, in one placement group")
    accelerator: str | None = Field(default=None, description="Ray's accelerator type of the GPU, such as H100")
    plan_for: str | None = Field(default=None, description="the GPU of the plan (h100, 24GiB); by the accelerator")

    @model_validator(mode="after")
    def _consistent(self) -> ModelArguments:
        if self.gpus > 1 or (self.gpus not in (0, 1) and self.tensor_parallel > 1):
            raise ValueError(
                f"gpus is {self.gpus:g}; a rank has one GPU or a part of one: write tensor_parallel for several, which "
                "then have one each"
            )
        least, most = self.min_replicas or self.replicas, self.max_replicas
        if most is not None and most < least:
            raise ValueError(f"max_replicas is {most}, below min_replicas, which is {least}")
        if self.min_replicas is not None and most is None:
            raise ValueError("min_replicas is given without max_replicas; give both to scale, or replicas alone")
        return self

    def serve_words(self) -> list[str]:
        """The command line of one replica, as `brim` reads it."""
        words = ["serve", self.model, *shlex.split(self.options)]
        if self.tensor_parallel > 1:
            words += ["--tp", str(self.tensor_parallel)]
        if 0 < self.gpus < 1:
            words += ["--share", f"{self.gpus:g}"]  # two replicas on a card never promise more than it has
        return words

    def serve_options(self) -> argparse.Namespace:
        """The same, read; an option that does not exist is an error that names it."""
        from brim.cli.main import read_options

        said = StringIO()
        try:
            with redirect_stderr(said):
                return read_options(self.serve_words())
        except SystemExit:
            raise InvalidRequest(f"options of model '{self.model}': {said.getvalue().strip()}") from None


class AppArguments(ModelArguments):
    """An application: one model, given by the fields of a model, or several in `models`."""

    models: list[ModelArguments] = Field(default_factory=list, description="several models, each with its fields")
    frontends: int = Field(default=1, ge=1, description="processes that read requests and choose the replica")
    patience_seconds: float = Field(default=60.0, gt=0, description="longest wait that is not refused (429)")
    report_seconds: float = Field(default=1.0, gt=0, description="how often replicas report to routers")

    def all_models(self) -> list[ModelArguments]:
        if self.models:
            return self.models
        return [ModelArguments(**{name: getattr(self, name) for name in ModelArguments.model_fields})]


def read_arguments(given: Mapping[str, Any]) -> AppArguments:
    """Arguments as they were written; the first that is wrong is named."""
    try:
        return AppArguments.model_validate(dict(given))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        said = first["msg"].removeprefix("Value error, ")
        raise InvalidRequest(f"{where}: {said}" if where else said) from None
