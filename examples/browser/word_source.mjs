// SPDX-License-Identifier: Apache-2.0
// A page that detects words with a packed model, in the microphone or in files that it hears as they are played.
//
// Parameters of the address: ?speed=max reads a file at maximum speed, without playing it.

import { Model } from "edgernn";

import { capture, decode } from "./audio.mjs";
import { Listening, Playback } from "./listening.mjs";
import { element, kilobytes, list, showThreshold, startPage, stop } from "./sound_page.mjs";
import { WordDetector } from "./word_detector.mjs";

const BLOCK = 12; // milliseconds of steps per animation frame at maximum speed
const atMaximumSpeed = new URL(location.href).searchParams.get("speed") === "max";

/**
 * Starts a page that detects words.
 *
 * figures: The ids of the elements with figures, which are emptied before a source opens. keptSeconds: As for Listening.
 * onLoad: A function that gets the model. onClear: A function that is called before a source opens. onWord: A function
 * that gets the seconds of each word. draw: A function that gets the Listening before each frame, or undefined.
 */
export function startWordPage({ figures, keptSeconds, onLoad = () => {}, onClear = () => {}, onWord = () => {}, draw }) {
  let model;
  let listening;
  const onDetection = ({ word, score }, seconds) => {
    const data = { word, score: score.toFixed(2), seconds: seconds.toFixed(2) };
    list(word, `${data.seconds} s`, data).title = `probability ${data.score}`;
    onWord(seconds);
  };
  const feed = (samples) => listening.feed(samples);
  startPage({
    async load(bytes) {
      const loaded = await loadWords(bytes);
      model = loaded.model;
      showThreshold(loaded.threshold);
      onLoad(model);
      return loaded.about;
    },
    clear() {
      for (const id of figures) element(id).textContent = "–";
      onClear();
      const settings = { ...model.detection, threshold: Number(element("threshold").value) };
      const detector = new WordDetector(model.classes, model.inputs / model.sampleRate, settings);
      listening = new Listening(model, detector, { keptSeconds, onWord: onDetection });
    },
    toNode: (whileChosen) => capture(model.sampleRate, whileChosen(feed)),
    openFile: (file, whileChosen) => Player.open(file, model, whileChosen(feed)),
    onThreshold: (value) => {
      if (listening) listening.threshold = value;
    },
    draw: () => draw(listening),
  });
}

/** Opens a packed model of words. Returns it with the threshold in its file and a line about it. */
async function loadWords(bytes) {
  const model = await Model.load(bytes);
  if (model.features === undefined) {
    throw new Error("expected a model that reads audio, got one without a front end; train it with frontend=logmel");
  }
  if (model.sampleRate === undefined || model.classes === undefined) {
    throw new Error(
      "expected the sample rate and the names of the classes in the file, got none; export the model from its run " +
        "directory, and pack it",
    );
  }
  const { words, threshold } = new WordDetector(model.classes, 1, model.detection);
  const about = [`${words.length} word${words.length === 1 ? "" : "s"}`, `${model.neurons} neurons`, kilobytes(bytes.length)];
  return { model, threshold, about: about.join(", ") };
}

/** Plays the samples of a file, and passes them on as they are heard. */
class Player {
  #samples;
  #rate;
  #onSamples;
  #context;
  #playback;
  #stopped = false;

  static async open(file, model, onSamples) {
    const samples = await decode(await file.arrayBuffer(), model.sampleRate);
    if (samples.length < model.inputs) {
      throw new Error(`expected at least ${model.inputs} samples, one step of the model, got ${samples.length}`);
    }
    return new Player(samples, model.sampleRate, onSamples);
  }

  /** Use Player.open. */
  constructor(samples, rate, onSamples) {
    this.#samples = samples;
    this.#rate = rate;
    this.#onSamples = onSamples;
    this.#playback = new Playback(samples, rate);
  }

  begin() {
    if (!atMaximumSpeed) {
      this.#context = new AudioContext();
      const buffer = this.#context.createBuffer(1, this.#samples.length, this.#rate);
      buffer.copyToChannel(this.#samples, 0);
      const node = new AudioBufferSourceNode(this.#context, { buffer });
      node.connect(this.#context.destination);
      node.start();
      // a browser may create it suspended if the last click is long ago; the page may close it first
      this.#context.resume().catch(() => {});
    }
    this.#advance();
  }

  #advance() {
    if (this.#stopped) return;
    const begin = performance.now();
    const due = atMaximumSpeed ? Infinity : this.#context.currentTime * this.#rate;
    while (performance.now() - begin < BLOCK) {
      const part = this.#playback.next(due);
      if (part.length === 0) break;
      this.#onSamples(part);
    }
    if (this.#stopped) return;
    if (this.#playback.done) return stop("done");
    setTimeout(() => this.#advance(), atMaximumSpeed ? 0 : 20);
  }

  stop() {
    this.#stopped = true;
    this.#context?.close();
  }
}
