"""The process that tries grammars. It knows a vocabulary, and compiles each grammar in a fork with limits of its own.

Lines of JSON on standard input: the vocabulary, then a grammar with its seconds of CPU time, bytes and niceness. For
each grammar a line on standard output: `problem`, why it makes no sense (empty: it does), and `died`, whether the fork
was killed by its limits or crashed. The process ends when its input does, which is when the server ends.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from brim.engine.front.compiled import TokenVocabulary, compile_grammar
from brim.engine.requests.grammar import Grammar, GrammarKind
from brim.errors import InvalidRequest

_STATM_DATA = 5  # the place of a process's data in Linux's statm


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server's business
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # threads do not survive a fork
    told = json.loads(sys.stdin.readline())
    tokens = TokenVocabulary(**{**told, "eos_ids": tuple(told["eos_ids"])}).tokens()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(_tried(tokens, json.loads(line))) + "\n")
        sys.stdout.flush()


def _tried(tokens: Any, order: dict[str, Any]) -> dict[str, Any]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _in_fork(tokens, order, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        problem = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return {"problem": problem, "died": status != 0}


def _in_fork(tokens: Any, order: dict[str, Any], writing: int) -> None:
    """Try it and write what is wrong with it. Does not return."""
    code = 1
    try:
        os.nice(order["niceness"])
        _limit(order["seconds"], order["bytes"])
        os.write(writing, _problem(tokens, Grammar(GrammarKind(order["kind"]), order["text"])).encode()[:4096])
        code = 0
    finally:
        os._exit(code)


def _problem(tokens: Any, grammar: Grammar) -> str:
    try:
        compile_grammar(tokens, grammar)
    except InvalidRequest as error:
        return str(error)
    return ""


def _limit(seconds: float, most_bytes: int) -> None:
    """So much CPU time and memory more than now. A process that takes more is killed, wherever the library is."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    statm = Path("/proc/self/statm")
    if statm.exists():
        held = int(statm.read_text(encoding="ascii").split()[_STATM_DATA]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (held + most_bytes, held + most_bytes))


if __name__ == "__main__":
    main()
