# SPDX-License-Identifier: Apache-2.0
"""Fixed scores with the words that each implementation of the detector finds in them: Python, C and JavaScript."""

import numpy as np

from edgernn.runtime.word_detection import Detector, PostProcessing

INF, NAN = float("inf"), float("nan")
# scores of one class in steps at which it is certain, and at which all classes are alike
_ONE, _TWO, _NONE, _ALIKE = [60, 0, 0], [0, 60, 0], [0, 0, 60], [0, 0, 0]
_CLASSES = ["left", "right", "_silence_"]

# (seconds of a step, smoothing, threshold, refractory, scores, detections as (step, class))
_CASES = {
    "before the first step all probabilities are 0": (0.02, 0.06, 0.5, 0.8, [_ONE] * 3, [(1, 0)]),
    "a threshold may be reached exactly": (0.02, 0.0, 0.5, 0.0, [[0, 0, -INF]], [(0, 0)]),
    "a threshold of 1 may be reached": (0.02, 0.06, 1.0, 0.8, [_TWO] * 4, [(2, 1)]),
    "of equal words the first": (0.02, 0.04, 0.5, 0.0, [_TWO, _ONE], [(0, 1), (1, 0)]),
    "silence is no word": (0.02, 0.0, 0.4, 0.0, [_NONE, _ALIKE, _TWO], [(2, 1)]),
    "a third, summed without error": (0.02, 0.2, 1 / 3 - 1e-5, 0.0, [_ALIKE] * 10, [(9, 0)]),
    "refractory time of three steps": (0.02, 0.0, 0.5, 0.06, [_ONE] * 7 + [_TWO], [(0, 0), (3, 0), (6, 0)]),
    "another word in the refractory time": (0.02, 0.0, 0.5, 0.06, [_ONE, _TWO, _TWO, _NONE, _TWO], [(0, 0), (4, 1)]),
    "no smoothing, no refractory time": (0.02, 0.0, 0.9, 0.0, [_ONE, _TWO, _NONE, _ONE], [(0, 0), (1, 1), (3, 0)]),
    "halves of steps are rounded to even": (0.5, 1.25, 1.0, 0.75, [_ONE] * 6, [(1, 0), (3, 0), (5, 0)]),
    "steps of several hops": (0.04, 0.12, 0.9, 0.08, [_ONE] * 6, [(2, 0), (4, 0)]),
    "scores that are no numbers": (
        0.02,
        0.04,
        0.5,
        0.0,
        [_ONE, [NAN, 0, 0], [INF, 0, 0], _ONE],
        [(0, 0), (1, 0), (3, 0)],
    ),
    "large scores": (0.02, 0.0, 0.9, 0.0, [[3e38, -3e38, 0], [-3e38, 3e38, 3e37]], [(0, 0), (1, 1)]),
}


def fixed_cases():
    """The cases as dicts with the keys name, classes, seconds, settings (a dict), scores and detections."""
    return [
        {
            "name": name,
            "classes": _CLASSES,
            "seconds": seconds,
            "settings": {"smoothing": smoothing, "threshold": threshold, "refractory": refractory},
            "scores": scores,
            "detections": detections,
        }
        for name, (seconds, smoothing, threshold, refractory, scores, detections) in _CASES.items()
    ]


def random_scores(T, classes=4, seed=0):
    rng = np.random.default_rng(seed)
    slow = np.repeat(rng.normal(0, 6, (-(-T // 7), classes)), 7, 0)[:T]
    return (slow + rng.normal(0, 0.5, (T, classes))).astype(np.float32)


def random_cases():
    """Cases of random scores, without their detections."""
    for settings in ((0.3, 0.5, 0.8), (0.05, 0.3, 0.1), (0.0, 0.9, 0.0), (0.07, 0.6, 0.03)):
        named = dict(zip(("smoothing", "threshold", "refractory"), settings, strict=True))
        scores = random_scores(400, 3).astype(float).tolist()
        yield {"name": str(settings), "classes": _CLASSES, "seconds": 0.02, "settings": named, "scores": scores}


def detector_of(case):
    return Detector(case["classes"], case["seconds"], PostProcessing(**case["settings"]))


def detections_of(case):
    """The detections in Python as dicts with the keys step, word and score."""
    words = detector_of(case).feed(np.float32(case["scores"]))
    return [{"step": word.step, "word": case["classes"][word.label], "score": word.score} for word in words]
