// SPDX-License-Identifier: Apache-2.0
// Shows in which parts of the sound of the microphone or of a file somebody speaks. The model runs in an AudioWorklet, on
// the browser's audio thread; this page draws what it finds.
//
// Parameters of the address: ?new=512 is the number of new samples of a step, for a model that reads more of them at each
// step; ?rate=16000 is the sample rate of a model that does not say its own.

import { loadModule, Model } from "edgernn";

import { drawProbability, SHOWN_SECONDS } from "./probability_chart.mjs";
import { element, kilobytes, list, startPage, stop } from "./sound_page.mjs";

const address = new URL(location.href).searchParams;

let model = null; // {module, bytes, settings}
let node = null; // of the present source
let steps = [];
let parts = [];

function clear() {
  steps = [];
  parts = [];
  for (const id of ["heard", "speech", "now"]) element(id).textContent = "–";
}

function onStep(step) {
  steps.push(step);
  if (!step.part) return;
  const { begin, end } = step.part;
  parts.push(step.part);
  list(`${(end - begin).toFixed(2)} s`, `at ${begin.toFixed(2)} s`, { begin: begin.toFixed(2), end: end.toFixed(2) });
}

/** Creates the node that runs the model. `onStep` gets each step, `onError` an error. */
async function activityNode(context, onStep, onError) {
  await context.audioWorklet.addModule("./vad_worklet.mjs");
  const threshold = Number(element("threshold").value);
  node = new AudioWorkletNode(context, "voice-activity", {
    numberOfOutputs: 0,
    channelCount: 1,
    // several channels are mixed to one
    channelCountMode: "explicit",
    processorOptions: { ...model, settings: { ...model.settings, threshold } },
  });
  node.onprocessorerror = () => onError(new Error("the audio thread stopped; load the page again"));
  await new Promise((resolve, reject) => {
    node.port.onmessage = ({ data }) => {
      if (data.ready) return resolve();
      if (data.error === undefined) return onStep(data);
      reject(new Error(data.error));
      onError(new Error(data.error));
    };
  });
  return node;
}

/** Plays a file, and passes what is heard to the model. */
class Player {
  #context = new AudioContext();

  static async start(file, makeNode, onEnd) {
    const player = new Player();
    const context = player.#context;
    try {
      const buffer = await context.decodeAudioData(await file.arrayBuffer()).catch(() => {
        throw new Error("expected a file with audio, such as a wav file, got another or a damaged one; choose another file");
      });
      const node = new AudioBufferSourceNode(context, { buffer });
      node.connect(await makeNode(context));
      node.connect(context.destination);
      node.onended = onEnd;
      await context.resume();
      node.start();
    } catch (error) {
      player.stop();
      throw error;
    }
    return player;
  }

  stop() {
    this.#context.close();
  }
}

function draw() {
  drawProbability(element("chart"), steps, parts, Number(element("threshold").value));
  const last = steps.at(-1);
  if (!last) return;
  const speech = parts.reduce((sum, part) => sum + part.end - part.begin, 0);
  element("heard").textContent = `${last.seconds.toFixed(1)} s`;
  element("speech").textContent = `${speech.toFixed(1)} s in ${parts.length} parts`;
  element("now").textContent = last.probability.toFixed(2);
  // steps that are no longer shown
  if (steps[(steps.length / 2) | 0].seconds < last.seconds - SHOWN_SECONDS) {
    steps = steps.filter((step) => step.seconds >= last.seconds - SHOWN_SECONDS);
  }
}

async function load(bytes) {
  const module = await loadModule();
  const opened = await Model.load(bytes, { module });
  const rate = Number(address.get("rate") ?? opened.sampleRate ?? 16000);
  const added = Number(address.get("new") ?? opened.inputs);
  model = { module, bytes, settings: { rate, added } };
  const milliseconds = ((1000 * added) / rate).toFixed(0);
  return `${opened.neurons} neurons, ${kilobytes(bytes.length)}, a step every ${milliseconds} ms`;
}

const toNode = (whileChosen, onError) => (context) => activityNode(context, whileChosen(onStep), onError);
startPage({
  load,
  clear,
  toNode,
  openFile: (file, whileChosen, onError) => Player.start(file, toNode(whileChosen, onError), whileChosen(() => stop("done"))),
  onThreshold: (value) => node?.port.postMessage(value),
  draw,
});
