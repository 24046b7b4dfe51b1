"""The arguments of an engine as `vllm serve` has them: its command line, read by its own parser (`ServeArguments`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_UTILIZATION = "gpu_memory_utilization"


@dataclass(frozen=True, slots=True)
class ServeArguments:
    """What a server's engine is made of."""

    engine: Any  # vLLM's AsyncEngineArgs
    utilization_given: bool  # also if it is written as its default


def serve_arguments(words: list[str]) -> ServeArguments:
    """Read the words after `vllm serve`: files of flags, dotted flags and the server's own flags as vLLM reads them."""
    from vllm import AsyncEngineArgs
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    serve = ServeSubcommand().subparser_init(parser.add_subparsers())
    default = serve.get_default(_UTILIZATION)
    serve.set_defaults(**{_UTILIZATION: None})
    parsed = parser.parse_args(["serve", *words])
    given = parsed.gpu_memory_utilization is not None
    if not given:
        parsed.gpu_memory_utilization = default
    if parsed.model_tag is not None:
        parsed.model = parsed.model_tag
    return ServeArguments(AsyncEngineArgs.from_cli_args(parsed), given)
