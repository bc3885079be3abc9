// SPDX-License-Identifier: Apache-2.0
// Runs packed models of edgernn step by step in Node and browsers. index.d.ts describes each function.
//
//   import { Model } from "edgernn";
//
//   const model = await Model.load(bytes); // model.edgernn as a Uint8Array
//   const y = model.step([0.5, 1]);
//   model.reset(); // starts a new sequence
//
// Each model is an instance of the WebAssembly module with a memory of its own. The memory does not grow once the model
// is loaded, so views of it stay valid, and the garbage collector releases it with the model. A failed load leaves
// nothing behind.

const ALIGNMENT = 64; // EDGERNN_ALIGNMENT
const PAGE = 65536; // bytes of a page of memory
const INITIAL_PAGES = 4; // the memory that the module expects, as in cmake/wasm.cmake
const MOST_PAGES = 65536; // all 32-bit addresses
const MESSAGES = 4096; // bytes that are kept free for messages
const SIZES = 6; // int64 fields of EdgernnSizes

// the values of EdgernnStatus and of EdgernnNonfinite
const STATUSES = ["OK", "BAD_ARGUMENT", "BAD_MODEL", "BAD_VERSION", "BAD_INPUT", "UNSUPPORTED", "BAD_STATE"];
const NONFINITE = ["error", "hold", "reset"];

export class EdgernnError extends Error {
  constructor(status, message, options) {
    super(message, options);
    this.name = "EdgernnError";
    this.status = status;
  }
}

// a module with the instruction f32x4.relaxed_madd; engines without it refuse the module
const RELAXED = Uint8Array.of(
  ...[0, 97, 115, 109, 1, 0, 0, 0], // magic number and version
  ...[1, 4, 1, 96, 0, 0], // a type: no arguments and no results
  ...[3, 2, 1, 0], // a function of that type
  ...[10, 20, 1, 18, 0, 65, 0, 253, 15, 65, 0, 253, 15, 65, 0, 253, 15, 253, 133, 2, 26, 11], // its code
);

let compiled; // the promise of the module beside this file

/** Imports a module of Node. Bundlers leave the import as it is, because its name is not constant. */
const builtin = (name) => import(/* webpackIgnore: true */ /* @vite-ignore */ `node:${name}`);

export function loadModule() {
  return (compiled ??= compile().catch((error) => {
    compiled = undefined; // the next call tries again
    throw error;
  }));
}

/** Compiles the module beside this file, which is a file in Node and on a server in a browser. */
async function compile() {
  const relaxed = WebAssembly.validate(RELAXED);
  // two constant addresses, which bundlers find
  const url = relaxed
    ? new URL("./edgernn-relaxed.wasm", import.meta.url)
    : new URL("./edgernn.wasm", import.meta.url);
  try {
    return await WebAssembly.compile(await read(url));
  } catch (error) {
    const remedy = "put this file of the package beside index.mjs; in a clone, build it with: make wasm";
    const message = `${url}: the WebAssembly module of the package cannot be loaded (${error.message}); ${remedy}`;
    throw new EdgernnError("NO_MODULE", message, { cause: error });
  }
}

async function read(url) {
  if (url.protocol === "file:") {
    const { readFile } = await builtin("fs/promises");
    return readFile(url);
  }
  const response = await fetch(url);
  if (!response.ok) throw new Error(`the server answered with status ${response.status}`);
  return response.arrayBuffer();
}

/** Runs an action, and throws an EdgernnError if there is no memory for it. */
function guard(action) {
  try {
    return action();
  } catch (error) {
    // the module traps where a list finds no memory
    const trapped = error instanceof WebAssembly.RuntimeError && /unreachable/i.test(error.message);
    if (!trapped && !(error instanceof RangeError)) throw error;
    throw new EdgernnError("NO_MEMORY", `expected more memory, got none: ${error.message}`);
  }
}

function check(name, value, least, most) {
  if (Number.isInteger(value) && value >= least && value <= most) return;
  throw new EdgernnError("BAD_ARGUMENT", `${name}: expected ${least} to ${most}, got ${value}`);
}

function checkLength(x, expected) {
  if (x.length !== expected) {
    throw new EdgernnError("BAD_ARGUMENT", `x: expected ${expected} numbers, got ${x.length}`);
  }
}

/** Refuses what an array would take for a number, such as null, which is NaN in JSON and 0 in an array of floats. */
function checkNumbers(x) {
  const count = ArrayBuffer.isView(x) ? 1 : x.length; // the numbers of a typed array have one type
  for (let i = 0; i < count; i++) {
    if (typeof x[i] === "number") continue;
    const got = x[i] === null ? "null" : typeof x[i];
    throw new EdgernnError("BAD_INPUT", `x: expected numbers, got ${got} at index ${i}`);
  }
}

/** Creates an instance of the module with this memory, and returns its functions. */
function instantiate(module, memory) {
  try {
    const { exports } = new WebAssembly.Instance(module, { env: { memory } });
    if (exports._initialize === undefined) throw new Error("it has no function _initialize");
    return exports;
  } catch (error) {
    if (error instanceof RangeError) throw error;
    const message = `module: expected the compiled edgernn.wasm, got another value (${error.message})`;
    throw new EdgernnError("NO_MODULE", message, { cause: error });
  }
}

/** An instance of the module: its functions and its memory. */
class Instance {
  constructor(module, initial, maximum) {
    this.module = module;
    this.maximum = maximum;
    this.memory = guard(() => new WebAssembly.Memory({ initial, maximum }));
    this.functions = guard(() => instantiate(module, this.memory));
    this.functions._initialize();
  }

  /** Creates an instance with a copy of this one's memory. */
  copy() {
    const copy = new Instance(this.module, this.memory.buffer.byteLength / PAGE, this.maximum);
    new Uint8Array(copy.memory.buffer).set(new Uint8Array(this.memory.buffer));
    return copy;
  }

  /** Returns the address of new memory. */
  allocate(bytes) {
    const address = this.functions.aligned_alloc(ALIGNMENT, Math.ceil(bytes / ALIGNMENT) * ALIGNMENT) >>> 0;
    if (address === 0) throw new EdgernnError("NO_MEMORY", `expected ${bytes} more bytes of memory, got none`);
    return address;
  }

  /** Throws the error of a function that did not return EDGERNN_OK. */
  check(status) {
    if (status === 0) return;
    throw new EdgernnError(STATUSES[status], this.text(this.functions.edgernn_message() >>> 0));
  }

  /** Returns the text at an address, which ends with a zero. */
  text(address) {
    const bytes = new Uint8Array(this.memory.buffer, address);
    const text = bytes.slice(0, bytes.indexOf(0));
    if (typeof TextDecoder === "function") return new TextDecoder().decode(text);
    // an AudioWorklet has no TextDecoder; the text is valid UTF-8
    return decodeURIComponent(Array.from(text, (byte) => `%${byte.toString(16).padStart(2, "0")}`).join(""));
  }

  /** Returns `count` unsigned integers at an address: pointers and sizes that a function has set. */
  read(address, count) {
    return new Uint32Array(this.memory.buffer, address, count);
  }
}

/** Opens the model of `bytes` in an instance. Returns the addresses of its parts. */
function open(instance, bytes, batch) {
  const { functions, memory } = instance;
  const out = instance.allocate(24); // up to three numbers that a function sets
  const file = instance.allocate(bytes.length);
  new Uint8Array(memory.buffer, file).set(bytes);
  instance.check(functions.edgernn_memory(file, bytes.length, BigInt(batch), out));
  const [need] = instance.read(out, 1);
  const place = instance.allocate(need);
  instance.check(functions.edgernn_open(file, bytes.length, BigInt(batch), place, need, out));
  const [model] = instance.read(out, 1);
  const sizes = instance.allocate(8 * SIZES);
  instance.check(functions.edgernn_sizes(model, sizes));
  const [, inputs, , outputs] = new BigInt64Array(memory.buffer, sizes, SIZES);
  const x = instance.allocate(8 * batch * Math.max(1, Number(inputs)));
  const y = instance.allocate(4 * batch * Number(outputs));
  instance.check(functions.edgernn_state_bytes(model, out));
  const [savedBytes] = instance.read(out, 1);
  const saved = instance.allocate(savedBytes);
  // later messages find this memory, so that the memory does not grow
  functions.free(instance.allocate(MESSAGES));
  return { out, model, sizes, x, y, saved, savedBytes };
}

export class Model {
  #instance;
  #at;
  #run; // the function of a step
  #words;
  #nonfinite;
  #updates;
  #macs;

  static async load(bytes, { batch = 1, memory = MOST_PAGES * PAGE, module } = {}) {
    if (bytes instanceof ArrayBuffer) bytes = new Uint8Array(bytes);
    if (!(bytes instanceof Uint8Array)) {
      throw new EdgernnError("BAD_ARGUMENT", "bytes: expected a Uint8Array or an ArrayBuffer, got another type");
    }
    check("batch", batch, 1, 65536);
    check("memory", memory, INITIAL_PAGES * PAGE, MOST_PAGES * PAGE);
    module ??= await loadModule();
    const instance = new Instance(module, INITIAL_PAGES, Math.floor(memory / PAGE));
    return new Model(instance, guard(() => open(instance, bytes, batch)));
  }

  /** Use Model.load. */
  constructor(instance, at) {
    this.#instance = instance;
    this.#at = at;
    const { functions, memory } = instance;
    const view = (Numbers, address, length) => new Numbers(memory.buffer, address, length);
    const [batch, inputs, vocabulary, outputs, states, neurons] = Array.from(view(BigInt64Array, at.sizes, SIZES), Number);
    Object.assign(this, { batch, inputs, vocabulary, outputs, neurons });
    if (vocabulary > 0) this.#words = view(BigInt64Array, at.x, batch);
    else this.x = view(Float32Array, at.x, batch * inputs);
    this.#run = vocabulary > 0 ? functions.edgernn_step_words : functions.edgernn_step;
    this.y = view(Float32Array, at.y, batch * outputs);
    instance.check(functions.edgernn_state(at.model, at.out));
    this.state = view(Float32Array, instance.read(at.out, 1)[0], states);
    instance.check(functions.edgernn_nonfinite(at.model, at.out));
    this.#nonfinite = view(BigInt64Array, instance.read(at.out, 1)[0], batch);
    instance.check(functions.edgernn_work(at.model, at.out, at.out + 4));
    const [updates, macs] = instance.read(at.out, 2);
    if (updates !== 0) this.#updates = view(BigInt64Array, updates, batch);
    if (macs !== 0) this.#macs = view(BigInt64Array, macs, batch);
    instance.check(functions.edgernn_features(at.model, at.out, at.out + 8));
    const [features, , bands] = instance.read(at.out, 3);
    if (features !== 0) this.features = view(Float32Array, features, batch * bands);
    instance.check(functions.edgernn_sample_rate(at.model, at.out));
    this.sampleRate = instance.read(at.out, 1)[0] || undefined;
    if (this.sampleRate !== undefined) {
      instance.check(functions.edgernn_detection(at.model, at.out));
      const [smoothing, threshold, refractory] = view(Float64Array, at.out, 3);
      this.detection = { smoothing, threshold, refractory };
    }
    this.classes = this.#names(functions.edgernn_class_name, outputs);
    this.channels = this.#names(functions.edgernn_channel_name, inputs);
  }

  /** Returns `count` names, which a function finds, or undefined if the file has none. */
  #names(find, count) {
    const names = [];
    for (let i = 0; i < count; i++) {
      this.#instance.check(find(this.#at.model, BigInt(i), this.#at.out));
      const [address] = this.#instance.read(this.#at.out, 1);
      if (address === 0) return undefined;
      names.push(this.#instance.text(address));
    }
    return count > 0 ? names : undefined;
  }

  clone() {
    return new Model(this.#instance.copy(), this.#at);
  }

  step(x = this.x) {
    if (x !== this.x || x === undefined) this.#set(x);
    this.#instance.check(this.#run(this.#at.model, this.#at.x, this.#at.y));
    return this.y;
  }

  run(x) {
    const width = this.x?.length ?? this.batch;
    const steps = Math.floor(x.length / width);
    checkLength(x, steps * width);
    const y = new Float32Array(steps * this.y.length);
    for (let t = 0; t < steps; t++) {
      const x_t = x.subarray?.(t * width, (t + 1) * width) ?? x.slice(t * width, (t + 1) * width);
      y.set(this.step(x_t), t * this.y.length);
    }
    return y;
  }

  /** Copies the input of a step to the module. */
  #set(x) {
    const to = this.x ?? this.#words;
    checkLength(x ?? [], to.length);
    if (this.x) {
      checkNumbers(x);
      this.x.set(x);
      return;
    }
    for (let b = 0; b < to.length; b++) {
      check(`x: word ${b}`, x[b], 0, this.vocabulary - 1);
      to[b] = BigInt(x[b]);
    }
  }

  reset() {
    this.#instance.check(this.#instance.functions.edgernn_reset(this.#at.model));
  }

  resetRow(row) {
    check("row", row, 0, this.batch - 1);
    this.#instance.check(this.#instance.functions.edgernn_reset_row(this.#at.model, BigInt(row)));
  }

  get updates() {
    return this.#updates && sum(this.#updates);
  }

  get macs() {
    return this.#macs && sum(this.#macs);
  }

  updatesOf(row) {
    check("row", row, 0, this.batch - 1);
    return this.#updates && Number(this.#updates[row]);
  }

  onNonfinite(action) {
    const value = NONFINITE.indexOf(action);
    if (value < 0) {
      throw new EdgernnError("BAD_ARGUMENT", `action: expected one of ${NONFINITE.join(", ")}, got ${action}`);
    }
    this.#instance.check(this.#instance.functions.edgernn_on_nonfinite(this.#at.model, value));
  }

  nonfiniteOf(row) {
    check("row", row, 0, this.batch - 1);
    return Number(this.#nonfinite[row]);
  }

  save() {
    const { model, saved, savedBytes } = this.#at;
    this.#instance.check(this.#instance.functions.edgernn_save_state(model, saved, savedBytes));
    return new Uint8Array(this.#instance.memory.buffer, saved, savedBytes).slice();
  }

  restore(bytes) {
    const { model, saved, savedBytes } = this.#at;
    if (!(bytes instanceof Uint8Array) || bytes.length > savedBytes) {
      const got = bytes instanceof Uint8Array ? `${bytes.length}` : "another type";
      throw new EdgernnError("BAD_STATE", `bytes: expected a Uint8Array of ${savedBytes} bytes, got ${got}`);
    }
    new Uint8Array(this.#instance.memory.buffer, saved, savedBytes).set(bytes);
    this.#instance.check(this.#instance.functions.edgernn_restore_state(model, saved, bytes.length));
  }
}

function sum(counts) {
  let total = 0;
  for (const count of counts) total += Number(count);
  return total;
}
