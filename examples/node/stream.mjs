// SPDX-License-Identifier: Apache-2.0
// Streams sequences through a model exported by edgernn:
//
//   node stream.mjs model.edgernn < x.csv > y.csv     a packed model, with the package edgernn
//   node stream.mjs model.onnx < x.csv > y.csv        with onnxruntime-node, which npm ci installs
//
// Each line of I numbers is a step, for which the program prints a line with the model's output. A first line without
// any number is a header. An empty line ends a sequence. At the end, the program prints the time per step, over the last 100,000 steps, on standard error.

import { readFile } from "node:fs/promises";
import { createInterface } from "node:readline";

// an app of your own: import { Model } from "edgernn"
import { Model } from "../../runtime/js/index.mjs";
import { quantiles, steps } from "../csv.mjs";
import { Stream } from "../edgernn.mjs";
import { PackedStream } from "../packed.mjs";

const KEPT = 100_000; // number of steps whose times are kept

async function open(path) {
  const bytes = await readFile(path).catch((error) => {
    throw new Error(`${path}: ${error.code === "ENOENT" ? "no such file" : error.message}`);
  });
  try {
    if (PackedStream.reads(bytes)) return await PackedStream.open(Model, bytes);
    // without it, ONNX Runtime may write a device id to the home folder and look up its maker's host
    process.env.ORT_DISABLE_TELEMETRY ??= "1";
    return await Stream.open(await import("onnxruntime-node"), bytes);
  } catch (error) {
    throw new Error(`${path}: ${error.message}`);
  }
}

async function run(path) {
  const stream = await open(path);
  const microseconds = []; // a ring buffer: step t is at t % KEPT
  let count = 0;
  let updated = 0;
  const lines = createInterface({ input: process.stdin });
  for await (const x of steps(lines, stream.inputSize, stream.channels)) {
    if (x === null) {
      stream.reset();
      continue;
    }
    const start = performance.now();
    const { y, updates } = await stream.step(x);
    microseconds[count++ % KEPT] = 1000 * (performance.now() - start);
    updated += updates;
    console.log(Array.from(y, (value) => value.toPrecision(9)).join());
  }
  if (count === 0) return;
  const { median, p90 } = quantiles(microseconds);
  const rate = Number.isNaN(updated) ? "" : `, ${(updated / count).toFixed(1)} updates per step`;
  const times = `median ${median.toFixed(2)} us per step, 90th percentile ${p90.toFixed(2)} us`;
  console.error(`${count} steps: ${times}${rate}`);
}

if (process.argv.length !== 3) {
  console.error("usage: node stream.mjs model.edgernn < x.csv > y.csv");
  process.exit(2);
}
// `| head -1` closes the output
process.stdout.on("error", (error) => {
  if (error.code !== "EPIPE") console.error(`stream: ${error.message}`);
  process.exit(1);
});
try {
  await run(process.argv[2]);
} catch (error) {
  console.error(`stream: ${error.message}`);
  process.exit(1);
}
