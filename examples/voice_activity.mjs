// SPDX-License-Identifier: Apache-2.0
// Finds the parts of a stream of samples in which somebody speaks. Nothing here needs a browser.
//
// The model has one output, the probability of speech, or scores of classes of which one is _silence_. Speech begins when
// its probability reaches the threshold, and ends when it stays BELOW below for PAUSE seconds.

const BELOW = 0.15;
const PAUSE = 0.25; // seconds

export class VoiceActivity {
  #model;
  #silence;
  #x; // the samples of the next step
  #added;
  #filled;
  #step; // seconds
  #steps = 0;
  #begin; // of the part with speech, or undefined
  #last = 0; // the end of the last step that belongs to it

  /**
   * model: A packed model that reads audio. rate: Samples per second. added: New samples of a step, by default all that
   * the model reads; a step begins with the last samples of the step before if it reads more of them.
   */
  constructor(model, { rate, added = model.inputs, threshold = 0.5 }) {
    if (!(Number.isInteger(added) && added > 0 && added <= model.inputs)) {
      throw new Error(`new samples: expected 1 to ${model.inputs}, which the model reads, got ${added}`);
    }
    this.#silence = model.classes?.indexOf("_silence_") ?? -1;
    if (this.#silence < 0 && model.outputs !== 1) {
      throw new Error(`expected one output or a class _silence_, got ${model.outputs} outputs; train it with task keywords`);
    }
    this.threshold = threshold;
    this.#model = model;
    this.#added = added;
    this.#x = new Float32Array(model.inputs);
    this.#filled = model.inputs - added;
    this.#step = added / rate;
  }

  /**
   * Runs the steps that these samples complete. Returns them as {seconds, probability}: the end of the step. The step at
   * which a part with speech is over has `part`, its {begin, end} in seconds.
   */
  feed(samples) {
    const steps = [];
    for (let at = 0; at < samples.length; ) {
      const part = samples.subarray(at, at + this.#x.length - this.#filled);
      this.#x.set(part, this.#filled);
      at += part.length;
      this.#filled += part.length;
      if (this.#filled < this.#x.length) continue;
      steps.push(this.#run());
      this.#x.copyWithin(0, this.#added);
      this.#filled = this.#x.length - this.#added;
    }
    return steps;
  }

  #run() {
    const probability = speech(this.#model.step(this.#x), this.#silence);
    const now = this.#steps++ * this.#step;
    const seconds = now + this.#step;
    if (probability >= this.threshold) this.#begin ??= now;
    if (probability >= this.threshold - BELOW) this.#last = seconds;
    if (this.#begin === undefined || seconds - this.#last < PAUSE) return { seconds, probability };
    const part = { begin: this.#begin, end: this.#last };
    this.#begin = undefined;
    return { seconds, probability, part };
  }
}

function speech(scores, silence) {
  if (silence < 0) return scores[0];
  return 1 - 1 / scores.reduce((sum, score) => sum + Math.exp(score - scores[silence]), 0);
}
