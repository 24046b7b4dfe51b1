"""The tree of errors. Catching `BrimError` catches everything Brim raises on purpose.

    BrimError
    ├── InputError               what the user gave is wrong; exit code 2
    │   ├── InvalidConfig        a field of a model's config is missing, mistyped or out of range
    │   ├── UnsupportedModel     an architecture or format Brim does not support
    │   ├── SourceNotFound       no such model: path, catalogue name or hub id
    │   │   └── HubUnreachable   the hub was not asked: it does not answer, or its library is not installed
    │   ├── UnknownDevice        no such GPU
    │   ├── InvalidRequest       options that contradict each other or the model
    │   │   └── PromptTooLong    a prompt that leaves no room for an answer
    │   └── CannotTrace          transformers cannot build or run this model on the meta device
    └── DeviceError              the device, its driver or another rank failed
        ├── NeighboursLate       neighbours did not hold what they promised within the time given
        ├── NeighboursUnknown    the ledger of leases cannot be opened, and there may be neighbours in it
        ├── EncoderFailed        the process of an encoder could not start
        ├── MediaUnavailable     images and audio cannot be encoded at present; the same request may succeed later
        ├── OutOfMemory          an allocation does not fit on the device
        └── DoesNotFit           no KV cache size fits this device; exit code 1

Every message names the thing (field, option, file), what was found, and the remedy.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "BrimError",
    "CannotTrace",
    "DeviceError",
    "DoesNotFit",
    "EncoderFailed",
    "InputError",
    "InvalidConfig",
    "InvalidRequest",
    "MediaUnavailable",
    "NeighboursLate",
    "NeighboursUnknown",
    "OutOfMemory",
    "SourceNotFound",
    "UnknownDevice",
    "UnsupportedModel",
]


class BrimError(Exception):
    """Anything Brim raises on purpose."""


class InputError(BrimError):
    """What the user gave is wrong. The command line turns it into exit code 2."""


class InvalidConfig(InputError):
    """A field of a model's configuration is missing, mistyped or out of range."""

    def __init__(self, field: str, problem: str, remedy: str = "") -> None:
        self.field = field
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"config field '{field}': {problem}" + (f"; {remedy}" if remedy else ""))


class UnsupportedModel(InputError):
    """An architecture, or a format inside one, that Brim does not support."""


class SourceNotFound(InputError):
    """There is no model under the given name, path or id."""


class HubUnreachable(SourceNotFound):
    """The hub was not asked: it does not answer, or its library is not installed."""


class UnknownDevice(InputError):
    """No GPU of that name is in the catalogue."""


class InvalidRequest(InputError):
    """Options that contradict each other, or that the model cannot satisfy."""


class PromptTooLong(InvalidRequest):
    """A prompt that leaves no room for an answer in the context, or in the KV pool."""


class CannotTrace(InputError):
    """`transformers` cannot build or run this model on the meta device, or is not installed."""


class DeviceError(BrimError):
    """The device, its driver or another rank failed."""


class NeighboursLate(DeviceError):
    """Neighbours on the device did not hold what they promised, or did not come, within the time given."""


class NeighboursUnknown(DeviceError):
    """The ledger of leases cannot be opened, and there may be neighbours in it."""


class EncoderFailed(DeviceError):
    """The process of an encoder could not start."""


class MediaUnavailable(DeviceError):
    """Images and audio cannot be encoded at present; the same request may succeed later."""


class OutOfMemory(DeviceError):
    """An allocation does not fit on the device. `missing_bytes` is the shortfall; None where it is unknown."""

    def __init__(self, message: str, missing_bytes: int | None = None) -> None:
        self.missing_bytes = missing_bytes
        super().__init__(message)


class DoesNotFit(DeviceError):
    """No KV cache size fits this device.

    `ledger` is what was measured (`FitItem`s) and `knobs` the settings that would help (`Knob`s), where known.
    """

    def __init__(
        self,
        message: str,
        missing_bytes: int | None = None,
        ledger: tuple[Any, ...] = (),
        knobs: tuple[Any, ...] = (),
    ) -> None:
        self.missing_bytes = missing_bytes
        self.ledger = ledger
        self.knobs = knobs
        super().__init__(message)


def first_line(error: BaseException) -> str:
    """The first line of another library's error message, shortened."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
