// SPDX-License-Identifier: Apache-2.0
// Detects spoken words in the scores of a model at each step, with the rule of edgernn.runtime.word_detection, which
// defines it:
//
//   p_t = round(65536 softmax(y_t))          probabilities of the classes, as integers; NaN counts as 0
//   s_t = mean of p_t, p_{t-1}, ... / 65536  over `smoothing` seconds; before the first step, p is 0
//
// The word with the largest s_t, the first one of several, is detected at step t if its s_t is at least `threshold` and
// no word was detected in the `refractory` seconds before.

const NOT_WORDS = ["_unknown_", "_silence_"];
const ONE = 65536; // the integer that stands for the probability 1

export class WordDetector {
  #last; // probabilities of the last steps: an array for each class
  #sums; // of these
  #step;
  #free; // first step at which a word may be detected
  score; // largest average probability of a word at the last step

  /**
   * classes: The names of the classes. seconds: The duration of a step, model.inputs / model.sampleRate. The settings are
   * those in the model's file, model.detection. Throws if no class is a word, if the threshold is not above 0 and at
   * most 1, and if another setting is not from 0 to 60 seconds.
   */
  constructor(classes, seconds, { smoothing = 0.3, threshold = 0.5, refractory = 0.8 } = {}) {
    if (!(threshold > 0 && threshold <= 1)) {
      throw new Error(`threshold: expected above 0 and at most 1, got ${threshold}`);
    }
    for (const [name, value] of Object.entries({ smoothing, refractory })) {
      if (!(value >= 0 && value <= 60)) throw new Error(`${name}: expected from 0 to 60 seconds, got ${value}`);
    }
    this.classes = classes;
    this.words = classes.map((_, label) => label).filter((label) => !NOT_WORDS.includes(classes[label]));
    if (this.words.length === 0) throw new Error(`classes: expected at least one word to detect, got ${classes}`);
    this.threshold = threshold;
    this.width = steps(smoothing / seconds);
    this.gap = steps(refractory / seconds);
    this.reset();
  }

  /** Starts a new stream. */
  reset() {
    this.#last = this.classes.map(() => new Uint32Array(this.width));
    this.#sums = new Float64Array(this.classes.length);
    this.#step = this.#free = this.score = 0;
  }

  /** Reads the scores of the next step. Returns the word that is detected at it, {step, word, score}, or undefined. */
  feed(scores) {
    const step = this.#step++;
    const place = step % this.width;
    softmax(scores).forEach((probability, label) => {
      const rounded = probability > 0 ? Math.floor(probability * ONE + 0.5) : 0;
      this.#sums[label] += rounded - this.#last[label][place];
      this.#last[label][place] = rounded;
    });
    const best = this.words.reduce((a, b) => (this.#sums[b] > this.#sums[a] ? b : a));
    this.score = this.#sums[best] / (ONE * this.width);
    if (step < this.#free || this.score < this.threshold) return undefined;
    this.#free = step + this.gap;
    return { step, word: this.classes[best], score: this.score };
  }
}

/** Rounds to a whole number of steps, at least 1. Halves are rounded to even, as in Python. */
function steps(value) {
  const floor = Math.floor(value);
  const half = value - floor === 0.5;
  return Math.max(1, half ? floor + (floor % 2) : Math.round(value));
}

function softmax(scores) {
  const largest = Math.max(...scores);
  const shifted = Array.from(scores, (score) => Math.exp(score - largest));
  const sum = shifted.reduce((total, value) => total + value, 0);
  return shifted.map((value) => value / sum);
}
