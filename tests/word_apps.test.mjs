// SPDX-License-Identifier: Apache-2.0
// Tests of the parts of the page with words for Node's test runner, which tests/checks/word_apps.py starts. The
// environment variable CASES is a file of {classes, seconds, settings, scores, detections}, with the detections that
// edgernn.runtime.word_detection finds.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { Resampler } from "../examples/browser/resampler.mjs";
import { WordDetector } from "../examples/word_detector.mjs";

test("words are those of edgernn.runtime.word_detection", () => {
  for (const { classes, seconds, settings, scores, detections } of JSON.parse(readFileSync(process.env.CASES))) {
    const detector = new WordDetector(classes, seconds, settings);
    const words = scores.map((row) => detector.feed(row)).filter((word) => word !== undefined);
    assert.deepEqual(words.map(({ step, word }) => [step, word]), detections.map(({ step, word }) => [step, word]));
    words.forEach(({ score }, i) => assert(Math.abs(score - detections[i].score) < 1e-9));
  }
});

test("a detector needs a word", () => {
  assert.throws(() => new WordDetector(["_silence_"], 0.1), /classes: expected at least one word to detect, got _silence_/);
});

const sine = (frequency, rate, count) => Float32Array.from({ length: count }, (_, i) => Math.sin((2 * Math.PI * frequency * i) / rate));

/** Feeds samples in parts of different lengths. */
function feed(resampler, samples) {
  const outputs = [];
  for (let at = 0, size = 1; at < samples.length; at += size, size = (size * 7) % 1009) {
    outputs.push(...resampler.feed(samples.subarray(at, at + size)));
  }
  return outputs;
}

for (const from of [8000, 16000, 22050, 44100, 48000, 96000]) {
  test(`a tone at ${from} samples a second keeps its frequency, phase and level`, () => {
    const outputs = feed(new Resampler(from, 16000), sine(1000, from, 3 * from));
    // all but the last inputs, which the filter waits for
    assert(outputs.length > 2.98 * 16000 && outputs.length <= 3 * 16000);
    const expected = sine(1000, 16000, outputs.length);
    for (let i = 200; i < outputs.length; i++) assert(Math.abs(outputs[i] - expected[i]) < 2e-3, `${i}`);
  });
}

test("tones above half of the rate are removed", () => {
  const outputs = feed(new Resampler(48000, 16000), sine(11000, 48000, 48000));
  assert(Math.max(...outputs.slice(200).map(Math.abs)) < 2e-3);
});
