// SPDX-License-Identifier: Apache-2.0
// Streams sequences through a model exported by edgernn, one step at a time, and keeps its state.
//
// The caller passes ONNX Runtime as `ort`: onnxruntime-node in Node, or onnxruntime-web in a browser.
//
//   const stream = await Stream.open(ort, bytes);
//   const { y, updates } = await stream.step([0.5, 1]);

export class Stream {
  #ort;
  #session;
  #fetches;
  #state;

  /** Opens the model in `bytes`, the file as a Uint8Array. `options` are those of an ONNX Runtime session. */
  static async open(ort, bytes, options = {}) {
    const info = describe(bytes);
    const session = await ort.InferenceSession.create(bytes, {
      intraOpNumThreads: 1,
      interOpNumThreads: 1,
      logSeverityLevel: 4, // errors are thrown, so ONNX Runtime need not log them
      ...options,
    });
    return new Stream(ort, session, info);
  }

  constructor(ort, session, info) {
    this.#ort = ort;
    this.#session = session;
    this.#fetches = session.outputNames.filter((name) => name !== "macs");
    /** The description in the model's metadata: cell, rule, sizes, task, … */
    this.info = info;
    this.reset();
  }

  /** The number of inputs of a step: I, or 1 for a model of words. */
  get inputSize() {
    return this.info.model.input.vocabulary == null ? this.info.model.input.size : 1;
  }

  /** The names of the inputs; undefined if the file has none. */
  get channels() {
    return this.info.channels ?? undefined;
  }

  /** The number of neurons of all layers. */
  get neurons() {
    const { layers, hidden_size: hidden, last_size } = this.info.model;
    const last = last_size ?? hidden;
    return hidden * (layers - 1) + last;
  }

  /** Sets the state to its initial value, so that the next step starts a new sequence. */
  reset() {
    this.#state = {};
    for (const { name, shape } of this.#session.inputMetadata) {
      if (name === "x") continue;
      const start = this.info.initial_state[name] ?? new Float32Array(shape[1]);
      this.#state[name] = new this.#ort.Tensor("float32", Float32Array.from(start), [1, shape[1]]);
    }
  }

  /**
   * Runs one step with x, an array of I numbers. Resolves to y, a Float32Array, and `updates`, the number of neurons
   * that were updated, or undefined for a model that always updates all. Await each step before the next.
   */
  async step(x) {
    if (x.length !== this.inputSize || !x.every(Number.isFinite)) {
      throw new Error(`x: expected ${this.inputSize} finite numbers, got ${x.length}: ${x}`);
    }
    const words = this.info.model.input.vocabulary;
    if (words != null && !(Number.isInteger(x[0]) && x[0] >= 0 && x[0] < words)) {
      throw new Error(`x: expected a whole number from 0 to ${words - 1}, got ${x[0]}`);
    }
    const before = this.#state;
    const out = await this.#session.run({ x: this.#tensor(x), ...before }, this.#fetches);
    // keep the state of a reset() that was called during the step
    if (this.#state === before) {
      this.#state = Object.fromEntries(Object.keys(before).map((name) => [name, out[`${name}.next`]]));
    }
    return { y: out.y.data, updates: out.updates && Number(out.updates.data[0]) };
  }

  /** Releases the memory of the session; no step may follow. */
  close() {
    return this.#session.release();
  }

  #tensor(x) {
    if (this.info.model.input.vocabulary == null) {
      return new this.#ort.Tensor("float32", Float32Array.from(x), [1, 1, x.length]);
    }
    return new this.#ort.Tensor("int64", BigInt64Array.from(x, BigInt), [1, 1]);
  }
}

/** Reads the description of a model: JSON in its metadata, which ONNX Runtime's JavaScript API does not expose. */
function describe(bytes) {
  for (const [number, entry] of fields(bytes)) {
    if (number !== 14) continue; // ModelProto.metadata_props
    const { 1: key, 2: value } = Object.fromEntries(fields(entry));
    if (text(key) !== "edgernn") continue;
    const info = JSON.parse(text(value));
    if (info.schema !== 2) throw new Error(`schema: expected 2, got ${info.schema}`);
    if (!info.streaming) throw new Error("the model needs whole sequences and cannot be streamed");
    return info;
  }
  throw new Error("expected a file that `edgernn export` wrote, got one without its metadata");
}

const text = (bytes) => new TextDecoder().decode(bytes);

/** Yields the length-delimited fields of a protobuf message as [number, bytes]. */
function* fields(bytes) {
  let at = 0;
  const varint = () => {
    let value = 0;
    for (let scale = 1; ; scale *= 128) {
      const byte = bytes[at++];
      value += (byte & 127) * scale;
      if (!(byte & 128)) return value;
    }
  };
  while (at < bytes.length) {
    const key = varint();
    const sizes = { 0: () => varint() * 0, 1: () => 8, 2: varint, 5: () => 4 };
    const size = sizes[key % 8]?.();
    if (!(at + size <= bytes.length)) throw new Error("not an ONNX file, or a truncated one");
    if (key % 8 === 2) yield [Math.floor(key / 8), bytes.subarray(at, at + size)];
    at += size;
  }
}
