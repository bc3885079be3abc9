// SPDX-License-Identifier: Apache-2.0
// Detects spoken words in the sound of the microphone or of a file, with a packed model that reads audio, and shows the
// features, the words and the share of updates at each step.
//
// Parameters of the address: ?speed=max reads a file at maximum speed, without playing it.

import { Model } from "edgernn";

import { decode, Microphone } from "./audio.mjs";
import { Listening, Playback } from "./listening.mjs";
import { WordDetector } from "./word_detector.mjs";
import { drawWords, SHOWN_SECONDS } from "./words_chart.mjs";

const BLOCK = 12; // milliseconds of steps per animation frame at maximum speed
const LISTED = 100; // number of words in the list
const FIGURES = ["heard", "updated", "time"];

const element = (id) => document.getElementById(id);
const atMaximumSpeed = new URL(location.href).searchParams.get("speed") === "max";

let model = null;
let listening = null;
let source = null; // what stop() ends
let chosen = 0; // grows with each source and each error: a source that is slow to open may be outdated

function list({ word, score }, seconds) {
  const item = document.createElement("li");
  item.innerHTML = "<b></b><span></span>";
  item.firstChild.textContent = word;
  item.lastChild.textContent = `${seconds.toFixed(2)} s`;
  item.title = `probability ${score.toFixed(2)}`;
  Object.assign(item.dataset, { word, score: score.toFixed(2), seconds: seconds.toFixed(2) });
  element("words").prepend(item);
  while (element("words").children.length > LISTED) element("words").lastChild.remove();
}

/** Ends the source and shows an error on the page. */
function fail(name, error) {
  chosen += 1;
  stop("failed");
  element("error").textContent = `${name}: ${error.message}`;
}

function stop(state = "stopped") {
  source?.stop();
  source = null;
  element("stop").disabled = true;
  document.body.dataset.state = state;
}

/**
 * Ends the present source and opens another one. `open` gets a function for samples and one for a later error, and
 * resolves to an object with a method stop().
 */
async function listen(name, open) {
  stop("opening");
  const number = ++chosen;
  element("error").textContent = "";
  element("words").replaceChildren();
  for (const id of FIGURES) element(id).textContent = "–";
  const threshold = Number(element("threshold").value);
  const onError = (error) => {
    if (number === chosen) fail(name, error);
  };
  const onSamples = (samples) => {
    if (number !== chosen || document.body.dataset.state !== "listening") return;
    try {
      listening.feed(samples);
    } catch (error) {
      fail(name, error);
    }
  };
  try {
    const detector = new WordDetector(model.classes, model.inputs / model.sampleRate, { threshold });
    listening = new Listening(model, detector, { keptSeconds: SHOWN_SECONDS, onWord: list });
    const opened = await open(onSamples, onError);
    if (number !== chosen) return opened.stop();
    source = opened;
    element("stop").disabled = false;
    document.body.dataset.state = "listening";
    opened.begin?.();
  } catch (error) {
    onError(error);
  }
}

/** Plays the samples of a file, and passes them on as they are heard. */
class Player {
  #samples;
  #rate;
  #onSamples;
  #context;
  #playback;
  #stopped = false;

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

async function loadModel() {
  const response = await fetch("model");
  if (!response.ok) throw new Error(`the server answered with status ${response.status}`);
  const bytes = await response.arrayBuffer();
  const loaded = await Model.load(bytes);
  if (loaded.features === undefined) {
    throw new Error("expected a model that reads audio, got one without a front end; train it with frontend=logmel");
  }
  if (loaded.sampleRate === undefined || loaded.classes === undefined) {
    throw new Error(
      "expected the sample rate and the names of the classes in the file, got none; export the model from its run " +
        "directory, and pack it",
    );
  }
  const words = new WordDetector(loaded.classes, 1).words.length;
  element("model").textContent = [
    `${words} words`,
    `${loaded.neurons} neurons`,
    `${Math.round(bytes.byteLength / 1000).toLocaleString("en")} kB`,
  ].join(", ");
  return loaded;
}

function show() {
  const seconds = listening?.seconds ?? 0;
  drawWords(element("chart"), listening?.rows ?? [], listening?.count ?? 0, seconds);
  if (listening?.count) {
    const heard = listening.count * seconds;
    const last = listening.rows.slice(-Math.round(SHOWN_SECONDS / seconds));
    const share = last.reduce((sum, row) => sum + row.share, 0) / last.length;
    element("heard").textContent = `${heard.toFixed(1)} s, ${listening.words} words`;
    element("updated").textContent = `${(100 * share).toFixed(1)} %`;
    element("time").textContent = `${((0.1 * listening.milliseconds) / heard).toPrecision(2)} %`;
  }
  requestAnimationFrame(show);
}

element("microphone").onclick = () =>
  listen("microphone", (...callbacks) => Microphone.start(model.sampleRate, ...callbacks));
element("file").onchange = ({ target }) => {
  const [file] = target.files;
  target.value = "";
  if (!file) return;
  listen(file.name, async (onSamples) => {
    const samples = await decode(await file.arrayBuffer(), model.sampleRate);
    if (samples.length < model.inputs) {
      throw new Error(`expected at least ${model.inputs} samples, one step of the model, got ${samples.length}`);
    }
    return new Player(samples, model.sampleRate, onSamples);
  });
};
element("stop").onclick = () => stop();
element("threshold").oninput = ({ target }) => {
  element("thresholdValue").textContent = target.value;
  if (listening) listening.threshold = Number(target.value);
};

document.body.dataset.state = "loading";
try {
  model = await loadModel();
  for (const id of ["microphone", "file"]) element(id).disabled = false;
  document.body.dataset.state = "ready";
} catch (error) {
  fail("model", error);
}
requestAnimationFrame(show);
