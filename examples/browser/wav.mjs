// SPDX-License-Identifier: Apache-2.0
// Reads the wav files that the C program and `edgernn run --stream` read, to the same samples, and writes such files.

const PCM = 1;
const UNKNOWN_SIZE = 0x7fff0000; // a program that streams a wav file claims this many bytes of samples or more
const IN_DS64 = 0xffffffff; // size of the samples that stands for the one in the chunk "ds64"
const EXTENSIBLE = 0xfffe; // the format of the samples stands in the first two bytes of the sub-format

/**
 * Returns the samples of a wav file with one channel of 16-bit PCM samples at this rate, from -1 to 1 as a Float32Array.
 * Returns null for every other file, also for one that has no samples or ends before its samples do. If the header
 * claims UNKNOWN_SIZE bytes of samples or more, the samples end with the file.
 *
 * A browser's own decoder may differ in the last digits: Chromium divides positive samples by 32767, not 32768.
 */
export function readWav(buffer, rate) {
  const view = new DataView(buffer);
  const tag = (at) => String.fromCharCode(...new Uint8Array(buffer, at, 4));
  if (buffer.byteLength < 12 || !["RIFF", "RF64"].includes(tag(0)) || tag(8) !== "WAVE") return null;
  let isKnown = false;
  let longSize = 0; // an RF64 file may have the size of the samples in a chunk of its own
  for (let at = 12; at + 8 <= buffer.byteLength; ) {
    const name = tag(at);
    const size = view.getUint32(at + 4, true);
    const claimed = (name === "data" && size === IN_DS64 && longSize) || size;
    at += 8;
    const bytes = name === "data" && claimed >= UNKNOWN_SIZE ? buffer.byteLength - at : claimed;
    if (at + bytes > buffer.byteLength) return null;
    if (name === "ds64" && bytes >= 16) longSize = Number(view.getBigUint64(at + 8, true));
    if (name === "fmt ") isKnown = describes(new DataView(buffer, at, bytes), rate);
    if (name === "data") return isKnown && bytes >= 2 ? samples(new DataView(buffer, at, bytes)) : null;
    at += bytes + (bytes % 2); // chunks have even sizes
  }
  return null;
}

/** True if a chunk "fmt " describes the samples that are read. */
function describes(chunk, rate) {
  if (chunk.byteLength < 16) return false;
  const number = (at) => chunk.getUint16(at, true);
  const extended = number(0) === EXTENSIBLE && chunk.byteLength >= 26;
  const format = extended ? number(24) : number(0);
  const isMono = number(2) === 1 && number(12) === 2;
  return format === PCM && isMono && chunk.getUint32(4, true) === rate && number(14) === 16;
}

function samples(chunk) {
  const count = Math.floor(chunk.byteLength / 2);
  return Float32Array.from({ length: count }, (_, i) => chunk.getInt16(2 * i, true) / 32768);
}

/** Returns the bytes of a wav file of samples from -1 to 1, with one channel of 16-bit PCM samples at this rate. */
export function writeWav(samples, rate) {
  const view = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const text = (at, letters) => [...letters].forEach((letter, i) => view.setUint8(at + i, letter.charCodeAt(0)));
  text(0, "RIFF");
  view.setUint32(4, 36 + 2 * samples.length, true);
  text(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  [PCM, 1].forEach((value, i) => view.setUint16(20 + 2 * i, value, true));
  [rate, 2 * rate].forEach((value, i) => view.setUint32(24 + 4 * i, value, true));
  [2, 16].forEach((value, i) => view.setUint16(32 + 2 * i, value, true));
  text(36, "data");
  view.setUint32(40, 2 * samples.length, true);
  samples.forEach((sample, i) => {
    view.setInt16(44 + 2 * i, Math.max(-32768, Math.min(32767, Math.round(32768 * sample))), true);
  });
  return new Uint8Array(view.buffer);
}
