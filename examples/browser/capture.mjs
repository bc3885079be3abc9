// SPDX-License-Identifier: Apache-2.0
// Posts the samples of a microphone to the page. Runs on the browser's audio thread.

const POSTED = 1024; // samples in a message

class Capture extends AudioWorkletProcessor {
  #samples = new Float32Array(POSTED);
  #count = 0;

  process([[samples]]) {
    // an input without a channel is not connected
    for (const sample of samples ?? []) {
      this.#samples[this.#count++] = sample;
      if (this.#count < POSTED) continue;
      this.port.postMessage(this.#samples.slice());
      this.#count = 0;
    }
    return true;
  }
}

registerProcessor("capture", Capture);
