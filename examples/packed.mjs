// SPDX-License-Identifier: Apache-2.0
// Streams sequences through a packed model (`edgernn pack`), with the functions of edgernn.mjs and without ONNX Runtime.
//
// The caller passes the class Model of the package edgernn, in runtime/js.
//
//   const stream = await PackedStream.open(Model, bytes);
//   const { y, updates } = await stream.step([0.5, 1]);

export class PackedStream {
  #model;

  /** Opens the model in `bytes`, the file as a Uint8Array. */
  static async open(Model, bytes) {
    return new PackedStream(await Model.load(bytes));
  }

  constructor(model) {
    this.#model = model;
  }

  /** True if `bytes` begin as a packed model does. */
  static reads(bytes) {
    return new TextDecoder().decode(bytes.subarray(0, 7)) === "EDGERNN";
  }

  /** The number of inputs of a step: I, or 1 for a model of words. */
  get inputSize() {
    return this.#model.inputs || 1;
  }

  /** The names of the inputs; undefined if the file has none. */
  get channels() {
    return this.#model.channels;
  }

  /** The number of neurons of all layers. */
  get neurons() {
    return this.#model.neurons;
  }

  /** Sets the state to its initial value, so that the next step starts a new sequence. */
  reset() {
    this.#model.reset();
  }

  /** Runs one step with x, an array of I numbers or one word. Returns y and `updates`, as in edgernn.mjs. */
  step(x) {
    // y is overwritten by the next step
    return { y: this.#model.step(x).slice(), updates: this.#model.updates };
  }

  /** Does nothing: the garbage collector releases a packed model. */
  close() {}
}
