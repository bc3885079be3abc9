# SPDX-License-Identifier: Apache-2.0
"""Samples of the microphone, by the package sounddevice or, without it, by the program arecord of Linux."""

import importlib
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.errors import EdgernnError, EdgernnWarning, MissingPackageError

# seconds of a block
BLOCK_SECONDS = 0.1
# reads the next block of samples
Read = Callable[[], NDArray[np.int16]]
_REMEDY = (
    "check that it is plugged in, switched on and allowed for this terminal, and that no other program holds it, or "
    "pass recordings with --input"
)


@contextmanager
def microphone(rate: int) -> Iterator[Read]:
    """Context manager that opens the system's default microphone, as one channel of 16-bit samples.

    Args:
        rate: Samples per second.

    Yields:
        A function that waits for the next BLOCK_SECONDS of samples (S,), from -32768 to 32767, and returns them. It
        raises EdgernnError if the microphone ends.

    Raises:
        EdgernnError: There is no microphone, or its use is refused.
        MissingPackageError: Neither sounddevice nor arecord is installed.
    """
    count = round(BLOCK_SECONDS * rate)
    sounddevice: Any = None
    try:
        sounddevice = importlib.import_module("sounddevice")
    except ImportError:
        pass
    # the package's own library is missing
    except OSError as error:
        raise _refused(f"sounddevice: {error}") from error
    if sounddevice is not None:
        with _by_sounddevice(sounddevice, rate, count) as read:
            yield read
    elif (program := shutil.which("arecord")) is not None:
        with _by_arecord(program, rate, count) as read:
            yield read
    else:
        raise MissingPackageError(
            "The microphone", "needs sounddevice; pip install 'sounddevice>=0.5', or pass recordings with --input"
        )


@contextmanager
def _by_sounddevice(sounddevice: Any, rate: int, count: int) -> Iterator[Read]:
    lost = False

    def read() -> NDArray[np.int16]:
        nonlocal lost
        samples, overflowed = stream.read(count)
        if overflowed and not lost:
            lost = True
            text = "microphone: samples were lost, as the computer is too busy; close other programs"
            warnings.warn(text, EdgernnWarning, stacklevel=2)
        return np.array(samples[:, 0], np.int16)

    try:
        with sounddevice.InputStream(samplerate=rate, channels=1, dtype="int16", blocksize=count) as stream:
            yield read
    except sounddevice.PortAudioError as error:
        raise _refused(error) from error


@contextmanager
def _by_arecord(program: str, rate: int, count: int) -> Iterator[Read]:
    words = [program, "-q", "-t", "raw", "-f", "S16_LE", "-c", "1", "-r", str(rate)]
    with tempfile.TemporaryFile() as messages:
        # its own session: Ctrl-C ends this program first
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=messages, start_new_session=True)
        assert process.stdout is not None
        stdout = process.stdout

        def read() -> NDArray[np.int16]:
            content = stdout.read(2 * count)
            if len(content) < 2 * count:
                process.wait()
                messages.seek(0)
                lines = messages.read().decode(errors="replace").strip().splitlines()
                raise _refused(lines[-1] if lines else f"{program} ended")
            return np.frombuffer(content, "<i2").astype(np.int16)

        try:
            yield read
        finally:
            process.terminate()
            stdout.close()
            process.wait()


def _refused(reason: object) -> EdgernnError:
    return EdgernnError(f"microphone: expected one that can be heard, got the error '{reason}'; {_REMEDY}")
