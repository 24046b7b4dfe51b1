"""The completion of fish: one `complete` for each option."""

from __future__ import annotations

from collections.abc import Sequence

from brim.cli.completion.offered import OfferedCommand, OfferedOption, OfferedValue

_HEAD = """# Completion of brim in fish; made by `brim completion fish`.
function __brim_command
    set -l words (commandline -opc)
    test (count $words) -gt 1; and test $words[2] = $argv[1]
end
function __brim_no_command
    test (count (commandline -opc)) -eq 1
end
complete -c brim -f
complete -c brim -n __brim_no_command -l version -d 'version'
complete -c brim -n __brim_no_command -s h -l help -d 'help'
"""


def fish_script(commands: Sequence[OfferedCommand]) -> str:
    """The script as text."""
    lines = []
    for one in commands:
        lines.append(f"complete -c brim -n __brim_no_command -a {one.name} -d {_quoted(one.help)}")
        begin = f"complete -c brim -n '__brim_command {one.name}'"
        lines += [f"{begin}{_names(option)}{_value(option.value)} -d {_quoted(option.help)}" for option in one.options]
        if one.argument is not None:
            lines.append(begin + (" -F" if one.argument.files else "") + _words(one.argument))
    return _HEAD + "\n".join(lines) + "\n"


def _names(option: OfferedOption) -> str:
    long = "".join(f" -l {name[2:]}" for name in option.names if name.startswith("--"))
    return long + "".join(f" -s {name[1:]}" for name in option.names if not name.startswith("--"))


def _value(value: OfferedValue | None) -> str:
    if value is None:
        return ""
    return (" -r -F" if value.files else " -x") + _words(value)


def _words(value: OfferedValue) -> str:
    return f" -a {_quoted(' '.join(value.words))}" if value.words else ""


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
