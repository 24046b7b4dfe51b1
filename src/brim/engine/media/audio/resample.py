"""Audio at another sampling rate: a polyphase filter, a windowed sinc below the lower of the two rates' limits.

A ratio of rates that is no ratio of small integers is replaced by the nearest that is: the pitch is off by less than
half a cent then, and the work does not grow with how odd a rate is.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

_ZERO_CROSSINGS = 48  # of the sinc, on each side
_KAISER_BETA = 12.0  # of the window: what is left above the limit is some 110 dB lower
_PASSED = 0.94  # of the band up to the limit; the filter falls off above
_MOST_PHASES = 2000  # places between two samples that have weights of their own


def resampled(samples: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    """Samples of one channel at the wanted rate, as long in time as before, and never longer."""
    up, down = _ratio(rate, wanted)
    reach = -(-_ZERO_CROSSINGS * max(up, down) // up)  # input samples that a filter sees on each side
    count = min(-(-len(samples) * up // down), -(-len(samples) * wanted // rate))
    padded = np.pad(samples.astype(np.float64), reach + 1)
    windows = sliding_window_view(padded, 2 * reach + 2)
    output = np.empty(count)
    for phase in range(min(up, count)):  # outputs at the same place between two input samples have the same weights
        before, offset = divmod(phase * down, up)
        mine = windows[before + 1 :: down][: len(output[phase::up])]
        output[phase::up] = mine @ _weights(offset / up, reach, min(1.0, up / down))
    return output.astype(np.float32)


def _ratio(rate: int, wanted: int) -> tuple[int, int]:
    """(samples out, samples in) that last equally long, neither of them large."""
    lower, higher = sorted((rate, wanted))
    near = Fraction(lower, higher).limit_denominator(_MOST_PHASES)
    return (near.numerator, near.denominator) if wanted == lower else (near.denominator, near.numerator)


def _weights(offset: float, reach: int, band: float) -> np.ndarray:
    """Weights of the input samples around a place `offset` behind one of them; `band` is the lower rate's part."""
    distance = np.arange(-reach, reach + 2) - offset
    inside = np.clip(1 - (distance / (reach + 1)) ** 2, 0, None)
    window = np.i0(_KAISER_BETA * np.sqrt(inside)) / np.i0(_KAISER_BETA) * (inside > 0)
    sinc = np.sinc(distance * band * _PASSED) * window
    return np.asarray(sinc / sinc.sum())
