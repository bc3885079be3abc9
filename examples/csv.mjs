// SPDX-License-Identifier: Apache-2.0
// Reads steps from CSV: a line of numbers is a step, and an empty line ends a sequence. The first line is a header if
// it does not start with a number.

/** Yields the steps of lines of text: an array of `width` numbers per step, and null at the end of a sequence. */
export async function* steps(lines, width) {
  let count = 0;
  for await (const line of lines) {
    count += 1;
    if (line.trim() === "") {
      yield null;
    } else if (count > 1 || !isHeader(line)) {
      const x = line.split(",").map(number);
      if (x.length !== width || !x.every(Number.isFinite)) {
        throw new Error(`line ${count}: expected ${width} finite numbers, got ${line}`);
      }
      yield x;
    }
  }
}

/** True if a line does not start with a number. NaN and infinity are numbers, which `steps` refuses. */
export function isHeader(line) {
  const [word] = line.split(",");
  return Number.isNaN(number(word)) && !/^[+-]?(nan|inf|infinity)$/i.test(word.trim());
}

const number = (word) => (word.trim() === "" ? NaN : Number(word));

/** The median and the 90th percentile of an array. */
export function quantiles(values) {
  const sorted = Float64Array.from(values).sort();
  return { median: sorted[Math.floor(sorted.length / 2)], p90: sorted[Math.floor(sorted.length * 0.9)] };
}
