// SPDX-License-Identifier: Apache-2.0
// Tests of parts of the examples and of runtime/js that need no WebAssembly module, for Node's test runner, which
// tests/checks/apps.py starts.

import assert from "node:assert/strict";
import { copyFileSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { pathToFileURL } from "node:url";

import { isHeader, steps } from "../examples/csv.mjs";
import { Stream } from "../examples/edgernn.mjs";

const packageFile = new URL("../runtime/js/index.mjs", import.meta.url);
const folder = mkdtempSync(join(tmpdir(), "edgernn-"));
after(() => rmSync(folder, { recursive: true }));

test("a first line of numbers that are not finite is refused and not skipped", async () => {
  for (const line of ["nan,1", "NaN,1", "-inf,1", "Infinity,1", " nan ,1"]) {
    assert(!isHeader(line), line);
    const message = `line 1, column 1: expected a finite number, got '${line.split(",")[0].trim()}'`;
    await assert.rejects(steps([line, "1,2"], 2).next(), { message });
  }
  for (const line of ["nanoseconds,y", "inf_x,y", "value,marker", "# x,y", '"x","a,b"', ",x"]) assert(isHeader(line), line);
  assert.deepEqual((await steps(["nanoseconds,y", "1,2"], 2).next()).value, [1, 2]);
  for (const header of ["y", "x,y,z", "x,,y"]) {
    const message = `line 1: expected a header of 2 columns, got ${header}; correct the header`;
    await assert.rejects(steps([header, "1,2"], 2).next(), { message });
  }
});

test("a first line with a number or a damaged one is no header", async () => {
  for (const [line, text] of [[",1", ""], ["\u22121,2", "\u22121"], ["\u22121,\u22122", "\u22121"], ["#1,2", "#1"], ["0x1,y", "0x1"]]) {
    const message = `line ${line === "0x1,y" ? 2 : 1}, column 1: expected a finite number, got '${text}'`;
    const lines = line === "0x1,y" ? [line, line] : [line];
    await assert.rejects(steps(lines, 2).next(), { message });
  }
  const read = [];
  for await (const x of steps(["\uFEFF1,2", '"3", "-4e0"', "", "5,6\r"], 2)) read.push(x);
  assert.deepEqual(read, [[1, 2], [3, -4], null, [5, 6]]);
});

test("columns are put in the order of the channels, or refused", async () => {
  const channels = ["ax", "ay"];
  assert.deepEqual((await steps(["\uFEFFay,ax", "1,2"], 2, channels).next()).value, [2, 1]);
  assert.deepEqual((await steps(["1,2"], 2, channels).next()).value, [1, 2]);
  const quoted = steps(['"b, ""x""" ,a', "1,2"], 2, ["a", 'b, "x"']);
  assert.deepEqual((await quoted.next()).value, [2, 1]);
  for (const header of ["ax,az", "ax,ay,az", "ax,ax"]) {
    const message = `line 1: expected the columns ax,ay of the training, got ${header}; correct the header`;
    await assert.rejects(steps([header, "1,2"], 2, channels).next(), { message });
  }
});

test("a closed stream releases its session", async () => {
  let released = 0;
  const session = { outputNames: [], inputMetadata: [], release: async () => (released += 1) };
  const stream = new Stream({}, session, { model: {}, initial_state: {} });
  await stream.close();
  assert.equal(released, 1);
});

test("a missing module is an EdgernnError that names it", async () => {
  copyFileSync(packageFile, join(folder, "index.mjs"));
  const { EdgernnError, Model } = await import(pathToFileURL(join(folder, "index.mjs")));
  for (let i = 0; i < 2; i++) {
    await assert.rejects(Model.load(new Uint8Array(8)), (error) => {
      assert(error instanceof EdgernnError);
      assert.equal(error.status, "NO_MODULE");
      assert.match(error.message, /edgernn(-relaxed)?\.wasm: the WebAssembly module .* cannot be loaded/);
      return true;
    });
  }
});

test("another module is an EdgernnError", async () => {
  const { EdgernnError, Model } = await import(packageFile);
  const empty = new WebAssembly.Module(Uint8Array.of(0, 97, 115, 109, 1, 0, 0, 0));
  for (const module of [empty, {}]) {
    await assert.rejects(Model.load(new Uint8Array(8), { module }), (error) => {
      assert(error instanceof EdgernnError);
      assert.equal(error.status, "NO_MODULE");
      assert.match(error.message, /^module: expected the compiled edgernn\.wasm, got another value/);
      return true;
    });
  }
});

test("bundlers find no import of a module of Node", () => {
  const imports = readFileSync(packageFile, "utf8").match(/\bimport\(.*?\)|^import .*/gm);
  assert.deepEqual(imports, ["import(/* webpackIgnore: true */ /* @vite-ignore */ `node:${name}`)"]);
});
