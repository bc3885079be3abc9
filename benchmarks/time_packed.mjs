// SPDX-License-Identifier: Apache-2.0
// Times steps of packed models, for benchmarks/wasm.py:
//
//   node time_packed.mjs x model.edgernn…           in Node
//   node time_packed.mjs x http://127.0.0.1:8000/   in Chromium, the model that examples/browser/serve.mjs serves
//
// x has sequences of 50 steps of float32 (I,). Prints the median time of a step in µs for each model, as JSON.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

import { Model } from "../runtime/js/index.mjs";

/** Returns the median over passes of the time of a step in µs. The page gets the source of this function. */
function timed(model, x) {
  const [length, warmUp, passes] = [50, 20, 60];
  const width = model.inputs;
  const pass = () => {
    for (let at = 0, t = 0; at < x.length; at += width, t++) {
      if (t % length === 0) model.reset();
      for (let i = 0; i < width; i++) model.x[i] = x[at + i];
      model.step();
    }
  };
  for (let i = 0; i < warmUp; i++) pass();
  const microseconds = Float64Array.from({ length: passes }, () => {
    const start = performance.now();
    pass();
    return (1000 * (performance.now() - start)) / (x.length / width);
  });
  return microseconds.sort()[passes / 2];
}

async function timedOnPage(address, x) {
  const { chromium } = createRequire(new URL("../examples/browser/", import.meta.url))("playwright-core");
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu"],
  });
  try {
    const page = await browser.newPage();
    await page.goto(`${address}?speed=max&once`);
    await page.waitForSelector("body[data-state=done]");
    return await page.evaluate(
      async ([source, numbers]) => {
        const { Model } = await import("/edgernn/index.mjs");
        const model = await Model.load(await (await fetch("/model")).arrayBuffer());
        return (0, eval)(`(${source})`)(model, Float32Array.from(numbers));
      },
      [timed.toString(), Array.from(x)],
    );
  } finally {
    await browser.close();
  }
}

const [xFile, ...places] = process.argv.slice(2);
const x = new Float32Array(Uint8Array.from(readFileSync(xFile)).buffer);
const times = [];
for (const place of places) {
  const onPage = place.startsWith("http:");
  times.push(onPage ? await timedOnPage(place, x) : timed(await Model.load(readFileSync(place)), x));
}
console.log(JSON.stringify(times));
