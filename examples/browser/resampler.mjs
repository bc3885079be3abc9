// SPDX-License-Identifier: Apache-2.0
// Converts a stream of samples to another rate, with a low-pass filter below half of both rates.

const CROSSINGS = 16; // zeros of the filter on each side of its middle
const PASSED = 0.92; // share of the lower rate's frequencies that the filter keeps

export class Resampler {
  #filters; // a filter for each fraction of a sample at which an output may stand
  #kept; // input that later outputs need
  #half; // number of inputs on each side of an output
  #at = 0; // position of the next output in #kept, in fractions of an input sample

  constructor(from, to) {
    const divisor = gcd(from, to);
    this.fractions = to / divisor;
    this.advance = from / divisor;
    const cutoff = PASSED * Math.min(1, to / from);
    this.#half = Math.ceil(CROSSINGS / cutoff);
    this.#filters = Array.from({ length: this.fractions }, (_, i) => filter(i / this.fractions, this.#half, cutoff));
    // the first output stands at the first input
    this.#kept = new Float32Array(this.#half - 1);
  }

  /** Returns the outputs, as a Float32Array, that the next inputs make complete. */
  feed(samples) {
    if (this.fractions === this.advance) return Float32Array.from(samples);
    const input = new Float32Array(this.#kept.length + samples.length);
    input.set(this.#kept);
    input.set(samples, this.#kept.length);
    const outputs = [];
    let first = Math.floor(this.#at / this.fractions);
    for (; first + 2 * this.#half <= input.length; first = Math.floor(this.#at / this.fractions)) {
      const weights = this.#filters[this.#at % this.fractions];
      let sum = 0;
      for (let k = 0; k < weights.length; k++) sum += weights[k] * input[first + k];
      outputs.push(sum);
      this.#at += this.advance;
    }
    const used = Math.min(first, input.length);
    this.#kept = input.slice(used);
    this.#at -= used * this.fractions;
    return Float32Array.from(outputs);
  }
}

/** A windowed sinc around `fraction` of an input sample, whose weights have the sum 1. */
function filter(fraction, half, cutoff) {
  const weights = Float64Array.from({ length: 2 * half }, (_, k) => {
    const x = k - (half - 1) - fraction;
    const angle = Math.PI * cutoff * x;
    return (angle === 0 ? 1 : Math.sin(angle) / angle) * (0.5 + 0.5 * Math.cos((Math.PI * x) / half));
  });
  const sum = weights.reduce((total, weight) => total + weight, 0);
  return weights.map((weight) => weight / sum);
}

const gcd = (a, b) => (b === 0 ? a : gcd(b, a % b));
