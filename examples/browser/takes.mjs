// SPDX-License-Identifier: Apache-2.0
// Checks takes of a phrase, with the rules of edgernn.runtime.takes, which defines them. Nothing here needs a browser.

const FRAME = 0.02; // seconds
const QUIET = -50; // dB of full scale
const SILENT = -100;
const SPOKEN = 30; // dB below the loudest frame down to which a frame belongs to the phrase
const CUT = 8; // dB below the loudest frame at which the phrase is taken for cut off
// noise has an even level: so many dB at most lie between the two quantiles; frames of the phrase are so much louder
const EVEN = 3;
const FLOOR = [0.1, 0.3];
const ABOVE = 6;
const CLEAR = 15; // dB of the loudest frame above the noise
const CLIPPED = 3; // successive samples
const SHORT = 0.45; // seconds
const LONGEST_PHRASE = 2.5;

/**
 * Checks samples from -1 to 1. Returns {isGood, advice}: whether the take can be used, and a sentence that says what to
 * do, or undefined.
 */
export function checkTake(samples, rate) {
  const refuse = (advice) => ({ isGood: false, advice });
  if (samples.every((sample) => sample === 0)) {
    return refuse("expected sound, got digital silence; check that the microphone is neither muted nor refused");
  }
  const levels = levelsOf(samples, Math.round(FRAME * rate));
  const loudest = levels.reduce((a, b) => Math.max(a, b));
  if (loudest < QUIET) {
    return refuse(
      `expected a phrase louder than ${QUIET} dB of full scale, got ${loudest.toFixed(0)} dB; come closer to the ` +
        "microphone, or raise its level",
    );
  }
  const count = clipped(samples);
  if (count > 0) {
    return refuse(
      `expected no clipping, got ${count} samples at full scale; go farther from the microphone, or lower its level`,
    );
  }
  const end = levels[0] >= loudest - CUT ? "start" : levels.at(-1) >= loudest - CUT ? "end" : undefined;
  if (end !== undefined) {
    return refuse(`expected a pause before and after the phrase, got speech at the ${end}; leave a pause there`);
  }
  const [noise, high] = FLOOR.map((share) => quantile(levels, share));
  const evenNoise = high - noise <= EVEN && high + ABOVE < loudest;
  const bound = Math.max(loudest - SPOKEN, evenNoise ? high + ABOVE : -Infinity);
  const isSpoken = (level) => level >= bound;
  const length = (levels.findLastIndex(isSpoken) - levels.findIndex(isSpoken) + 1) * FRAME;
  if (length > LONGEST_PHRASE) {
    return refuse(
      `expected a phrase of at most ${LONGEST_PHRASE} s, got ${length.toFixed(1)} s; cut the take to one phrase, or ` +
        "choose a shorter one",
    );
  }
  let advice;
  if (length < SHORT) {
    advice =
      `the phrase takes ${length.toFixed(2)} s: one short word is in much of what people say, and gives many false ` +
      "alarms; choose a phrase of two words";
  } else if (noise > QUIET - 10 && loudest - noise < CLEAR) {
    const difference = (loudest - noise).toFixed(0);
    advice = `the phrase is ${difference} dB louder than the noise; record in a quieter place, or come closer`;
  }
  return { isGood: true, advice };
}

/** The quantile of numbers at a share of 0 to 1, interpolated between its two neighbours. */
function quantile(numbers, share) {
  const sorted = numbers.toSorted();
  const at = share * (sorted.length - 1);
  const low = sorted[Math.floor(at)];
  return low + (at % 1) * ((sorted[Math.floor(at) + 1] ?? low) - low);
}

/** The levels of all frames in dB of full scale. */
function levelsOf(samples, frame) {
  return Float64Array.from({ length: Math.floor(samples.length / frame) }, (_, i) => {
    const power = samples.subarray(i * frame, (i + 1) * frame).reduce((sum, x) => sum + x * x, 0) / frame;
    return 10 * Math.log10(Math.max(power, 10 ** (SILENT / 10)));
  });
}

/** The number of samples at full scale in runs of CLIPPED and more. */
function clipped(samples) {
  let count = 0;
  let run = 0;
  for (let i = 0; i <= samples.length; i++) {
    // 16-bit samples end at 32767 / 32768; past the last sample the comparison with NaN is false
    if (Math.abs(samples[i]) >= 32767 / 32768) {
      run += 1;
      continue;
    }
    if (run >= CLIPPED) count += run;
    run = 0;
  }
  return count;
}
