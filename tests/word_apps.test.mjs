// SPDX-License-Identifier: Apache-2.0
// Tests of the parts of the page with words for Node's test runner, which tests/checks/word_apps.py starts. The
// environment variable CASES is a file of {classes, seconds, settings, scores, detections}, with the detections that
// edgernn.runtime.word_detection finds. WAVS is a file of {files: [{path, samples}]}, with the samples that
// edgernn.runtime.wav reads, or null if it refuses the file.
// TAKES is a file of {samples, isGood, advice}, with what edgernn.runtime.takes says of them.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { Listening, Playback } from "../examples/browser/listening.mjs";
import { Resampler } from "../examples/browser/resampler.mjs";
import { checkTake } from "../examples/browser/takes.mjs";
import { readWav, writeWav } from "../examples/browser/wav.mjs";
import { drawWords } from "../examples/browser/words_chart.mjs";
import { WordDetector } from "../examples/word_detector.mjs";

test("words are those of edgernn.runtime.word_detection", () => {
  for (const { classes, seconds, settings, scores, detections } of JSON.parse(readFileSync(process.env.CASES))) {
    const detector = new WordDetector(classes, seconds, settings);
    for (let time = 0; time < 2; time++) {
      // JSON has no NaN and no infinity; Number() reads their names
      const words = scores.map((row) => detector.feed(row.map(Number))).filter((word) => word !== undefined);
      assert.deepEqual(words, detections);
      detector.reset();
    }
  }
});

test("takes are judged as by edgernn.runtime.takes", () => {
  for (const { samples, isGood, advice } of JSON.parse(readFileSync(process.env.TAKES))) {
    const judged = checkTake(Float32Array.from(samples, (sample) => sample / 32768), 16000);
    assert.deepEqual(judged, { isGood, advice: advice ?? undefined });
  }
});

test("a wav file that is written is read to the same samples", () => {
  const samples = Float32Array.of(0, 0.5, -1, 32767 / 32768, 1 / 32768);
  assert.deepEqual(readWav(writeWav(samples, 16000).buffer, 16000), samples);
  assert.deepEqual(readWav(writeWav(Float32Array.of(1.5, -2), 8000).buffer, 8000), Float32Array.of(32767 / 32768, -1));
});

test("a detector needs a word", () => {
  assert.throws(() => new WordDetector(["_silence_"], 0.1), /classes: expected at least one word to detect, got _silence_/);
});

test("settings out of range are refused", () => {
  for (const [settings, message] of [
    [{ threshold: 0 }, "threshold: expected above 0 and at most 1, got 0"],
    [{ threshold: 1.1 }, "threshold: expected above 0 and at most 1, got 1.1"],
    [{ threshold: NaN }, "threshold: expected above 0 and at most 1, got NaN"],
    [{ smoothing: -1 }, "smoothing: expected from 0 to 60 seconds, got -1"],
    [{ refractory: 61 }, "refractory: expected from 0 to 60 seconds, got 61"],
    [{ smoothing: NaN }, "smoothing: expected from 0 to 60 seconds, got NaN"],
  ]) {
    assert.throws(() => new WordDetector(["left"], 0.1, settings), { message });
  }
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

// currentTime of a context of 48 kHz is a multiple of 128 / 48000 s, which is no whole number of samples at these rates
for (const rate of [8000, 11025, 16000]) {
  test(`a file of ${rate} samples a second is played without losing or repeating a sample`, () => {
    const samples = Float32Array.from({ length: 3 * rate + 7 }, (_, i) => i);
    const playback = new Playback(samples, rate);
    const played = [];
    for (let block = 1; !playback.done; block += 1 + (block % 11)) {
      const due = ((128 * block) / 48000) * rate;
      for (let part = playback.next(due); part.length > 0; part = playback.next(due)) {
        assert(part.length <= rate / 10);
        played.push(...part);
      }
      assert.equal(played.length, Math.min(Math.floor(due), samples.length));
      // time does not run backwards, but a second question at the same time has no answer
      assert.equal(playback.next(due - 1).length, 0);
    }
    assert.deepEqual(Float32Array.from(played), samples);
  });
}

test("a file at maximum speed is passed on whole", () => {
  const playback = new Playback(new Float32Array(16001), 16000);
  const lengths = [];
  while (!playback.done) lengths.push(playback.next(Infinity).length);
  assert.deepEqual(lengths, [...Array(10).fill(1600), 1]);
});

test("each step gets its samples, from parts of any length", () => {
  const steps = [];
  const model = { inputs: 320, sampleRate: 16000, neurons: 4, updates: 1, features: new Float32Array(2), reset: () => {} };
  model.step = (x) => steps.push(...x);
  const detector = { feed: () => (steps.length % 3200 ? undefined : { word: "left" }) };
  const times = [];
  const listening = new Listening(model, detector, { keptSeconds: 0.2, onWord: (_, seconds) => times.push(seconds) });
  const samples = Float32Array.from({ length: 16100 }, (_, i) => i);
  feed({ feed: (part) => (listening.feed(part), []) }, samples);
  assert.deepEqual(Float32Array.from(steps), samples.subarray(0, 16000));
  assert.deepEqual(times.map((seconds) => seconds.toFixed(2)), ["0.20", "0.40", "0.60", "0.80", "1.00"]);
  assert.equal(listening.count, 50);
  assert.equal(listening.words, 5);
  assert(listening.rows.length >= 10 && listening.rows.length <= 20);
  assert.equal(listening.rows.at(-1).share, 0.25);
});

test("a wav file is read to the samples that the other programs read, and every other file is left to the browser", () => {
  const { files } = JSON.parse(readFileSync(process.env.WAVS));
  for (const { path, samples } of files) {
    const read = readWav(Uint8Array.from(readFileSync(path)).buffer, 16000);
    if (samples === null) assert.equal(read, null, path);
    else assert.deepEqual(read, Float32Array.from(samples, (sample) => sample / 32768), path);
  }
});

test("the page names updates by a word that is right for all rules", () => {
  const texts = [];
  const methods = { fillText: (text) => texts.push(text), measureText: () => ({ width: 0 }) };
  const g = new Proxy({}, { get: (_, name) => methods[name] ?? (() => {}), set: () => true });
  globalThis.getComputedStyle = () => ({ getPropertyValue: () => "#000000 #000000 #000000" });
  globalThis.document = { documentElement: {} };
  globalThis.window = { devicePixelRatio: 1 };
  drawWords({ clientWidth: 600, clientHeight: 400, getContext: () => g }, [], 0, 0.02);
  assert.deepEqual(texts.slice(0, 2), ["Features", "Updates, %"]);
  const page = readFileSync(new URL("../examples/browser/words.html", import.meta.url), "utf8");
  assert.match(page, /<dt>updates, last 10 s<\/dt>/);
  assert.doesNotMatch(page, /neurons updated/i);
});

test("tones above half of the rate are removed", () => {
  const outputs = feed(new Resampler(48000, 16000), sine(11000, 48000, 48000));
  assert(Math.max(...outputs.slice(200).map(Math.abs)) < 2e-3);
});
