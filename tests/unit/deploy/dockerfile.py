"""A Dockerfile as stages of instructions, and what is wrong with one: no Docker is needed for either.

Strict, and no more than `deploy/docker/Dockerfile` uses: an instruction that is not known is an error.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

KNOWN = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENV", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "CMD", "USER"}
SECRET = re.compile(r"(?i)key|token|password|secret")


@dataclass(frozen=True, slots=True)
class Instruction:
    name: str
    flags: dict[str, str]
    text: str

    @property
    def words(self) -> list[str]:
        """Of the form that is a list, or those between spaces."""
        found: list[str] = json.loads(self.text) if self.text.startswith("[") else self.text.split()
        return found


@dataclass(slots=True)
class Stage:
    name: str
    base: str
    instructions: list[Instruction] = field(default_factory=list)

    def all(self, name: str) -> list[Instruction]:
        return [one for one in self.instructions if one.name == name]


@dataclass(slots=True)
class Dockerfile:
    arguments: dict[str, str]  # before the first stage
    stages: dict[str, Stage]

    def chain(self, target: str) -> list[Stage]:
        """A stage and those it is made from, the first one first."""
        stage = self.stages[target]
        return [*(self.chain(stage.base) if stage.base in self.stages else []), stage]

    def instructions(self, target: str) -> list[Instruction]:
        return [one for stage in self.chain(target) for one in stage.instructions]


def read_dockerfile(text: str) -> Dockerfile:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    found = Dockerfile({}, {})
    stage: Stage | None = None
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        name, _, rest = line.partition(" ")
        if name not in KNOWN:
            raise ValueError(f"'{name}' is no instruction that is used here: {line}")
        flags = {}
        while flag := re.match(r"--([a-z-]+)=(\S+)\s+", rest):
            flags[flag[1]] = flag[2]
            rest = rest[flag.end() :]
        if name == "FROM":
            base, _, given = rest.partition(" AS ")
            if not given or given in found.stages:
                raise ValueError(f"a stage needs a name of its own: {line}")
            stage = found.stages.setdefault(given, Stage(given, base))
        elif stage is None:
            key, _, value = rest.partition("=")
            found.arguments[key] = value
        else:
            stage.instructions.append(Instruction(name, flags, rest))
    return found


def findings(file: Dockerfile, targets: tuple[str, ...]) -> list[str]:
    """What a reviewer would say."""
    found = [
        f"{name}={value}: a base without a version" for name, value in file.arguments.items() if not _pinned(value)
    ]
    earlier: list[str] = []
    for stage in file.stages.values():
        if stage.base not in earlier and not re.fullmatch(r"\$\{(\w+)\}", stage.base):
            found.append(f"{stage.name}: its base is neither a stage above it nor an argument")
        found += [f"{stage.name}: {said}" for one in stage.instructions for said in _of_one(one, earlier)]
        found += [f"{stage.name}: {name} is given and not used" for name in _unused(stage)]
        earlier.append(stage.name)
    return [*found, *(said for target in targets for said in _of_target(file, target))]


def _pinned(image: str) -> bool:
    return bool(re.search(r":(?!latest)[\w.-]+$|@sha256:", image))


def _unused(stage: Stage) -> list[str]:
    text = " ".join(one.text for one in stage.instructions if one.name != "ARG")
    names = [one.text.partition("=")[0] for one in stage.all("ARG")]
    return [name for name in names if not re.search(rf"\${{?{name}\b", text)]


def _of_one(one: Instruction, earlier: list[str]) -> list[str]:
    rules = {
        "COPY from no earlier stage": one.name == "COPY" and one.flags.get("from", "") not in ("", *earlier),
        "WORKDIR is not absolute": one.name == "WORKDIR" and not one.text.startswith("/"),
        "a secret in the image": one.name in ("ENV", "ARG") and bool(SECRET.search(one.text)),
        "CMD is not a list, so a shell gets the signals": one.name == "CMD" and not one.text.startswith("["),
        "pip without versions of the lock": one.name == "RUN"
        and "pip install" in one.text
        and "--constraint" not in one.text,
        "packages that were not asked for": "apt-get install" in one.text and "--no-install-recommends" not in one.text,
        "lists of packages stay in the image": "apt-get update" in one.text
        and "rm -rf /var/lib/apt/lists/*" not in one.text,
        "something fetched without a checksum": bool(re.search(r"\b(curl|wget)\b|\bhttps?://\S+\.(sh|tar)", one.text)),
        "sudo": one.name == "RUN" and "sudo " in one.text,
    }
    return [f"{said}: {one.text}" for said, broken in rules.items() if broken]


def _of_target(file: Dockerfile, target: str) -> list[str]:
    last = {one.name: one for one in file.instructions(target)}
    after = [one.name for one in file.stages[target].instructions]
    rules = {
        "no user, so it runs as root": last.get("USER", Instruction("USER", {}, "root")).text in ("root", "0"),
        "something is done after the user was changed": "USER" in after
        and set(after[after.index("USER") + 1 :]) - {"CMD"} != set(),
        "no health check": "HEALTHCHECK" not in last,
        "no command": "CMD" not in last,
        "no volume": "VOLUME" not in last,
    }
    return [f"{target}: {said}" for said, broken in rules.items() if broken]
