// SPDX-License-Identifier: Apache-2.0
// Times steps of packed models in Node, for tests/measure_wasm.py:
//
//   node time_packed.mjs x model.edgernn…
//
// x has sequences of float32 (N, T, I), of which `STEPS` steps make a sequence. Prints the median time of a step in µs
// for each model, as JSON.

import { readFileSync } from "node:fs";

import { quantiles } from "../examples/csv.mjs";
import { Model } from "../runtime/js/index.mjs";

const STEPS = 50; // T
const WARM_UP = 20; // passes over x
const PASSES = 60;

const [xFile, ...files] = process.argv.slice(2);
const bytes = Uint8Array.from(readFileSync(xFile));
const x = new Float32Array(bytes.buffer);

function pass(model) {
  const width = model.inputs;
  for (let at = 0, t = 0; at < x.length; at += width, t++) {
    if (t % STEPS === 0) model.reset();
    for (let i = 0; i < width; i++) model.x[i] = x[at + i];
    model.step();
  }
}

const times = [];
for (const file of files) {
  const model = await Model.load(readFileSync(file));
  const count = x.length / model.inputs;
  for (let i = 0; i < WARM_UP; i++) pass(model);
  const microseconds = [];
  for (let i = 0; i < PASSES; i++) {
    const start = performance.now();
    pass(model);
    microseconds.push((1000 * (performance.now() - start)) / count);
  }
  times.push(quantiles(microseconds).median);
}
console.log(JSON.stringify(times));
