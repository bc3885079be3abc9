// SPDX-License-Identifier: Apache-2.0
// Sources of samples at the rate of a model: the microphone, and a file with audio.

import { Resampler } from "./resampler.mjs";
import { readWav } from "./wav.mjs";

/**
 * Returns a function that creates an audio node for samples at this rate. `onSamples` gets each part of them as a
 * Float32Array.
 */
export function capture(rate, onSamples) {
  return async (context) => {
    await context.audioWorklet.addModule("./capture.mjs");
    const resampler = new Resampler(context.sampleRate, rate);
    const node = new AudioWorkletNode(context, "capture", {
      numberOfOutputs: 0,
      channelCount: 1,
      // a microphone of several channels is mixed to one
      channelCountMode: "explicit",
    });
    node.port.onmessage = ({ data }) => onSamples(resampler.feed(data));
    return node;
  };
}

/**
 * The microphone. `makeNode` creates the node that its samples go to, in an AudioContext. `onError` gets an Error if the
 * microphone ends later, such as one that is unplugged.
 */
export class Microphone {
  #context;
  #stream;

  /** Asks for the microphone and starts to listen. Throws an Error that says what to do if there is none. */
  static async start(makeNode, onError) {
    const microphone = new Microphone();
    try {
      await microphone.#open(makeNode, onError);
    } catch (error) {
      microphone.stop();
      throw new Error(explain(error));
    }
    return microphone;
  }

  async #open(makeNode, onError) {
    // without https, a browser has no microphone
    if (navigator.mediaDevices === undefined) throw new DOMException("", "SecurityError");
    this.#stream = await navigator.mediaDevices.getUserMedia({
      // the model hears what a file has, without the filters for telephony
      audio: { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: false },
    });
    for (const track of this.#stream.getTracks()) {
      // stop() does not send this event
      track.onended = () => onError(new Error("it was disconnected, or access was withdrawn; start it again"));
    }
    this.#context = new AudioContext();
    this.#context.createMediaStreamSource(this.#stream).connect(await makeNode(this.#context));
    await this.#context.resume();
  }

  stop() {
    for (const track of this.#stream?.getTracks() ?? []) track.stop();
    this.#context?.close();
  }
}

/** Says what a user can do about an error of getUserMedia. */
function explain(error) {
  const instead = "or choose an audio file";
  const reasons = {
    NotAllowedError: `access was refused; allow it for this page in the browser's settings, ${instead}`,
    NotFoundError: `no microphone was found; connect one, ${instead}`,
    NotReadableError: `another program uses it; close that program, ${instead}`,
    SecurityError: `the browser has no microphone for this address; open the page on localhost or with https, ${instead}`,
  };
  return reasons[error.name] ?? `${error.message}; choose an audio file`;
}

/** Decodes a file with audio, of any format that the browser knows, to samples of one channel at this rate. */
export async function decode(bytes, rate) {
  const exact = readWav(bytes, rate);
  if (exact !== null) return exact;
  // the context resamples and does not play
  const context = new OfflineAudioContext(1, 1, rate);
  const audio = await context.decodeAudioData(bytes).catch(() => {
    throw new Error("expected a file with audio, such as a wav file, got another or a damaged one; choose another file");
  });
  const samples = new Float32Array(audio.length);
  for (let c = 0; c < audio.numberOfChannels; c++) {
    audio.getChannelData(c).forEach((sample, i) => (samples[i] += sample / audio.numberOfChannels));
  }
  return samples;
}
