"""The unit of systemd: its own parser takes it, it is hardened, and it gives the server time to drain."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from brim.cli.main import read_options

FOLDER = Path(__file__).parents[3] / "deploy" / "systemd"
UNIT = FOLDER / "brim.service"
HARDENED = {
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "ProtectKernelTunables": "yes",
    "ProtectKernelModules": "yes",
    "ProtectControlGroups": "yes",
    "RestrictSUIDSGID": "yes",
    "CapabilityBoundingSet": "",
    "UMask": "0077",
}


def settings() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith(("#", "[")):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def test_it_is_hardened_and_has_a_user_of_its_own() -> None:
    found = settings()
    assert {name: found[name] for name in HARDENED} == {name: [value] for name, value in HARDENED.items()}
    (user,) = found["User"]
    assert f"\nu {user} " in (FOLDER / "brim.sysusers").read_text(encoding="utf-8")
    for name in ("PrivateDevices", "DevicePolicy", "ProtectClock", "MemoryDenyWriteExecute"):  # the GPU, and kernels
        assert name not in found


def test_it_stops_after_the_drain_and_starts_again_after_a_failure(tmp_path: Path) -> None:
    found = settings()
    words = shlex.split(found["ExecStart"][0])
    config = tmp_path / "serve.toml"
    config.write_text("port = 8000")
    options = read_options([str(config) if word == "/etc/brim/serve.toml" else word for word in words[1:]])
    assert words[0].endswith("/brim")
    assert int(found["TimeoutStopSec"][0]) > options.drain_seconds
    assert (found["KillMode"], found["Restart"]) == (["mixed"], ["on-failure"])
    assert found["RestartPreventExitStatus"] == ["2"]  # bad input stays bad
    assert found["EnvironmentFile"] == ["-/etc/brim/environment"]


def test_what_is_written_is_in_folders_of_the_service() -> None:
    found = settings()
    written = dict(word.split("=", 1) for line in found["Environment"] for word in line.split())
    assert written.keys() == {"BRIM_CACHE", "HF_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "BRIM_LEASES"}
    assert all(folder.startswith(("%C/brim/", "%t/brim/")) for folder in written.values())
    assert (found["CacheDirectory"], found["RuntimeDirectory"]) == (["brim"], ["brim"])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_it(tmp_path: Path) -> None:
    (unit := tmp_path / "brim.service").write_text(UNIT.read_text().replace("/opt/brim/bin/brim", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert "brim.service" not in done.stdout + done.stderr, done.stderr
    unit.write_text(unit.read_text().replace("KillMode=mixed", "KillMode=sometimes"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert "sometimes" in done.stdout + done.stderr
