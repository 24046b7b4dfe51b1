"""The completion of zsh: specifications of `_arguments`, with the help of each option."""

from __future__ import annotations

from collections.abc import Sequence

from brim.cli.completion.offered import OfferedCommand, OfferedOption, OfferedValue

_TAIL = """        esac ;;
    esac
}
if [[ $funcstack[1] == _brim ]]; then  # a file in $fpath
    _brim "$@"
else  # sourced
    compdef _brim brim
fi
"""


def zsh_script(commands: Sequence[OfferedCommand]) -> str:
    """The script as text, for a file `_brim` in $fpath or to be sourced after compinit."""
    named = _named_values(commands)
    lines = ["#compdef brim", "# Completion of brim in zsh; made by `brim completion zsh`."]
    for value, name in named.items():
        lines += [f"{name}() {{", f"    local -a words=({' '.join(value.words)})", "    compadd -a words"]
        lines += (["    _files"] if value.files else []) + ["}"]
    lines += ["_brim() {", "    local curcontext=$curcontext state line", "    typeset -A opt_args"]
    lines += ["    _arguments -C '(- *)'{-h,--help}'[help]' '(- *)--version[version]' '1: :->command' '*:: :->words'"]
    lines += ["    case $state in", "    command)", "        local -a commands=("]
    lines += [f"            {_quoted(f'{one.name}:{one.help}')}" for one in commands]
    lines += ["        )", "        _describe command commands ;;", "    words)", "        case $line[1] in"]
    for one in commands:
        specs = [_spec(option, name, named) for option in one.options for name in option.names]
        if one.argument is not None:
            specs.append(_quoted(f"*: :{_action(one.argument, named)}"))
        lines += [f"        {one.name}) _arguments \\", *(f"            {spec} \\" for spec in specs), "            ;;"]
    return "\n".join(lines) + "\n" + _TAIL


def _named_values(commands: Sequence[OfferedCommand]) -> dict[OfferedValue, str]:
    """Functions for values of many words: each is written once."""
    values = [
        value
        for one in commands
        for value in (one.argument, *(option.value for option in one.options))
        if value is not None and value.words
    ]
    return {value: f"_brim_words_{number}" for number, value in enumerate(dict.fromkeys(values))}


def _spec(option: OfferedOption, name: str, named: dict[OfferedValue, str]) -> str:
    repeated = "*" if option.repeatable else ""
    described = "".join(f"\\{letter}" if letter in "[]:\\" else letter for letter in option.help)
    if option.value is None:
        return _quoted(f"{repeated}{name}[{described}]")
    sign = "=" if name.startswith("--") else "+"
    return _quoted(f"{repeated}{name}{sign}[{described}]: :{_action(option.value, named)}")


def _action(value: OfferedValue, named: dict[OfferedValue, str]) -> str:
    return named.get(value, "_files" if value.files else " ")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
