// SPDX-License-Identifier: Apache-2.0
// Runs a page that listens, words.html, wakeword.html or vad.html, in headless Chromium:
//
//   node headless_audio.mjs http://127.0.0.1:8000/words.html microphone FILE.wav SECONDS [picture.png [light | dark [WIDTH]]]
//   node headless_audio.mjs http://127.0.0.1:8000/words.html file FILE.wav SECONDS [picture.png [light | dark [WIDTH]]]
//   node headless_audio.mjs http://127.0.0.1:8000/words.html refused
//   node headless_audio.mjs http://127.0.0.1:8000/wakeword.html takes FILE.wav COUNT [picture.png [light | dark [WIDTH]]]
//
// `microphone` plays the file as the microphone, once, and listens to it for SECONDS. `file` chooses the file on the
// page, which reads SECONDS of it at the speed of sound; words.html reads all of it at once for 0. `refused` asks for a
// microphone that is not allowed. `takes` plays the file as the microphone, once for each take, and records COUNT takes.
// The environment variable CHROMIUM is the path of the browser, by default /usr/bin/chromium. Prints the words or parts
// with speech that were found, the page's figures, its error and the seconds that it listened for as JSON.

import { readFileSync } from "node:fs";

import { chromium } from "playwright-core";

// The page asks for Chromium's own fake microphone, and hears the file in its place, from the first sample on. Chromium
// itself can play a file as the microphone, but from the moment at which it opens it: a slow page misses the begin.
const MICROPHONE = (base64) => {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  AudioContext.prototype.createMediaStreamSource = function () {
    const source = this.createBufferSource();
    const decoded = this.decodeAudioData(bytes.slice().buffer);
    source.connect = async (node) => {
      const audio = await decoded;
      // silence follows
      source.buffer = this.createBuffer(1, audio.length + 60 * audio.sampleRate, audio.sampleRate);
      source.buffer.copyToChannel(audio.getChannelData(0), 0);
      AudioNode.prototype.connect.call(source, node);
      source.start();
    };
    return source;
  };
};

const [url, source, file, seconds = "0", picture, scheme = "light", width = "1000"] = process.argv.slice(2);
const timeout = 300_000; // milliseconds, for a slow machine
const browser = await chromium.launch({
  timeout,
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: [
    ...["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync"],
    ...["--autoplay-policy=no-user-gesture-required", "--use-fake-device-for-media-stream"],
    ...(source === "refused" ? [] : ["--use-fake-ui-for-media-stream"]),
  ],
});

async function reach(page, states) {
  await page.waitForSelector(states.map((state) => `body[data-state=${state}]`).join());
}

try {
  const page = await browser.newPage({ colorScheme: scheme, viewport: { width: Number(width), height: 860 } });
  page.setDefaultTimeout(timeout);
  page.on("pageerror", (error) => console.error(`page: ${error.message}`));
  page.on("console", (message) => message.type() === "error" && console.error(`page: ${message.text()}`));
  if (["microphone", "takes"].includes(source)) await page.addInitScript(MICROPHONE, readFileSync(file, "base64"));
  await page.goto(`${url}${source === "file" && seconds === "0" ? "?speed=max" : ""}`);
  await reach(page, ["ready", "failed"]);
  const result = {};
  if (source === "takes") {
    for (let take = 0; take < Number(seconds); take++) {
      await page.click("#record");
      await reach(page, ["recorded", "failed"]);
    }
  } else if ((await page.textContent("#error")) === "") {
    const begin = performance.now();
    if (source === "file") await page.setInputFiles("#file", file);
    else await page.click("#microphone");
    await reach(page, ["listening", "done", "failed"]);
    if (seconds === "0") await reach(page, ["done", "failed"]);
    else {
      const heard = `document.body.dataset.state !== "listening" || parseFloat(document.getElementById("heard").textContent) >= ${seconds}`;
      await page.waitForFunction(heard);
    }
    result.seconds = (performance.now() - begin) / 1000;
  }
  // the figures are those of the next frame
  await page.evaluate("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))");
  if (picture) await page.screenshot({ path: picture, fullPage: true });
  result.found = await page.$$eval("ol li", (items) => items.map((item) => ({ ...item.dataset })).reverse());
  const figures = await page.$$eval("#model, #error, #advice, dd", (items) => items.map((item) => [item.id, item.textContent]));
  Object.assign(result, Object.fromEntries(figures));
  console.log(JSON.stringify(result));
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
} finally {
  await browser.close();
}
