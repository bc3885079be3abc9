// SPDX-License-Identifier: Apache-2.0
// Detects words with the parts of the page, without a browser, and prints them as JSON: {seconds, word, score} each.
//
//   node detect_words.mjs model.edgernn FILE.wav SETTINGS RATE FIRST
//
// SETTINGS are those of a WordDetector, as JSON. The file is read as the page reads a file that it plays, from the sample
// FIRST on. If RATE is not the model's, the samples are converted to this rate first, and from it to the model's rate as
// those of a microphone are.

import { readFileSync } from "node:fs";

import { Listening, Playback } from "../examples/browser/listening.mjs";
import { Resampler } from "../examples/browser/resampler.mjs";
import { readWav } from "../examples/browser/wav.mjs";
import { WordDetector } from "../examples/word_detector.mjs";
import { Model } from "../runtime/js/index.mjs";

const [path, wav, settings, ...numbers] = process.argv.slice(2);
const [rate, first] = numbers.map(Number);
const model = await Model.load(readFileSync(path));
const bytes = Uint8Array.from(readFileSync(wav));
const file = readWav(bytes.buffer, model.sampleRate);
if (file === null) throw new Error(`${wav}: expected one channel of 16-bit PCM samples at the rate of the model`);

const words = [];
const onWord = ({ word, score }, seconds) => words.push({ seconds, word, score });
const detector = new WordDetector(model.classes, model.inputs / model.sampleRate, JSON.parse(settings));
const listening = new Listening(model, detector, { onWord });
const fromMicrophone = new Resampler(rate, model.sampleRate);
const playback = new Playback(new Resampler(model.sampleRate, rate).feed(file.subarray(first)), rate);
for (let tick = 1; !playback.done; tick++) {
  // a tick of a timer is no whole number of samples
  const due = 0.0213 * tick * rate;
  for (let part = playback.next(due); part.length > 0; part = playback.next(due)) listening.feed(fromMicrophone.feed(part));
}
console.log(JSON.stringify(words));
