// SPDX-License-Identifier: Apache-2.0
// Serves four pages with a model on localhost: / streams the steps of a file, /words.html detects spoken words,
// /wakeword.html listens for a phrase and records takes of it, and /vad.html finds the parts with speech.
//
//   node serve.mjs [model.edgernn | model.onnx] [x.csv] [port]

import { readFile, stat } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, basename } from "node:path";
import { fileURLToPath } from "node:url";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const [model = here("../../models/adding-sarnn/model.onnx"), input = here("../adding.csv"), port = "8000"] =
  process.argv.slice(2);

const ort = here("node_modules/onnxruntime-web/dist");
const edgernn = here("../../runtime/js");
const files = {
  "/": here("index.html"),
  "/words.html": here("words.html"),
  "/style.css": here("style.css"),
  "/page.mjs": here("page.mjs"),
  "/chart.mjs": here("chart.mjs"),
  "/words.mjs": here("words.mjs"),
  "/words_chart.mjs": here("words_chart.mjs"),
  "/word_source.mjs": here("word_source.mjs"),
  "/sound_page.mjs": here("sound_page.mjs"),
  "/probability_chart.mjs": here("probability_chart.mjs"),
  "/wakeword.html": here("wakeword.html"),
  "/wakeword.mjs": here("wakeword.mjs"),
  "/takes.mjs": here("takes.mjs"),
  "/vad.html": here("vad.html"),
  "/vad.mjs": here("vad.mjs"),
  "/vad_worklet.mjs": here("vad_worklet.mjs"),
  "/voice_activity.mjs": here("../voice_activity.mjs"),
  "/audio.mjs": here("audio.mjs"),
  "/capture.mjs": here("capture.mjs"),
  "/listening.mjs": here("listening.mjs"),
  "/resampler.mjs": here("resampler.mjs"),
  "/wav.mjs": here("wav.mjs"),
  "/word_detector.mjs": here("../word_detector.mjs"),
  "/edgernn.mjs": here("../edgernn.mjs"),
  "/packed.mjs": here("../packed.mjs"),
  "/csv.mjs": here("../csv.mjs"),
  "/edgernn/index.mjs": `${edgernn}/index.mjs`,
  "/edgernn/edgernn.wasm": `${edgernn}/edgernn.wasm`,
  "/edgernn/edgernn-relaxed.wasm": `${edgernn}/edgernn-relaxed.wasm`,
  "/ort/ort.wasm.min.mjs": `${ort}/ort.wasm.min.mjs`,
  "/ort/ort-wasm-simd-threaded.mjs": `${ort}/ort-wasm-simd-threaded.mjs`,
  "/ort/ort-wasm-simd-threaded.wasm": `${ort}/ort-wasm-simd-threaded.wasm`,
  "/model": model,
  "/x.csv": input,
};
const types = {
  ".html": "text/html; charset=utf-8",
  ".css": "text/css",
  ".mjs": "text/javascript",
  ".wasm": "application/wasm",
};

function refuse(message) {
  console.error(`serve: ${message}`);
  process.exit(1);
}

const missing = { [ort]: "onnxruntime-web is not installed; run: npm ci", [edgernn]: "run: make wasm" };

for (const path of Object.values(files)) {
  const info = await stat(path).catch(() => null);
  // a packed model needs edgernn.wasm, an ONNX file needs onnxruntime-web
  const [, message] = Object.entries(missing).find(([folder]) => path.startsWith(folder)) ?? [];
  const needed = message === undefined || path.startsWith(model.endsWith(".onnx") ? ort : edgernn);
  if (info?.isFile() || !needed) continue;
  refuse(message ?? `${path}: no such file`);
}

const server = createServer(async (request, response) => {
  // not new URL(), which refuses some paths
  const path = files[request.url.split("?")[0]];
  const body = path === undefined ? null : await readFile(path).catch(() => null);
  if (body === null) {
    const [, message] = Object.entries(missing).find(([folder]) => path?.startsWith(folder)) ?? [];
    response.writeHead(404, { "Content-Type": "text/plain; charset=utf-8" });
    return response.end(message ?? "no such file");
  }
  response.writeHead(200, {
    "Content-Type": types[extname(path)] ?? "application/octet-stream",
    "Cache-Control": "no-cache",
    // cross-origin isolation gives performance.now() a resolution of 5 µs instead of 100 µs
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
  });
  response.end(body);
});
server.on("error", (error) => refuse(`port ${port}: ${error.code === "EADDRINUSE" ? "in use" : error.message}`));
if (!/^\d+$/.test(port) || port > 65535) refuse(`port: expected a number below 65536, got ${port}`);
server.listen(Number(port), "127.0.0.1", () => {
  console.log(`${basename(model)} on http://127.0.0.1:${server.address().port}/`);
});
