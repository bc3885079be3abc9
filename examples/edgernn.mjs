// SPDX-License-Identifier: Apache-2.0
// A model exported by edgernn, one step at a time, with the state in and out.
//
// Needs onnxruntime-node in Node or onnxruntime-web in a browser, which the caller brings as `ort`:
//
//   const stream = await Stream.open(ort, bytes);
//   const { y, updates } = await stream.step([0.5, 1]);

export class Stream {
  #ort;
  #session;
  #fetches;
  #state;

  /** The model in a file whose content is `bytes`, a Uint8Array; `options` go to ONNX Runtime's session. */
  static async open(ort, bytes, options = {}) {
    const info = describe(bytes);
    const session = await ort.InferenceSession.create(bytes, {
      intraOpNumThreads: 1,
      interOpNumThreads: 1,
      logSeverityLevel: 4, // what goes wrong is thrown, and said once
      ...options,
    });
    return new Stream(ort, session, info);
  }

  constructor(ort, session, info) {
    this.#ort = ort;
    this.#session = session;
    this.#fetches = session.outputNames.filter((name) => name !== "macs");
    /** What the file says of itself: cell, rule, sizes, task, … */
    this.info = info;
    this.reset();
  }

  /** How many numbers a step reads: I, or 1 where the model reads words. */
  get inputSize() {
    return this.info.model.input.vocabulary == null ? this.info.model.input.size : 1;
  }

  /** How many neurons the model has, of all layers. */
  get neurons() {
    const { layers, hidden_size: hidden, last_size } = this.info.model;
    const last = last_size ?? hidden;
    return hidden * (layers - 1) + last;
  }

  /** The next step starts a new sequence. */
  reset() {
    this.#state = {};
    for (const { name, shape } of this.#session.inputMetadata) {
      if (name === "x") continue;
      const start = this.info.initial_state[name] ?? new Float32Array(shape[1]);
      this.#state[name] = new this.#ort.Tensor("float32", Float32Array.from(start), [1, shape[1]]);
    }
  }

  /**
   * One more step x (I numbers). Gives y, a Float32Array, and `updates`, how many neurons the step updated, undefined
   * for a model that always updates all. Await one step before the next.
   */
  async step(x) {
    if (x.length !== this.inputSize || !x.every(Number.isFinite)) {
      throw new Error(`x: expected ${this.inputSize} finite numbers, got ${x.length}: ${x}`);
    }
    const before = this.#state;
    const out = await this.#session.run({ x: this.#tensor(x), ...before }, this.#fetches);
    // what was reset in the meantime stays so
    if (this.#state === before) {
      this.#state = Object.fromEntries(Object.keys(before).map((name) => [name, out[`${name}.next`]]));
    }
    return { y: out.y.data, updates: out.updates && Number(out.updates.data[0]) };
  }

  #tensor(x) {
    if (this.info.model.input.vocabulary == null) {
      return new this.#ort.Tensor("float32", Float32Array.from(x), [1, 1, x.length]);
    }
    return new this.#ort.Tensor("int64", BigInt64Array.from(x, BigInt), [1, 1]);
  }
}

/** The model's own description: JSON in its metadata, which ONNX Runtime's JavaScript interface does not give. */
function describe(bytes) {
  for (const [number, entry] of fields(bytes)) {
    if (number !== 14) continue; // ModelProto.metadata_props
    const { 1: key, 2: value } = Object.fromEntries(fields(entry));
    if (text(key) !== "edgernn") continue;
    const info = JSON.parse(text(value));
    if (info.schema !== 2) throw new Error(`schema ${info.schema}, this program reads 2`);
    if (!info.streaming) throw new Error("this model needs the whole sequence and cannot be streamed");
    return info;
  }
  throw new Error("not exported by edgernn (no metadata)");
}

const text = (bytes) => new TextDecoder().decode(bytes);

/** The fields of a protobuf message that have a length, as [number, bytes]. */
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
    if (!(at + size <= bytes.length)) throw new Error("not an ONNX file, or not all of one");
    if (key % 8 === 2) yield [Math.floor(key / 8), bytes.subarray(at, at + size)];
    at += size;
  }
}
