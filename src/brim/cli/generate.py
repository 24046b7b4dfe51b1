"""`brim generate`: answer prompts with Brim's own engine."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brim.cli.engine_options import add_engine_options, add_model, bar, make_engine, read_place, serving
from brim.cli.neighbours.encoders import encoders_beside
from brim.cli.options import add_json
from brim.errors import InvalidRequest
from brim.units import parse_count

if TYPE_CHECKING:
    from brim.cli.options import Commands
    from brim.engine.drafts.speculator import SpeculationFigures
    from brim.engine.engine import Engine
    from brim.engine.requests.params import SamplingParams


def add_command(commands: Commands) -> None:
    parser = commands.add_parser(
        "generate",
        help="generate text with Brim's own engine",
        description="Generate text with Brim's own engine: stream the answer to one prompt, or batch the prompts of a "
        "file. Needs torch and transformers (the extra 'engine').",
    )
    parser.set_defaults(run=run)
    add_model(parser)
    _add_prompts(parser)
    _add_sampling(parser)
    parser.add_argument("--kv-tokens", metavar="N", help="tokens of the KV pool (64k, or less if requests are short)")
    add_engine_options(parser)
    add_json(parser)


def _add_prompts(parser: argparse.ArgumentParser) -> None:
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--prompt", metavar="TEXT", help="the prompt; - reads it from standard input")
    asked.add_argument("--prompt-ids", metavar="IDS", help="the prompt as token ids, separated by commas")
    asked.add_argument(
        "--input",
        type=Path,
        metavar="FILE",
        help='a file with a prompt on each line, or {"prompt": …} or {"messages": […]} as JSON lines',
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--chat", action="store_true", default=None, help="prompts are turns of a chat (where the model has a template)"
    )
    form.add_argument("--raw", action="store_false", dest="chat", help="prompts are texts to go on with")
    parser.add_argument("--system", metavar="TEXT", help="the chat's instruction to the model")
    parser.add_argument("--image", type=Path, action="append", default=[], metavar="FILE", help="image of the prompt")
    parser.add_argument("--audio", type=Path, action="append", default=[], metavar="FILE", help="audio of the prompt")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the answers here, as JSON lines")


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument("--max-tokens", type=int, default=128, metavar="N", help="most tokens of an answer (128)")
    sampling.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (0)")
    sampling.add_argument("--top-k", type=int, default=0, metavar="K", help="sample from the K likeliest; 0: from all")
    sampling.add_argument(
        "--top-p", type=float, default=1.0, metavar="P", help="sample from the likeliest tokens that sum to P"
    )
    sampling.add_argument(
        "--min-p", type=float, default=0.0, metavar="P", help="no token less likely than P × the likeliest"
    )
    sampling.add_argument(
        "--repetition-penalty", type=float, default=1.0, metavar="F", help="over prompt and answer; 1 is off"
    )
    sampling.add_argument("--presence-penalty", type=float, default=0.0, metavar="F", help="over the answer; 0 is off")
    sampling.add_argument("--frequency-penalty", type=float, default=0.0, metavar="F", help="over the answer; 0 is off")
    sampling.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same text")
    sampling.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end the answer before this text")
    sampling.add_argument("--n", type=int, default=1, metavar="N", help="answers to each prompt")
    sampling.add_argument("--logprobs", type=int, metavar="K", help="log-probabilities of the sampled and K others")
    sampling.add_argument(
        "--top-k-logits", type=int, default=0, metavar="K", help="keep the K largest logits of every token (0: none)"
    )
    sampling.add_argument("--ignore-eos", action="store_true", help="do not stop at the end-of-text token")


def run(options: argparse.Namespace) -> int:
    params = _params(options)
    asked = _prompts(options)
    kv_tokens = parse_count(options.kv_tokens, "kv-tokens") if options.kv_tokens else None
    with (
        encoders_beside(options, read_place(options.device)) as (_, encoders),
        serving(make_engine(options, kv_tokens=kv_tokens, encoders=encoders)) as engine,
    ):
        prompts = _as_asked(engine, asked, options)
        if len(prompts) == 1 and not options.as_json and options.output is None:
            _stream(engine, prompts[0], params, options)
            return 0
        with bar("answers", len(prompts) > 1 and not options.quiet) as progress:
            answers = [_as_json(one) for one in _answers(engine, prompts, params, options, progress)]
        if engine.ranks is None or engine.ranks.rank == 0:
            _write(answers, engine.figures.speculation, options)
    return 0


def _params(options: argparse.Namespace) -> SamplingParams:
    from brim.engine.requests.params import SamplingParams

    names = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty")
    more = ("frequency_penalty", "seed", "n", "logprobs", "top_k_logits", "ignore_eos")
    given = {name: getattr(options, name) for name in names + more}
    return SamplingParams(stop=tuple(options.stop), continues_prompt=options.chat is False, **given)


def _prompts(options: argparse.Namespace) -> list[Any]:
    if options.system is not None and options.chat is False:
        raise InvalidRequest("system is an instruction of a chat, and raw prompts have none; leave out one of the two")
    if options.prompt_ids is not None:
        if options.chat or options.system is not None:
            raise InvalidRequest("prompt-ids are taken as they are; for a chat write --prompt")
        try:
            return [[int(part) for part in options.prompt_ids.split(",")]]
        except ValueError:
            found = options.prompt_ids[:40]
            raise InvalidRequest(f"prompt-ids '{found}' is not a list of token ids; write it like 1,2,3") from None
    if options.prompt is not None:
        return [sys.stdin.read() if options.prompt == "-" else options.prompt]
    try:
        lines = options.input.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"input {options.input}: cannot be read ({error}); name a text file") from None
    prompts = [_line(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise InvalidRequest(f"input {options.input}: has no prompt; write one on each line")
    for name in ("image", "audio"):
        if getattr(options, name):
            raise InvalidRequest(f"{name} cannot be combined with --input; use a single --prompt")
    return prompts


def _line(number: int, line: str) -> Any:
    if not line.lstrip().startswith("{"):
        return line
    try:
        found = json.loads(line)
        prompt = found["messages"] if "messages" in found else found["prompt"]
    except (ValueError, KeyError):
        raise InvalidRequest(f'input line {number}: is not a JSON object with a "prompt" or "messages"') from None
    if "messages" in found:
        return _messages(number, prompt)
    whole = isinstance(prompt, str) or (isinstance(prompt, list) and all(isinstance(token, int) for token in prompt))
    if not whole:
        raise InvalidRequest(f"input line {number}: prompt must be a string or a list of token ids")
    return prompt


def _messages(number: int, found: Any) -> list[dict[str, Any]]:
    if not isinstance(found, list) or not found or not all(isinstance(one, dict) and "role" in one for one in found):
        raise InvalidRequest(f'input line {number}: messages must be a list of objects with a "role" and "content"')
    return found


def _as_asked(engine: Engine, prompts: list[Any], options: argparse.Namespace) -> list[Any]:
    """Prompts as the engine takes them: as turns of a chat where that was asked for, or the model is made for it."""
    from brim.engine.front.chat_template import ChatTemplate, chat_tokens, conversation, has_chat_template

    chat = options.system is not None or (has_chat_template(engine.tokenizer) if options.chat is None else options.chat)
    found: list[Any] = []
    for prompt in prompts:
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], dict):
            found.append(chat_tokens(engine.tokenizer, prompt))
        elif not chat or isinstance(prompt, list):
            found.append(prompt)
        elif options.image or options.audio:  # the model's processor makes tokens of the text
            turn = conversation(prompt, options.system, len(options.image), len(options.audio))
            found.append(ChatTemplate(engine.tokenizer).render(turn))
        else:
            found.append(chat_tokens(engine.tokenizer, conversation(prompt, options.system)))
    return found


def _stream(engine: Engine, prompt: Any, params: SamplingParams, options: argparse.Namespace) -> None:
    """Show a single answer as it grows."""
    _submit(engine, prompt, params, options)
    while not engine.idle:
        for update in engine.step():
            if params.n == 1:
                shown = update.text if engine.tokenizer is not None else f"{update.token} "
                print(shown, end="", flush=True)
            elif update.completion is not None:
                print(f"[{update.index}] {update.completion.text}", flush=True)
    print()


def _submit(engine: Engine, prompt: Any, params: SamplingParams, options: argparse.Namespace) -> None:
    """A prompt with the files that belong to it."""
    images, audios = ([str(file) for file in files] for files in (options.image, options.audio))
    engine.submit(prompt, params, images=images, audios=audios)


def _answers(
    engine: Engine,
    prompts: list[Any],
    params: SamplingParams,
    options: argparse.Namespace,
    progress: Callable[[int, int], None],
) -> list[Any]:
    if not options.image and not options.audio:
        return list(engine.generate(prompts, params, progress=progress))
    _submit(engine, prompts[0], params, options)
    found = []
    while not engine.idle:
        found += [update.completion for update in engine.step() if update.completion is not None]
    return found


def _as_json(completion: Any) -> dict[str, Any]:
    kept = completion.top_logits
    arrays = None if kept is None else {field.name: getattr(kept, field.name).tolist() for field in fields(kept)}
    return {
        **asdict(replace(completion, prompt_logprobs=tuple(completion.prompt_logprobs))),
        "finish_reason": str(completion.finish_reason),
        "top_logits": arrays,
    }


def _write(answers: list[dict[str, Any]], speculation: SpeculationFigures | None, options: argparse.Namespace) -> None:
    """Answers to a file and to standard output; with figures of speculation where the engine does that."""
    if options.output is not None:
        try:
            options.output.write_text("".join(json.dumps(one) + "\n" for one in answers), encoding="utf-8")
        except OSError as error:
            raise InvalidRequest(f"output {options.output}: cannot be written ({error.strerror})") from None
    if options.as_json:
        shown = answers if speculation is None else {"answers": answers, "speculation": speculation.to_json()}
        print(json.dumps(shown, indent=2))
    elif options.output is None:
        for one in answers:
            print(one["text"] if one["text"] is not None else " ".join(map(str, one["tokens"])))
