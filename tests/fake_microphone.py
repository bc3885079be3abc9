# SPDX-License-Identifier: Apache-2.0
"""Microphones that play samples, in the place of the package sounddevice and of the program arecord."""

import sys
import types

import numpy as np


def by_sounddevice(monkeypatch, samples, then):
    """Replace sounddevice by a microphone of these samples; `then` is called where they end, and silence follows."""
    waiting = [np.asarray([] if samples is None else samples, np.int16)]

    class PortAudioError(Exception):
        pass

    class InputStream:
        def __init__(self, *, samplerate, channels, dtype, blocksize):
            assert (samplerate, channels, dtype) == (16_000, 1, "int16")
            if samples is None:
                raise PortAudioError("Error querying device -1")

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def read(self, count):
            if not len(waiting[0]):
                then()
            block, waiting[0] = waiting[0][:count], waiting[0][count:]
            return np.pad(block, (0, count - len(block)))[:, None], False

    module = types.SimpleNamespace(InputStream=InputStream, PortAudioError=PortAudioError)
    monkeypatch.setitem(sys.modules, "sounddevice", module)


def by_arecord(monkeypatch, folder, script):
    """Replace arecord by a shell script, without sounddevice."""
    program = folder / "bin" / "arecord"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setitem(sys.modules, "sounddevice", None)
