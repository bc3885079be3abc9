// SPDX-License-Identifier: Apache-2.0
// Streams x.csv through a model, a packed or an ONNX file, and draws input, output and updates. The user may choose other
// files. ONNX Runtime is loaded for an ONNX file only.
//
// Parameters of the address: ?speed=max runs at maximum speed, ?once stops at the end of the file.

import { Model } from "edgernn";

import { draw } from "./chart.mjs";
import { isHeader, namesOf, quantiles, steps } from "./csv.mjs";
import { Stream } from "./edgernn.mjs";
import { PackedStream } from "./packed.mjs";

const KEPT = 10_000; // maximum number of steps in a saved file
const FRAME = 12; // milliseconds spent on steps in each animation frame at maximum speed
// number of steps timed together: the browser's clock has a resolution of 5 µs, more than a step of a packed model takes
const TIMED = 50;

const element = (id) => document.getElementById(id);
const address = new URL(location.href).searchParams;

// for tasks recognised by their input names: functions from the inputs of the sequence so far to the target of y
const GOALS = {
  "value,marker": (inputs) => inputs.reduce((sum, [value, marker]) => sum + value * marker, 0),
};

/** Streams a file of steps through a model. */
class Run {
  rows = [];
  microseconds = [];
  count = 0;
  #stream;
  #lines;
  #steps;
  #inputs = []; // inputs of the sequence so far
  #timed = { steps: 0, milliseconds: 0 }; // steps of the block that is timed

  constructor(stream, text) {
    this.#stream = stream;
    this.#lines = text.trimEnd().split("\n");
    const [first] = this.#lines;
    this.names = isHeader(first) ? namesOf(first) : [];
    stream.reset();
    this.#rewind();
  }

  #rewind() {
    this.#steps = steps(this.#lines, this.#stream.inputSize, this.#stream.channels);
  }

  /** Runs the next step. Starts again after the end of the file, unless the address has ?once: then returns false. */
  async advance() {
    const { value: x, done } = await this.#steps.next();
    if (done && this.count === 0) throw new Error("expected at least one step, got none");
    if (done) this.#rewind();
    if (done || x === null) {
      this.#stream.reset();
      this.#inputs = [];
      return !(done && address.has("once"));
    }
    const start = performance.now();
    const { y, updates } = await this.#stream.step(x);
    this.#time(performance.now() - start);
    const begins = this.#inputs.length === 0;
    this.#inputs.push(x);
    const goal = GOALS[this.names]?.(this.#inputs);
    const share = updates === undefined ? 1 : updates / this.#stream.neurons;
    this.rows.push({ x, y, updates, share, begins, goal });
    this.count += 1;
    if (this.rows.length > KEPT) this.rows = this.rows.slice(-KEPT / 2);
    if (this.microseconds.length > KEPT) this.microseconds = this.microseconds.slice(-KEPT / 2);
    return true;
  }

  /** Adds the time of a step, and at the end of a block its mean per step. */
  #time(milliseconds) {
    this.#timed.steps += 1;
    this.#timed.milliseconds += milliseconds;
    if (this.#timed.steps < TIMED) return;
    this.microseconds.push((1000 * this.#timed.milliseconds) / TIMED);
    this.#timed = { steps: 0, milliseconds: 0 };
  }

  /** The median time of a step in µs; before the first block is complete, the mean. */
  get latency() {
    const { steps, milliseconds } = this.#timed;
    return this.microseconds.length > 0 ? quantiles(this.microseconds).median : (1000 * milliseconds) / steps;
  }

  /** Returns the kept rows as CSV: x, y and the number of updates, with an empty line between sequences. */
  csv() {
    const { x, y, updates } = this.rows[0];
    const names = [...x.map((_, c) => this.names[c] ?? `x${c}`), ...Array.from(y, (_, c) => `y${c}`)];
    if (updates !== undefined) names.push("updates");
    const lines = this.rows.map(({ x, y, updates, begins }, i) => {
      const line = [...x, ...y, ...(updates === undefined ? [] : [updates])].join();
      return begins && i > 0 ? `\n${line}` : line;
    });
    return [names.join(), ...lines, ""].join("\n");
  }
}

// the two files. chosen: Number of files so far: one that is slow to open may be outdated. content: {stream, about} of
// a model or {text} of an input, or null if the last file could not be opened
const model = { name: "model", chosen: 0, content: null };
const input = { name: "x.csv", chosen: 0, content: null };
let run = null;
let paused = false;

function fail(name, error) {
  run = null;
  element("error").textContent = `${name}: ${error.message}`;
  document.body.dataset.state = "failed";
}

/** Opens a file in place of `part`, the model or the input. The last chosen file wins, and its error is shown. */
async function choose(part, name, open) {
  const number = ++part.chosen;
  let content = null;
  try {
    content = await open();
  } catch (error) {
    if (number === part.chosen) fail(name, error);
  }
  if (number !== part.chosen) {
    content?.stream?.close();
    return;
  }
  part.content?.stream?.close();
  Object.assign(part, { name, content });
  begin();
}

/** Starts to stream, unless a file is missing: then its error stays. */
function begin() {
  if (model.content !== null) element("model").textContent = model.content.about;
  if (model.content === null || input.content === null) return;
  element("error").textContent = "";
  run = new Run(model.content.stream, input.content.text);
  document.body.dataset.state = "streaming";
}

async function openModel(name, bytes) {
  const stream = PackedStream.reads(bytes) ? await PackedStream.open(Model, bytes) : await openOnnx(bytes);
  const about = [
    ...describe(name, stream.info),
    `${stream.neurons} neurons`,
    `${Math.round(bytes.length / 1000).toLocaleString("en")} kB`,
  ].join(", ");
  return { stream, about };
}

async function openOnnx(bytes) {
  const ort = await import("onnxruntime-web");
  // a step is too short for several threads
  ort.env.wasm.numThreads = 1;
  return Stream.open(ort, bytes, { executionProviders: ["wasm"] });
}

/** Describes a model by the metadata of its ONNX file; a packed model has none. */
function describe(name, info) {
  if (info === undefined) return [`${name}: packed`];
  const [cell, rule] = ["cell", "rule"].map((part) => info.model.layer[part].name);
  return [
    `${name}: ${rule === "always" ? cell : `${cell} + ${rule}`}`,
    ...(info.task === undefined ? [] : [`task ${info.task}`]),
    `${info.parameters.toLocaleString("en")} parameters`,
  ];
}

async function fetched(name) {
  const response = await fetch(name);
  if (!response.ok) throw new Error(`the server answered with status ${response.status}`);
  return response;
}

function show() {
  const { rows = [], names = [], count = 0, latency } = run ?? {};
  draw(element("chart"), rows, names, count);
  if (count === 0) {
    for (const id of ["latency", "rate", "count"]) element(id).textContent = "–";
    return;
  }
  element("latency").textContent = `${latency.toFixed(1)} µs`;
  const share = rows.reduce((sum, row) => sum + row.share, 0) / rows.length;
  element("rate").textContent = `${(100 * share).toFixed(1)} %`;
  element("count").textContent = count.toLocaleString("en");
}

/** Runs the steps that are due, then draws them. */
async function frame(now, before, late) {
  const speed = element("speed").value === "max" ? Infinity : Number(element("speed").value);
  // at most one second of steps at once, after the page was in the background
  let due = Math.min(late + ((now - before) * speed) / 1000, speed);
  while (due >= 1 && !paused && document.body.dataset.state === "streaming") {
    const present = run;
    try {
      const goesOn = await present.advance();
      if (!goesOn && run === present) document.body.dataset.state = "done";
    } catch (error) {
      // the model of an outdated run is closed
      if (run === present) fail(input.name, error);
    }
    due -= 1;
    if (performance.now() - now > FRAME) break;
  }
  show();
  requestAnimationFrame((next) => frame(next, now, speed === Infinity ? 0 : due));
}

element("pause").onclick = () => {
  paused = !paused;
  element("pause").textContent = paused ? "Resume" : "Pause";
};
element("save").onclick = () => {
  if (!run?.count) return;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([run.csv()], { type: "text/csv" }));
  link.download = "y.csv";
  link.click();
  URL.revokeObjectURL(link.href);
};
element("modelFile").onchange = ({ target }) => {
  const [file] = target.files;
  target.value = ""; // the same file may be chosen again
  if (!file) return;
  element("model").textContent = file.name;
  choose(model, file.name, async () => openModel(file.name, new Uint8Array(await file.arrayBuffer())));
};
element("inputFile").onchange = ({ target }) => {
  const [file] = target.files;
  target.value = "";
  if (file) choose(input, file.name, async () => ({ text: await file.text() }));
};

if (address.has("speed")) element("speed").value = address.get("speed");
document.body.dataset.state = "loading";
await Promise.all([
  choose(input, input.name, async () => ({ text: await (await fetched(input.name)).text() })),
  choose(model, model.name, async () => {
    const content = await (await fetched(model.name)).arrayBuffer();
    return openModel(model.name, new Uint8Array(content));
  }),
]);
requestAnimationFrame((now) => frame(now, now, 0));
