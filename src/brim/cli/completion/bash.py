"""The completion of bash: one function over what is offered, with no package but bash itself."""

from __future__ import annotations

from collections.abc import Sequence

from brim.cli.completion.offered import OfferedCommand, OfferedValue

_HEAD = r"""# Completion of brim in bash; made by `brim completion bash`.
_brim_offer() {  # WORDS [files]
    mapfile -t COMPREPLY < <(compgen -W "$1" -- "$cur"; [[ -n $2 ]] && compgen -f -- "$cur")
    [[ -n $2 ]] && compopt -o filenames 2>/dev/null
    return 0
}
_brim() {
    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" command="${COMP_WORDS[1]}"
    if [[ $cur == "=" ]]; then  # --option=value comes as three words
        cur=""
    elif [[ $prev == "=" ]]; then
        prev="${COMP_WORDS[COMP_CWORD-2]}"
    fi
"""
_TAIL = """}
complete -F _brim brim
"""


def bash_script(commands: Sequence[OfferedCommand]) -> str:
    """The script as text."""
    names = " ".join(one.name for one in commands)
    lines = [
        "    if ((COMP_CWORD == 1)); then",
        f'        _brim_offer "{names} --help --version"',
        "        return",
        "    fi",
    ]
    values = _by_value(commands)
    lines += ['    case "$command $prev" in']
    lines += [f"        {_either(places)}) {_offer(value)}; return ;;" for value, places in values.items()]
    lines += ["    esac", "    if [[ $cur == -* ]]; then", '        case "$command" in']
    for one in commands:
        names = " ".join(name for option in one.options for name in option.names)
        lines += [f'            {one.name}) _brim_offer "{names}" ;;']
    lines += ["        esac", "        return", "    fi", '    case "$command" in']
    arguments: dict[OfferedValue, list[str]] = {}
    for one in commands:
        if one.argument is not None:
            arguments.setdefault(one.argument, []).append(one.name)
    lines += [f"        {'|'.join(names)}) {_offer(value)} ;;" for value, names in arguments.items()]
    lines += ["    esac"]
    return _HEAD + "\n".join(lines) + "\n" + _TAIL


def _by_value(commands: Sequence[OfferedCommand]) -> dict[OfferedValue, list[str]]:
    """Where each value stands: a command and its option."""
    found: dict[OfferedValue, list[str]] = {}
    for one in commands:
        for option in one.options:
            if option.value is not None:
                found.setdefault(option.value, []).extend(f'"{one.name} {name}"' for name in option.names)
    return found


def _either(places: Sequence[str]) -> str:
    return "|\\\n        ".join(places)


def _offer(value: OfferedValue) -> str:
    """An empty list where nothing is known: bash offers nothing then."""
    return f'_brim_offer "{" ".join(value.words)}"' + (" files" if value.files else "")
