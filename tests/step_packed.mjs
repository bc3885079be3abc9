// SPDX-License-Identifier: Apache-2.0
// Steps packed models with runtime/js for tests/checks/wasm.py:
//
//   node step_packed.mjs folder edgernn | edgernn-relaxed
//
// jobs.json in the folder is a list of {model, batch, steps, x, y}: the bytes of a packed model and of its input in
// `data`, as [offset, bytes], and where its outputs start in the file `y`. Prints the result of each job as a line of
// JSON: {updates} per step, or the {status, message} of its error. The module is named. Any other error ends the program.

import { readFileSync, writeFileSync } from "node:fs";

import { EdgernnError, Model } from "../runtime/js/index.mjs";

const [folder, name] = process.argv.slice(2);
const module = await WebAssembly.compile(readFileSync(new URL(`../runtime/js/${name}.wasm`, import.meta.url)));

const jobs = JSON.parse(readFileSync(`${folder}/jobs.json`, "utf-8"));
const data = readFileSync(`${folder}/data`);
const part = ([offset, bytes]) => data.subarray(offset, offset + bytes);
const outputs = [];

for (const { model: content, batch, steps, x } of jobs) {
  const begin = performance.now();
  let result;
  try {
    const model = await Model.load(part(content), { batch, memory: 2 ** 28, module });
    model.onNonfinite("reset");
    const words = model.vocabulary > 0;
    const bytes = Uint8Array.from(part(x));
    const numbers = new Float32Array(bytes.buffer, 0, bytes.length / 4);
    const width = words ? batch : batch * model.inputs;
    const updates = [];
    const y = [];
    for (let t = 0; t < steps; t++) {
      // a damaged model may have other sizes or fewer words
      const x_t = Array.from({ length: width }, (_, i) => numbers[(t * width + i) % numbers.length]);
      y.push(...model.step(words ? x_t.map((word) => word % model.vocabulary) : x_t));
      if (model.updates !== undefined) updates.push(model.updates);
    }
    outputs.push(Float32Array.from(y));
    result = { outputs: y.length, updates };
  } catch (error) {
    if (!(error instanceof EdgernnError)) throw error;
    result = { status: error.status, message: error.message };
  }
  console.log(JSON.stringify({ ...result, milliseconds: performance.now() - begin }));
}
writeFileSync(`${folder}/y`, Buffer.concat(outputs.map((y) => Buffer.from(y.buffer))));
