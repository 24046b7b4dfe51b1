"""Leases as JSON bodies, and back. Every field is checked: a file is what somebody wrote, not what we wrote."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from brim.records.lease import Lease, LeaseState, ProcessId, SizeWish
from brim.reserve.files import BadFile

VERSION = 1
LONGEST_ROLE = 60
MOST_GENERATIONS = 1 << 53
_LARGEST = 1 << 62


class NewerFormat(BadFile):
    """Written by a newer Brim, perhaps by one that runs: not to be moved."""


def to_body(lease: Lease) -> dict[str, Any]:
    return {"version": VERSION, **asdict(lease)}


def from_body(body: dict[str, Any], name: str, device: str) -> Lease:
    """The lease of that name on that device. Raises `BadFile`."""
    version = body.get("version")
    if not isinstance(version, int):
        raise BadFile("no version")
    if version > VERSION:
        raise NewerFormat(f"version {version}, written by a newer Brim (this one reads {VERSION})")
    try:
        lease = _lease(body)
    except (KeyError, TypeError, ValueError) as error:
        raise BadFile(f"not a lease ({type(error).__name__}: {error})") from None
    if (lease.name, lease.device) != (name, device):
        raise BadFile(f"the lease of {lease.name} on {lease.device}")
    return lease


def _lease(body: dict[str, Any]) -> Lease:
    holder, share, keeper = _part(body, "holder"), body["share"], body.get("keeper")  # earlier ones have none
    lease = Lease(
        name=_text(body, "name"),
        device=_text(body, "device"),
        device_bytes=_count(body, "device_bytes"),
        holder=process_of(holder),
        role=_text(body, "role"),
        generation=_count(body, "generation"),
        state=LeaseState(_text(body, "state")),
        promised_bytes=_count_or_none(body, "promised_bytes"),
        held_bytes=_count_or_none(body, "held_bytes"),
        measured=_flag(body, "measured"),
        created_seconds=_seconds(body, "created_seconds"),
        heartbeat_seconds=_seconds(body, "heartbeat_seconds"),
        share=None if share is None else _share(_part(body, "share")),
        keeper=None if keeper is None else process_of(_part(body, "keeper")),
    )
    if lease.generation > MOST_GENERATIONS:
        raise ValueError(f"generation is {lease.generation}")
    if lease.state is not LeaseState.STARTING and lease.held_bytes is None:
        raise ValueError("held, and held_bytes is not there")
    if lease.promised_bytes is None and not lease.sizes:
        raise ValueError("promised_bytes is not there")
    return lease


def process_of(body: dict[str, Any]) -> ProcessId:
    """A process as `asdict` wrote it. Raises `KeyError`, `TypeError` or `ValueError` for anything else."""
    return ProcessId(
        pid=_count(body, "pid"),
        started_ticks=_count(body, "started_ticks"),
        boot_id=_text(body, "boot_id"),
        pid_space=_count(body, "pid_space"),
    )


def _share(raw: dict[str, Any]) -> SizeWish:
    fraction = raw["fraction"]
    if fraction is not None and not 0 < _seconds(raw, "fraction") <= 1:
        raise ValueError(f"fraction is {fraction!r}")
    return SizeWish(fraction, _count_or_none(raw, "bytes"))


def _part(body: dict[str, Any], key: str) -> dict[str, Any]:
    if not isinstance(body[key], dict):
        raise ValueError(f"{key} is {body[key]!r:.40}")
    return dict(body[key])


def _text(body: dict[str, Any], key: str) -> str:
    value = body[key]
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= 120:
        raise ValueError(f"{key} is {value!r:.40}")
    return value


def _count(body: dict[str, Any], key: str) -> int:
    if not _is_count(body[key]):
        raise ValueError(f"{key} is {body[key]!r:.40}")
    return int(body[key])


def _count_or_none(body: dict[str, Any], key: str) -> int | None:
    return None if body[key] is None else _count(body, key)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST


def _flag(body: dict[str, Any], key: str) -> bool:
    if not isinstance(body[key], bool):
        raise ValueError(f"{key} is {body[key]!r:.40}")
    return bool(body[key])


def _seconds(body: dict[str, Any], key: str) -> float:
    value = body[key]
    if not isinstance(value, int | float) or isinstance(value, bool) or not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{key} is {value!r:.40}")
    return float(value)
