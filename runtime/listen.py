# SPDX-License-Identifier: Apache-2.0
"""Listening for a word in the microphone or in a recording, with a clip of each alarm: `edgernn wakeword listen`."""

import itertools
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgernn.errors import EdgernnWarning, UsageError
from edgernn.runtime.event_rate import poisson_interval
from edgernn.runtime.listener import Listener
from edgernn.runtime.microphone import microphone
from edgernn.runtime.wav import FULL_SCALE, read_wav
from edgernn.runtime.wav_folder import write_numbered
from edgernn.signals import noting

# seconds of a clip, which ends with the alarm
CLIP_SECONDS = 2.0
# seconds of digital silence after which a microphone is said to be mute
_MUTE_SECONDS = 5.0
# seconds of a recording that are read at a time
_PART_SECONDS = 1.0

Alarm = dict[str, Any]


def listen(
    model: Path,
    source: Path | None,
    clips: Path,
    changes: Mapping[str, float | None] = MappingProxyType({}),
    *,
    backend: Literal["auto", "native", "portable"] = "auto",
    on_alarm: Callable[[Alarm], None] = lambda alarm: None,
    on_sound: Callable[[float, float, float | None], None] = lambda seconds, level, length: None,
) -> dict[str, Any]:
    """Listen for the words of a model until the recording ends or, with the microphone, until Ctrl-C.

    Args:
        model: The exported file of a model of words.
        source: A wav file, or None for the microphone.
        clips: Folder for the clips. It is created with the first alarm, and nothing in it is overwritten.
        changes: Settings of the word detection, smoothing, threshold and refractory, that replace those in the file
            unless they are None.
        backend: As for `Session`.
        on_alarm: Function that gets each alarm when it is raised.
        on_sound: Function that gets the seconds so far, the level of the last part in dB of full scale, and the length
            of the recording in seconds, which is None for the microphone.

    Returns:
        Dict with the keys source (the path, or "microphone"), seconds (heard), alarms, alarms_an_hour and its 95 %
        interval alarms_an_hour_low and alarms_an_hour_high (None if nothing was heard), clips (the folder), settings
        (of the word detection) and backend. `alarms` is a list of dicts with the keys seconds (from the start), word,
        score (average probability) and clip, the wav file with the CLIP_SECONDS before the alarm.

    Raises:
        UsageError: The model does not read audio or has no names of classes, or the recording is shorter than a step.
        EdgernnError: A file cannot be read or written, or the microphone is refused.
    """
    listener = Listener(model, changes, backend=backend)
    # the end of the sound so far
    heard, count, mute = np.empty(0, np.int16), 0, source is None
    alarms: list[Alarm] = []
    kept = round(CLIP_SECONDS * listener.rate)
    with noting() as interrupted, _parts(source, listener) as (parts, length):
        for part in parts:
            heard, count = np.concatenate([heard, part]), count + len(part)
            for word in listener.feed(part):
                end = len(heard) - (count - (word.step + 1) * listener.hop)
                alarm = listener.describe(word)
                name = re.sub(r"[^\w-]+", "_", alarm["word"])
                clip = write_numbered(clips, f"alarm_{name}_{{}}.wav", heard[max(0, end - kept) : end], listener.rate)
                alarms.append(alarm | {"clip": str(clip)})
                on_alarm(alarms[-1])
            heard = heard[-kept - listener.hop :]
            mute = mute and not part.any()
            if mute and count >= _MUTE_SECONDS * listener.rate:
                mute = False
                text = "microphone: expected sound, got digital silence; check that it is neither muted nor refused"
                warnings.warn(text, EdgernnWarning, stacklevel=2)
            on_sound(count / listener.rate, level(part), length)
            if interrupted():
                break
    if not listener.steps and source is not None:
        raise UsageError(
            f"{source}: expected at least {listener.hop} samples, one step of the model, got {count}; record more"
        )
    settings = listener.detector.settings
    return {
        "source": "microphone" if source is None else str(source),
        "seconds": listener.seconds,
        "alarms": alarms,
        **_rate(len(alarms), listener.seconds),
        "clips": str(clips),
        "settings": {name: getattr(settings, name) for name in ("smoothing", "threshold", "refractory")},
        "backend": listener.session.backend,
    }


def _rate(alarms: int, seconds: float) -> dict[str, float | None]:
    low, high = poisson_interval(alarms)
    counts = {"alarms_an_hour": alarms, "alarms_an_hour_low": low, "alarms_an_hour_high": high}
    return {name: 3600 * count / seconds if seconds else None for name, count in counts.items()}


def level(samples: NDArray[np.int16]) -> float:
    """Return the root mean square of samples (S,) in dB of full scale, at least -100."""
    power = float(np.mean(samples.astype(np.float64) ** 2)) if len(samples) else 0.0
    return 10 * float(np.log10(max(power / FULL_SCALE**2, 1e-10)))


@contextmanager
def _parts(source: Path | None, listener: Listener) -> Iterator[tuple[Iterator[NDArray[np.int16]], float | None]]:
    """Yield the sound in parts, and the length of a recording in seconds."""
    if source is None:
        with microphone(listener.rate) as read:
            yield (read() for _ in itertools.count()), None
        return
    samples, size = read_wav(source, listener.rate), round(_PART_SECONDS * listener.rate)
    parts = (samples[begin : begin + size] for begin in range(0, len(samples), size))
    yield parts, len(samples) / listener.rate
