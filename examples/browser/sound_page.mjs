// SPDX-License-Identifier: Apache-2.0
// Common parts of the pages that listen: the model, one source of sound at a time with its buttons, errors, and the
// list of what was found.

import { Microphone } from "./audio.mjs";

const LISTED = 100; // number of entries in the list

export const element = (id) => document.getElementById(id);

let source = null; // what stop() ends
let chosen = 0; // grows with each source and each end of one: a source that is slow to open may be outdated

/** Ends the source. */
export function stop(state = "stopped") {
  chosen += 1;
  source?.stop();
  source = null;
  element("stop").disabled = true;
  document.body.dataset.state = state;
}

/** Ends the source and shows an error on the page. */
export function fail(name, error) {
  stop("failed");
  element("error").textContent = `${name}: ${error.message}`;
}

/** Adds an entry at the top of the list: two texts, and data for the programs that read the page. */
export function list(first, second, data) {
  const item = document.createElement("li");
  item.innerHTML = "<b></b><span></span>";
  item.firstChild.textContent = first;
  item.lastChild.textContent = second;
  Object.assign(item.dataset, data);
  element("found").prepend(item);
  while (element("found").children.length > LISTED) element("found").lastChild.remove();
  return item;
}

/**
 * Ends the present source and opens another one. `open` gets a function that makes a callback for this source, and a
 * function for a later error. The callback does nothing once the source has ended, and its errors are shown. `open`
 * resolves to an object with a method stop(), and perhaps a method begin().
 */
export async function listen(name, open) {
  stop("opening");
  const number = chosen;
  element("error").textContent = "";
  const onError = (error) => {
    if (number === chosen) fail(name, error);
  };
  const whileChosen = (use) => (value) => {
    if (number !== chosen) return;
    try {
      use(value);
    } catch (error) {
      onError(error);
    }
  };
  try {
    const opened = await open(whileChosen, onError);
    if (number !== chosen) return opened.stop();
    source = opened;
    element("stop").disabled = false;
    document.body.dataset.state = "listening";
    opened.begin?.();
  } catch (error) {
    onError(error);
  }
}

/** Sets the threshold that the page shows. */
export function showThreshold(value) {
  element("threshold").value = value;
  element("thresholdValue").textContent = value;
}

/**
 * Loads the model and starts the page.
 *
 * load: An async function that gets the bytes of the model and returns a line about it. clear: A function that is called
 * before a source opens. toNode: A function that gets what `listen` passes to `open`, and returns the function of
 * Microphone.start that makes the node of the microphone. openFile: An async function that gets a File and what `listen`
 * passes to `open`, and resolves to a source. onThreshold: A function that gets the threshold that the user chose. draw:
 * A function that is called before each frame.
 */
export async function startPage({ load, clear, toNode, openFile, onThreshold = () => {}, draw }) {
  const open = (name, source) => {
    element("found").replaceChildren();
    clear();
    listen(name, source);
  };
  element("microphone").onclick = () =>
    open("microphone", (whileChosen, onError) => Microphone.start(toNode(whileChosen, onError), onError));
  element("file").onchange = ({ target }) => {
    const [file] = target.files;
    target.value = "";
    if (file) open(file.name, (whileChosen, onError) => openFile(file, whileChosen, onError));
  };
  element("stop").onclick = () => stop();
  element("threshold").oninput = ({ target }) => {
    const value = Math.round(100 * target.value) / 100;
    showThreshold(value);
    onThreshold(value);
  };
  document.body.dataset.state = "loading";
  try {
    const response = await fetch("model");
    if (!response.ok) throw new Error(`the server answered with status ${response.status}`);
    element("model").textContent = await load(new Uint8Array(await response.arrayBuffer()));
    for (const id of ["microphone", "file"]) element(id).disabled = false;
    document.body.dataset.state = "ready";
  } catch (error) {
    fail("model", error);
  }
  const show = () => {
    draw();
    requestAnimationFrame(show);
  };
  requestAnimationFrame(show);
}

/** The number of bytes in kB. */
export const kilobytes = (bytes) => `${Math.round(bytes / 1000).toLocaleString("en")} kB`;
