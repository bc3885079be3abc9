// SPDX-License-Identifier: Apache-2.0
// Runs a model of words on samples that arrive in parts of any length. Nothing here needs a browser.

/** The steps of one source of audio, from its first sample to its last. */
export class Listening {
  rows = []; // the last steps: {features, share, score, word}
  count = 0;
  words = 0;
  milliseconds = 0; // time of all steps
  #model;
  #detector;
  #kept;
  #onWord;
  #x; // the samples of the next step
  #filled = 0;

  /**
   * model: A packed model that reads audio; its state is reset. detector: A WordDetector of its classes. keptSeconds:
   * Duration of the steps that `rows` has at least. onWord: A function that gets each word, {step, word, score}, and the
   * seconds from the first sample to the end of its step.
   */
  constructor(model, detector, { keptSeconds = 0, onWord = () => {} } = {}) {
    model.reset();
    this.#model = model;
    this.#detector = detector;
    this.hop = model.inputs;
    this.seconds = this.hop / model.sampleRate;
    this.#kept = Math.round(keptSeconds / this.seconds);
    this.#onWord = onWord;
    this.#x = new Float32Array(this.hop);
  }

  set threshold(value) {
    this.#detector.threshold = value;
  }

  /** Runs the steps that these samples complete. */
  feed(samples) {
    for (let at = 0; at < samples.length; ) {
      const part = samples.subarray(at, at + this.hop - this.#filled);
      this.#x.set(part, this.#filled);
      at += part.length;
      this.#filled += part.length;
      if (this.#filled < this.hop) continue;
      this.#filled = 0;
      this.#step();
    }
  }

  #step() {
    const start = performance.now();
    const scores = this.#model.step(this.#x);
    const word = this.#detector.feed(scores);
    this.milliseconds += performance.now() - start;
    this.count += 1;
    const share = (this.#model.updates ?? this.#model.neurons) / this.#model.neurons;
    this.rows.push({ features: this.#model.features.slice(), share, score: this.#detector.score, word });
    if (this.rows.length > 2 * this.#kept) this.rows.splice(0, this.rows.length - this.#kept);
    if (word === undefined) return;
    this.words += 1;
    this.#onWord(word, this.count * this.seconds);
  }
}

/** The samples of a recording in parts, as time passes: each sample is in one part. */
export class Playback {
  #samples;
  #most;
  #at = 0;

  /** samples: The recording. rate: Samples per second; a part has at most a tenth of them. */
  constructor(samples, rate) {
    this.#samples = samples;
    this.#most = Math.max(1, Math.floor(rate / 10));
  }

  get done() {
    return this.#at === this.#samples.length;
  }

  /** Returns the next part of the samples before the index `due`, which may be a fraction; an empty part if none is due. */
  next(due) {
    const end = Math.max(this.#at, Math.min(this.#at + this.#most, Math.floor(due), this.#samples.length));
    const part = this.#samples.subarray(this.#at, end);
    this.#at = end;
    return part;
  }
}
