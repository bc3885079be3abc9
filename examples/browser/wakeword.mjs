// SPDX-License-Identifier: Apache-2.0
// Listens for the phrase of a packed model in the sound of the microphone or of a file, and records takes of a phrase for
// the training. Nothing leaves the device.
//
// Parameters of the address: ?speed=max reads a file at maximum speed, without playing it.

import { capture, Microphone } from "./audio.mjs";
import { drawProbability, SHOWN_SECONDS } from "./probability_chart.mjs";
import { element, listen, stop } from "./sound_page.mjs";
import { checkTake } from "./takes.mjs";
import { writeWav } from "./wav.mjs";
import { WordDetector } from "./word_detector.mjs";
import { startWordPage } from "./word_source.mjs";

const TAKE_SECONDS = 2.5;
const ALARM_SECONDS = 0.4; // on the chart

let model = null;
let alarms = [];
let takes = 0;

function onLoad(loaded) {
  model = loaded;
  const { words, classes } = new WordDetector(model.classes, 1);
  element("phrase").textContent = words.map((label) => classes[label]).join(", ");
  element("record").disabled = false;
}

function draw(listening) {
  const { rows = [], count = 0, seconds = 0, words = 0 } = listening ?? {};
  const steps = rows.map(({ score }, i) => ({ seconds: (count - rows.length + i + 1) * seconds, probability: score }));
  drawProbability(element("chart"), steps, alarms, Number(element("threshold").value));
  if (count === 0) return;
  const heard = count * seconds;
  element("heard").textContent = `${heard.toFixed(1)} s`;
  element("alarms").textContent = `${words}`;
  element("rate").textContent = ((3600 * words) / heard).toFixed(1);
}

/** Records a take, checks it and lists it with a link to save it. */
function record() {
  const samples = new Float32Array(Math.round(TAKE_SECONDS * model.sampleRate));
  let filled = 0;
  element("advice").textContent = "";
  const onSamples = (part) => {
    if (filled === 0) element("advice").textContent = "speak now";
    const rest = part.subarray(0, samples.length - filled);
    samples.set(rest, filled);
    filled += rest.length;
    if (filled < samples.length) return;
    stop("recorded");
    const { isGood, advice } = checkTake(samples, model.sampleRate);
    element("advice").textContent = advice ?? "good";
    if (isGood) keep(samples);
  };
  listen("microphone", (whileChosen, onError) => Microphone.start(capture(model.sampleRate, whileChosen(onSamples)), onError));
}

function keep(samples) {
  takes += 1;
  const name = `${element("speaker").value.replace(/[^A-Za-z0-9-]/g, "") || "me"}_nohash_${String(takes).padStart(4, "0")}.wav`;
  const item = document.createElement("li");
  item.innerHTML = "<audio controls></audio><a></a>";
  const [audio, link] = item.children;
  audio.src = link.href = URL.createObjectURL(new Blob([writeWav(samples, model.sampleRate)], { type: "audio/wav" }));
  link.download = link.textContent = name;
  item.dataset.take = name;
  element("takes").prepend(item);
}

element("record").onclick = record;
startWordPage({
  figures: ["heard", "alarms", "rate"],
  keptSeconds: SHOWN_SECONDS,
  onLoad,
  onClear: () => {
    alarms = [];
  },
  onWord: (seconds) => alarms.push({ begin: seconds - ALARM_SECONDS, end: seconds }),
  draw,
});
