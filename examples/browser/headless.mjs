// SPDX-License-Identifier: Apache-2.0
// Runs the page in headless Chromium: streams the input once, saves the CSV and optionally a screenshot.
//
//   node headless.mjs http://127.0.0.1:8000/ y.csv [picture.png [light | dark]]
//
// The environment variable CHROMIUM is the path of the browser, by default /usr/bin/chromium. Prints the page's figures
// and the addresses that it loaded as JSON.

import { chromium } from "playwright-core";

const loaded = () =>
  ["navigation", "resource"].flatMap((kind) => performance.getEntriesByType(kind).map((entry) => entry.name));

const [url, saved, picture, scheme = "light"] = process.argv.slice(2);
const timeout = 300_000; // milliseconds, for a slow machine
const browser = await chromium.launch({
  timeout,
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync"],
});
try {
  const page = await browser.newPage({ colorScheme: scheme, viewport: { width: 1000, height: 800 } });
  page.setDefaultTimeout(timeout);
  page.on("pageerror", (error) => console.error(`page: ${error.message}`));
  page.on("console", (message) => message.type() === "error" && console.error(`page: ${message.text()}`));
  await page.goto(`${url}?speed=max&once`);
  await page.waitForSelector("body[data-state=done], body[data-state=failed]");
  if (picture) await page.screenshot({ path: picture });
  const error = await page.textContent("#error");
  if (error) throw new Error(error);
  const [download] = await Promise.all([page.waitForEvent("download"), page.click("#save")]);
  await download.saveAs(saved);
  const figures = { loaded: await page.evaluate(loaded) };
  for (const id of ["model", "latency", "rate", "count"]) figures[id] = await page.textContent(`#${id}`);
  console.log(JSON.stringify(figures));
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
} finally {
  await browser.close();
}
