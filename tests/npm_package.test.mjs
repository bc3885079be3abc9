// SPDX-License-Identifier: Apache-2.0
// Tests of runtime/js for Node's test runner, which tests/checks/wasm.py starts. The environment variable FOLDER has
// sarnn.edgernn (gru + selective, I = 3, H = 128, O = 2), a state of it that the native library saved, with y of the next
// step, and words.edgernn (11 words).

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Worker } from "node:worker_threads";

import { EdgernnError, Model } from "../runtime/js/index.mjs";

const read = (name) => readFileSync(`${process.env.FOLDER}/${name}.edgernn`);
const sarnn = read("sarnn");
const words = read("words");
const x = Float32Array.from({ length: 3 * 40 }, (_, i) => Math.sin(i));

const refuses = (status, message) => (error) => {
  assert(error instanceof EdgernnError, error.stack);
  assert.equal(error.status, status);
  assert.match(error.message, message);
  return true;
};

test("sizes, and views of the memory", async () => {
  const model = await Model.load(sarnn);
  const { batch, inputs, vocabulary, outputs, neurons } = model;
  assert.deepEqual({ batch, inputs, vocabulary, outputs, neurons }, { batch: 1, inputs: 3, vocabulary: 0, outputs: 2, neurons: 128 });
  const { x: view, y, state } = model;
  assert.equal(state.length, 128);
  const { classes, sampleRate, features } = model;
  assert.deepEqual([classes, sampleRate, features], [undefined, undefined, undefined]);
  view.set(x.subarray(0, 3));
  assert.equal(model.step(), y);
  const first = y.slice();
  assert(first.every(Number.isFinite) && first.some((value) => value !== 0));
  assert(model.updates > 0 && model.updates <= 128 && model.macs > 0);
  model.reset();
  assert.deepEqual(model.step(x.subarray(0, 3)), first);
  model.reset();
  assert.deepEqual(model.step(Array.from(x.subarray(0, 3))), first);
  // the views are those of the model's memory after thousands of refused calls too
  for (let i = 0; i < 5000; i++) assert.throws(() => model.restore(new Uint8Array(64)), EdgernnError);
  assert.equal(view.length, 3);
  assert.equal(model.state, state);
  assert.equal(state.length, 128);
});

test("run equals steps, and continues from the state", async () => {
  const model = await Model.load(sarnn.buffer.slice(sarnn.byteOffset, sarnn.byteOffset + sarnn.length));
  const y = model.run(x);
  assert.equal(y.length, 2 * 40);
  model.reset();
  for (let t = 0; t < 40; t++) assert.deepEqual(Array.from(model.step(x.subarray(3 * t, 3 * t + 3))), Array.from(y.subarray(2 * t, 2 * t + 2)));
  const more = model.run(Array.from(x));
  assert.notDeepEqual(more, y);
});

test("workers load models of their own, and a message carries none", async () => {
  const model = await Model.load(sarnn);
  assert.equal(structuredClone(model).step, undefined);
  const code = `
    const { parentPort, workerData } = require("node:worker_threads");
    import(workerData.url).then(async ({ Model }) => {
      const model = await Model.load(workerData.bytes);
      for (let i = 0; i < 50; i++) {
        model.reset();
        parentPort.postMessage(model.run(workerData.x));
      }
    });
  `;
  const url = new URL("../runtime/js/index.mjs", import.meta.url).href;
  const expected = model.run(x);
  const start = () => {
    const worker = new Worker(code, { eval: true, workerData: { url, bytes: new Uint8Array(sarnn), x } });
    return new Promise((resolve, reject) => {
      worker.on("message", (y) => assert.deepEqual(y, expected));
      worker.on("error", reject);
      worker.on("exit", resolve);
    });
  };
  const workers = [start(), start()];
  for (let i = 0; i < 50; i++) {
    model.reset();
    assert.deepEqual(model.run(x), expected);
  }
  assert.deepEqual(await Promise.all(workers), [0, 0]);
});

test("models and clones keep states of their own", async () => {
  const [a, b] = await Promise.all([Model.load(sarnn), Model.load(sarnn)]);
  const y = a.run(x);
  assert.deepEqual(b.run(x), y);
  const c = a.clone();
  const next = a.step([1, 2, 3]).slice();
  assert.deepEqual(c.state.length, a.state.length);
  b.reset();
  assert.deepEqual(c.step([1, 2, 3]), next);
  assert.notDeepEqual(b.step([1, 2, 3]), next);
  c.reset();
  assert.deepEqual(c.run(x), y);
});

test("a batch has a state per sequence", async () => {
  const model = await Model.load(sarnn, { batch: 3 });
  const alone = await Model.load(sarnn);
  const rows = [0, 1, 2].map((b) => Float32Array.from({ length: 3 * 10 }, (_, i) => Math.cos(i + 10 * b)));
  for (let t = 0; t < 10; t++) {
    if (t === 5) model.resetRow(1);
    const y = model.step(rows.flatMap((row) => Array.from(row.subarray(3 * t, 3 * t + 3))));
    if (t === 9) {
      assert.equal(model.updatesOf(0) + model.updatesOf(1) + model.updatesOf(2), model.updates);
      rows.forEach((row, b) => {
        alone.reset();
        const expected = alone.run(b === 1 ? row.subarray(15) : row).slice(-2);
        expected.forEach((value, i) => assert(Math.abs(value - y[2 * b + i]) < 1e-6));
      });
    }
  }
});

test("a saved state continues, in another model too", async () => {
  const [a, b] = [await Model.load(sarnn), await Model.load(sarnn)];
  a.run(x);
  const saved = a.save();
  const expected = a.run(x);
  b.restore(saved);
  assert.deepEqual(b.run(x), expected);
  saved[100] ^= 1;
  const before = b.state.slice();
  assert.throws(() => b.restore(saved), refuses("BAD_STATE", /checksum does not match/));
  assert.throws(() => b.restore(new Uint8Array(10)), refuses("BAD_STATE", /at least 64 bytes, got 10/));
  assert.throws(() => b.restore(new Uint8Array(1e6)), refuses("BAD_STATE", /expected a Uint8Array of \d+ bytes/));
  assert.throws(() => b.restore("state"), refuses("BAD_STATE", /another type/));
  assert.deepEqual(b.state, before);
});

test("a state that the native library saved continues", async () => {
  const model = await Model.load(sarnn);
  model.restore(readFileSync(`${process.env.FOLDER}/sarnn.state`));
  const bytes = Uint8Array.from(readFileSync(`${process.env.FOLDER}/sarnn.y`));
  const expected = new Float32Array(bytes.buffer);
  model.step([0.5, 0.5, 0.5]).forEach((value, i) => assert(Math.abs(value - expected[i]) < 1e-6));
});

test("words", async () => {
  const model = await Model.load(words);
  assert.equal(model.vocabulary, 11);
  assert.equal(model.x, undefined);
  const y = model.run([3, 4, 10]);
  model.reset();
  model.step([3]);
  model.step([4]);
  assert.deepEqual(Array.from(model.step([10])), Array.from(y.slice(-model.outputs)));
  assert.equal(model.updates, undefined);
  for (const bad of [11, -1, 0.5, NaN]) {
    assert.throws(() => model.step([bad]), refuses("BAD_ARGUMENT", /x: word 0: expected 0 to 10, got/));
  }
  assert.throws(() => model.step(), refuses("BAD_ARGUMENT", /x: expected 1 numbers, got 0/));
});

test("numbers that are not finite", async () => {
  const model = await Model.load(sarnn);
  model.run(x);
  const before = model.state.slice();
  assert.throws(() => model.step([1, NaN, 0]), refuses("BAD_INPUT", /expected finite numbers, got nan at index 1/));
  assert.throws(() => model.step([1, 0, -Infinity]), refuses("BAD_INPUT", /got -inf at index 2/));
  assert.deepEqual(model.state, before);
  model.onNonfinite("hold");
  model.step([1, NaN, 0]);
  assert.equal(model.nonfiniteOf(0), 1);
  assert.throws(() => model.onNonfinite("ignore"), refuses("BAD_ARGUMENT", /expected one of error, hold, reset/));
});

test("wrong arguments", async () => {
  const model = await Model.load(sarnn);
  assert.throws(() => model.step([1, 2]), refuses("BAD_ARGUMENT", /x: expected 3 numbers, got 2/));
  assert.throws(() => model.run([1, 2, 3, 4]), refuses("BAD_ARGUMENT", /x: expected 3 numbers, got 4/));
  // an array of floats would take these for 0, 2 and 1
  for (const [value, got] of [[null, "null"], ["2", "string"], [true, "boolean"], [undefined, "undefined"], [2n, "bigint"]]) {
    const message = new RegExp(`x: expected numbers, got ${got} at index 1`);
    assert.throws(() => model.step([1, value, 3]), refuses("BAD_INPUT", message));
    assert.throws(() => model.run([1, value, 3, 1, 2, 3]), refuses("BAD_INPUT", message));
  }
  assert.throws(() => model.step("123"), refuses("BAD_INPUT", /got string at index 0/));
  assert.throws(() => model.step(new BigInt64Array(3)), refuses("BAD_INPUT", /got bigint at index 0/));
  assert.throws(() => model.resetRow(1), refuses("BAD_ARGUMENT", /row: expected 0 to 0, got 1/));
  await assert.rejects(Model.load("file"), refuses("BAD_ARGUMENT", /expected a Uint8Array/));
  await assert.rejects(Model.load(sarnn, { batch: 0 }), refuses("BAD_ARGUMENT", /batch: expected 1 to 65536, got 0/));
});

test("files that are not models", async () => {
  await assert.rejects(Model.load(new Uint8Array(0)), refuses("BAD_MODEL", /expected at least 64 bytes, got 0/));
  await assert.rejects(Model.load(sarnn.subarray(0, 1000)), refuses("BAD_MODEL", /expected \d+ bytes, got 1000/));
  const foreign = Uint8Array.from(sarnn);
  foreign.set([80, 75, 3, 4]);
  await assert.rejects(Model.load(foreign), refuses("BAD_MODEL", /starts with EDGERNN, got another format/));
  const damaged = Uint8Array.from(sarnn);
  damaged[5000] ^= 255;
  await assert.rejects(Model.load(damaged), refuses("BAD_MODEL", /checksum does not match/));
  const older = Uint8Array.from(sarnn);
  older[8] = 1;
  await assert.rejects(Model.load(older), refuses("BAD_VERSION", /pack it again/));
});

test("memory that cannot be had is an error, and the next load works", async () => {
  const memory = 2 ** 20;
  const model = await Model.load(sarnn, { memory });
  const y = model.run(x);
  for (const batch of [10_000, 65_536]) {
    await assert.rejects(Model.load(sarnn, { batch, memory }), refuses("NO_MEMORY", /expected \d+ more bytes of memory/));
  }
  // every size of memory ends in a model or an error
  for (let most = 2 ** 18; most <= memory; most += 2 ** 16) {
    await Model.load(sarnn, { memory: most }).then(
      (loaded) => assert.deepEqual(loaded.run(x), y),
      (error) => refuses("NO_MEMORY", /memory/)(error),
    );
  }
  model.reset();
  assert.deepEqual(model.run(x), y);
  assert.deepEqual((await Model.load(sarnn)).run(x), y);
});

test("hundreds of models are released", async () => {
  for (let i = 0; i < 600; i++) (await Model.load(sarnn)).step([1, 2, 3]);
});
