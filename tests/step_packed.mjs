// SPDX-License-Identifier: Apache-2.0
// Steps packed models with runtime/js for tests/checks/wasm.py:
//
//   node step_packed.mjs folder edgernn | edgernn-relaxed | chromium
//
// jobs.json in the folder is a list of {model, batch, steps, x, y}: the bytes of a packed model and of its input in
// `data`, as [offset, bytes], and where its outputs start in the file `y`. Prints the result of each job as a line of
// JSON: {updates} per step, or the {status, message} of its error. The module is named, or a page of headless Chromium
// (environment variable CHROMIUM) chooses it. Any other error ends the program.

import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";

import { runJobs } from "./step_jobs.mjs";

const [folder, name] = process.argv.slice(2);
const read = (path) => readFileSync(new URL(`..${path}`, import.meta.url));

async function runInNode() {
  const module = await WebAssembly.compile(read(`/runtime/js/${name}.wasm`));
  return runJobs(JSON.parse(readFileSync(`${folder}/jobs.json`, "utf-8")), readFileSync(`${folder}/data`), module);
}

async function runInChromium() {
  const { chromium } = createRequire(new URL("../examples/browser/", import.meta.url))("playwright-core");
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync"],
  });
  const types = { mjs: "text/javascript", wasm: "application/wasm" };
  try {
    const page = await browser.newPage();
    await page.route("**/*", (route) => {
      const { pathname } = new URL(route.request().url());
      if (pathname === "/") return route.fulfill({ body: "<!doctype html>", contentType: "text/html" });
      const body = pathname.startsWith("/jobs/") ? readFileSync(folder + pathname.slice(5)) : read(pathname);
      return route.fulfill({ body, contentType: types[pathname.split(".").pop()] ?? "application/octet-stream" });
    });
    await page.goto("http://localhost/");
    return await page.evaluate(async () => {
      const { runJobs } = await import("/tests/step_jobs.mjs");
      const jobs = await (await fetch("/jobs/jobs.json")).json();
      return runJobs(jobs, new Uint8Array(await (await fetch("/jobs/data")).arrayBuffer()));
    });
  } finally {
    await browser.close();
  }
}

const { results, y } = await (name === "chromium" ? runInChromium() : runInNode());
for (const result of results) console.log(JSON.stringify(result));
writeFileSync(`${folder}/y`, Float32Array.from(y));
