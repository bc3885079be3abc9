// SPDX-License-Identifier: Apache-2.0

/**
 * The name of an EdgernnStatus of edgernn.h; NO_MEMORY if the model does not fit the memory; NO_MODULE if the
 * WebAssembly module cannot be read, downloaded or compiled, or is another one.
 */
export type Status =
  | "BAD_ARGUMENT"
  | "BAD_MODEL"
  | "BAD_VERSION"
  | "BAD_INPUT"
  | "UNSUPPORTED"
  | "BAD_STATE"
  | "NO_MEMORY"
  | "NO_MODULE";

/** The error that all functions throw; the message is a sentence that says what was wrong. */
export class EdgernnError extends Error {
  readonly status: Status;
}

export interface LoadOptions {
  /** Number of sequences that a step advances, 1 to 65536. Default: 1. */
  batch?: number;
  /** Maximum number of bytes of memory that the model may take, at least 262144. Default: 2 ** 32. */
  memory?: number;
  /** The compiled edgernn.wasm. Default: the file beside this module, edgernn-relaxed.wasm where the engine has it. */
  module?: WebAssembly.Module;
}

/**
 * Loads and compiles the WebAssembly module of this package, once. An AudioWorklet can neither load nor compile it: pass
 * the module and the model's bytes in `processorOptions`, and load the model there with the option `module`.
 */
export function loadModule(): Promise<WebAssembly.Module>;

/**
 * A packed model (`edgernn pack`) with its state. Arrays are row-major, B sequences side by side. A model belongs to the
 * thread that loaded it, and a message to a worker carries no model: post the bytes, and load them there.
 */
export class Model {
  private constructor();

  /**
   * Loads the model in `bytes`, the content of a file model.edgernn. Throws EdgernnError for a damaged or foreign file,
   * if there is not enough memory, and if the WebAssembly module cannot be loaded. A later load is not affected.
   */
  static load(bytes: Uint8Array | ArrayBuffer, options?: LoadOptions): Promise<Model>;

  /** B. */
  readonly batch: number;
  /** I; 0 for a model of words. */
  readonly inputs: number;
  /** The number of words; 0 for a model of numbers. */
  readonly vocabulary: number;
  /** O. */
  readonly outputs: number;
  /** The number of neurons of all layers. */
  readonly neurons: number;

  /** The names of the outputs of a model that tells classes apart; undefined if the file has none. */
  readonly classes: string[] | undefined;
  /** The names of the channels of x, from the header of the training's tables; undefined if the file has none. */
  readonly channels: string[] | undefined;
  /** Samples per second of the audio that the model reads; undefined for a model that reads no audio. */
  readonly sampleRate: number | undefined;
  /**
   * Settings of the detection of spoken words, of a model that reads audio: seconds over which probabilities are
   * averaged, the least average of a detected word, and seconds after a detection without another one.
   */
  readonly detection: { smoothing: number; threshold: number; refractory: number } | undefined;
  /** The features (B, F) of the last step of a model that reads audio, in the model's memory; else undefined. */
  readonly features: Float32Array | undefined;

  /** The input of a step (B, I), in the model's memory; undefined for a model of words. */
  readonly x: Float32Array | undefined;
  /** The output of the last step (B, O), in the model's memory. */
  readonly y: Float32Array;
  /** The states of all layers, in the model's memory. */
  readonly state: Float32Array;

  /** Neurons updated by the last step (under the rule delta, values of h sent), of all sequences; undefined if the model skips nothing. */
  readonly updates: number | undefined;
  /** Multiply-adds of the last step, of all sequences and layers; undefined as for `updates`. */
  readonly macs: number | undefined;
  /** The updates of one sequence; undefined as for `updates`. */
  updatesOf(row: number): number | undefined;

  /**
   * Runs a step and returns `y`, which the next step overwrites. x: (B, I) numbers or (B,) words, which are copied.
   * Without x the step reads `model.x`, so that a caller who writes there copies nothing.
   */
  step(x?: ArrayLike<number>): Float32Array;

  /** Runs T steps of x, (T, B, I) or (T, B) words, from the present state. Returns (T, B, O). */
  run(x: Float32Array | number[]): Float32Array;

  /** Sets the state to its initial value, so that the next step starts new sequences. */
  reset(): void;
  /** Resets one sequence; the others keep their state. */
  resetRow(row: number): void;

  /** Makes a model with the same weights and a copy of the state. Later steps of one do not change the other. */
  clone(): Model;

  /** Saves the state of all sequences. */
  save(): Uint8Array;
  /** Restores what save() returned, also in another process. Refuses any other bytes and keeps the state. */
  restore(bytes: Uint8Array): void;

  /**
   * Sets what a step does with a number that is not finite: "error" refuses the step and keeps the state, the default;
   * "hold" reads the last finite number of that input; "reset" resets the sequence first.
   */
  onNonfinite(action: "error" | "hold" | "reset"): void;
  /** Number of steps at which x of a sequence had a number that is not finite, since its reset. */
  nonfiniteOf(row: number): number;
}
