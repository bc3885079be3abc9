// SPDX-License-Identifier: Apache-2.0
// Tests of the pages in headless Chromium, for Node's test runner, which tests/checks/apps.py starts. The environment
// variable ADDRESS is that of a server with an ONNX file, FOLDER has small.onnx, other.onnx and bad.onnx, and CHROMIUM
// is the path of the browser. The page with words gets a model of its own, without the WebAssembly module.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { chromium } from "../examples/browser/node_modules/playwright-core/index.mjs";

const { ADDRESS: address, FOLDER: folder, CHROMIUM: executablePath = "/usr/bin/chromium" } = process.env;

// detects nothing; the page sets `failing` to let a step fail
const MODEL = `export class Model {
  static load = async () => new Model();
  inputs = 320; sampleRate = 16000; neurons = 4; classes = ["left"]; features = new Float32Array(3);
  reset() {}
  step() {
    if (window.failing) throw new Error("no step");
    return [0];
  }
}`;
// opens files whose name begins with "slow" after another model is shown, and changes parts of the page with words
const CHANGES = `
  const { arrayBuffer } = File.prototype;
  File.prototype.arrayBuffer = async function () {
    if (!this.name.startsWith("slow")) return arrayBuffer.call(this);
    while (!document.getElementById("model").textContent.startsWith("other")) {
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    window.slow = (window.slow ?? 0) + 1;
    return arrayBuffer.call(this);
  };
  const { getUserMedia } = MediaDevices.prototype;
  MediaDevices.prototype.getUserMedia = async function (wanted) {
    return (window.stream = await getUserMedia.call(this, wanted));
  };
  const node = AudioWorkletNode;
  window.AudioWorkletNode = class extends node {
    constructor(...values) {
      super(...values);
      window.worklet = this;
    }
  };
`;

let browser;

before(async () => {
  browser = await chromium.launch({
    executablePath,
    timeout: 300_000,
    args: [
      ...["--no-sandbox", "--disable-gpu", "--autoplay-policy=no-user-gesture-required"],
      ...["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"],
    ],
  });
});
after(() => browser.close());

async function open(path) {
  const page = await browser.newPage();
  page.setDefaultTimeout(300_000);
  await page.addInitScript(CHANGES);
  await page.route("**/edgernn/index.mjs", (route) => route.fulfill({ contentType: "text/javascript", body: MODEL }));
  await page.goto(address + path);
  return page;
}

const reach = (page, state) => page.waitForSelector(`body[data-state=${state}]`);
const file = (name, text) => ({ name, mimeType: "text/csv", buffer: Buffer.from(text) });

test("the error of a model stays until a good model is chosen", async () => {
  const page = await open("");
  await reach(page, "streaming");
  await page.setInputFiles("#modelFile", `${folder}/bad.onnx`);
  await reach(page, "failed");
  const error = await page.textContent("#error");
  assert.match(error, /^bad\.onnx: /);
  await page.setInputFiles("#inputFile", file("x.csv", "1,2\n3,4\n"));
  await page.waitForTimeout(300);
  assert.equal(await page.textContent("#error"), error);
  // the same name again
  await page.setInputFiles("#modelFile", `${folder}/small.onnx`);
  await reach(page, "streaming");
  assert.equal(await page.textContent("#error"), "");
  assert.match(await page.textContent("#model"), /^small\.onnx: /);
  assert.equal(await page.inputValue("#modelFile"), "");
  await page.close();
});

test("the last chosen model wins, and its session replaces the others", async () => {
  const page = await open("");
  await reach(page, "streaming");
  const slow = { name: "slow.onnx", mimeType: "", buffer: await (await page.request.get(`${address}model`)).body() };
  const bad = { ...slow, name: "slow bad.onnx", buffer: Buffer.from("no model") };
  for (const [count, later] of [slow, bad].entries()) {
    await page.setInputFiles("#modelFile", later);
    await page.setInputFiles("#modelFile", `${folder}/other.onnx`);
    await page.waitForFunction(`window.slow === ${count + 1}`);
    await reach(page, "streaming");
    // time for a slow model to be shown, if the page did so
    await page.waitForTimeout(300);
    assert.match(await page.textContent("#model"), /^other\.onnx: /);
    assert.equal(await page.textContent("#error"), "");
    assert.equal(await page.getAttribute("body", "data-state"), "streaming");
  }
  await page.close();
});

test("files are chosen with the keyboard", async () => {
  for (const [path, inputs] of [["", ["modelFile", "inputFile"]], ["words.html", ["file"]], ["wakeword.html", ["file"]]]) {
    const page = await open(path);
    await page.waitForSelector("body:not([data-state=loading])");
    const reached = new Set();
    for (let i = 0; i < 8; i++) {
      await page.keyboard.press("Tab");
      const id = await page.evaluate(() => document.activeElement.id);
      if (!inputs.includes(id)) continue;
      reached.add(id);
      const outline = "getComputedStyle(document.activeElement.parentElement).outlineStyle";
      assert.equal(await page.evaluate(outline), "solid");
    }
    assert.deepEqual([...reached], inputs);
    await page.close();
  }
});

/** Opens the page with words, and returns when it has heard the microphone. */
async function openListening() {
  const page = await open("words.html");
  await reach(page, "ready");
  await page.click("#microphone");
  await reach(page, "listening");
  await page.waitForFunction('document.getElementById("heard").textContent !== "–"');
  return page;
}

test("a microphone that ends is said on the page", async () => {
  const page = await openListening();
  assert.equal(await page.evaluate("worklet.channelCountMode"), "explicit");
  // a track that the page stops sends no event, so it is sent here
  await page.evaluate('stream.getTracks()[0].dispatchEvent(new Event("ended"))');
  await reach(page, "failed");
  assert.equal(
    await page.textContent("#error"),
    "microphone: it was disconnected, or access was withdrawn; start it again",
  );
  assert(await page.isDisabled("#stop"));
  await page.click("#microphone");
  await reach(page, "listening");
  assert.equal(await page.textContent("#error"), "");
  await page.close();
});

test("a step that fails ends the source, and old figures go", async () => {
  const page = await openListening();
  await page.evaluate("window.failing = true");
  await reach(page, "failed");
  assert.equal(await page.textContent("#error"), "microphone: no step");
  assert.equal(await page.evaluate("stream.getTracks()[0].readyState"), "ended");
  await page.setInputFiles("#file", file("no.wav", "no sound"));
  await page.waitForFunction('document.getElementById("error").textContent.startsWith("no.wav")');
  assert.equal(await page.textContent("#heard"), "–");
  await page.close();
});

test("a file that cannot be played is an error", async () => {
  const page = await open("words.html");
  await reach(page, "ready");
  await page.evaluate('AudioContext.prototype.createBuffer = () => { throw new Error("no memory"); }');
  const wav = Buffer.alloc(44 + 2 * 16000);
  wav.write("RIFF\x24\x7d\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0", 0, "latin1");
  wav.writeUInt32LE(16000, 24);
  wav.writeUInt32LE(32000, 28);
  wav.write("\x02\0\x10\0data", 32, "latin1");
  wav.writeUInt32LE(32000, 40);
  await page.setInputFiles("#file", { name: "r.wav", mimeType: "audio/wav", buffer: wav });
  await reach(page, "failed");
  assert.equal(await page.textContent("#error"), "r.wav: no memory");
  assert(await page.isDisabled("#stop"));
  await page.close();
});
