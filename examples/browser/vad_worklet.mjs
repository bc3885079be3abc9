// SPDX-License-Identifier: Apache-2.0
// Runs a model on the browser's audio thread: the samples of its input go through the model here, and the probability of
// speech of each step goes to the page.

import { Model } from "./edgernn/index.mjs";
import { Resampler } from "./resampler.mjs";
import { VoiceActivity } from "./voice_activity.mjs";

class VoiceActivityProcessor extends AudioWorkletProcessor {
  #activity;
  #resampler;

  /** processorOptions: the compiled module, the bytes of the packed model, and the settings of VoiceActivity. */
  constructor({ processorOptions: { module, bytes, settings } }) {
    super();
    this.port.onmessage = ({ data }) => {
      if (this.#activity) this.#activity.threshold = data;
    };
    this.#open(module, bytes, settings).catch((error) => this.port.postMessage({ error: error.message }));
  }

  async #open(module, bytes, settings) {
    const model = await Model.load(bytes, { module });
    this.#resampler = new Resampler(sampleRate, settings.rate);
    this.#activity = new VoiceActivity(model, settings);
    this.port.postMessage({ ready: true });
  }

  process([[samples]]) {
    // an input without a channel is not connected
    if (!samples || !this.#activity) return true;
    try {
      for (const step of this.#activity.feed(this.#resampler.feed(samples))) this.port.postMessage(step);
      return true;
    } catch (error) {
      this.port.postMessage({ error: error.message });
      return false;
    }
  }
}

registerProcessor("voice-activity", VoiceActivityProcessor);
