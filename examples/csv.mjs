// SPDX-License-Identifier: Apache-2.0
// Steps in csv files: a line of numbers is a step, an empty line ends a sequence, and a first line that begins with no
// number is a header.

/** The steps in lines of text, as they come: an array of `width` numbers each, null where a sequence ends. */
export async function* steps(lines, width) {
  let count = 0;
  for await (const line of lines) {
    count += 1;
    if (line.trim() === "") {
      yield null;
    } else if (count > 1 || !isHeader(line)) {
      const x = line.split(",").map(number);
      if (x.length !== width || !x.every(Number.isFinite)) {
        throw new Error(`line ${count}: expected ${width} finite numbers, got: ${line}`);
      }
      yield x;
    }
  }
}

export const isHeader = (line) => Number.isNaN(number(line.split(",")[0]));

const number = (word) => (word.trim() === "" ? NaN : Number(word));

/** The middle of what was measured, and what 90 % of it is below. */
export function quantiles(values) {
  const sorted = Float64Array.from(values).sort();
  return { median: sorted[Math.floor(sorted.length / 2)], p90: sorted[Math.floor(sorted.length * 0.9)] };
}
