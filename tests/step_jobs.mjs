// SPDX-License-Identifier: Apache-2.0
// Steps packed models with runtime/js, in Node or in a page; step_packed.mjs describes the jobs.

import { EdgernnError, Model } from "../runtime/js/index.mjs";

/** Returns the result of each job, {outputs, updates, milliseconds} or {status, message, milliseconds}, and all y. */
export async function runJobs(jobs, data, module) {
  const part = ([offset, bytes]) => data.subarray(offset, offset + bytes);
  const results = [];
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
      outputs.push(y);
      result = { outputs: y.length, updates };
    } catch (error) {
      if (!(error instanceof EdgernnError)) throw error;
      result = { status: error.status, message: error.message };
    }
    results.push({ ...result, milliseconds: performance.now() - begin });
  }
  return { results, y: outputs.flat() };
}
