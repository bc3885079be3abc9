// SPDX-License-Identifier: Apache-2.0
// Reads steps from CSV, as `edgernn run` does: a line of numbers, which may be in quotes, is a step. An empty line ends a
// sequence. The first line is a header if no cell of it is a number, or could be a damaged one: digits without letters.

/**
 * Yields the steps of lines of text: an array of `width` numbers per step, and null at the end of a sequence. With
 * `channels`, the names of a model's inputs, the columns of a file with a header are put in their order.
 */
export async function* steps(lines, width, channels = null) {
  let count = 0;
  let order = null;
  for await (const line of lines) {
    count += 1;
    if (line.trim() === "") {
      yield null;
    } else if (count === 1 && isHeader(line)) {
      const names = namesOf(line);
      if (!channels && names.length !== width) {
        throw new Error(`line 1: expected a header of ${width} columns, got ${line}; correct the header`);
      }
      order = channels && orderOf(names, channels);
    } else {
      const row = cells(line);
      if (row.length !== width) throw new Error(`line ${count}: expected ${width} finite numbers, got ${line}`);
      const x = row.map(number);
      const bad = x.findIndex((value) => !Number.isFinite(value));
      if (bad >= 0) {
        throw new Error(`line ${count}, column ${bad + 1}: expected a finite number, got '${row[bad]}'`);
      }
      yield order ? order.map((column) => x[column]) : x;
    }
  }
}

/** True if a line has a cell that is not empty, and no number. NaN and infinity are numbers, which `steps` refuses. */
export function isHeader(line) {
  const row = cells(line);
  return row.some((cell) => cell !== "") && !row.some((cell) => isNumber(cell) || isDamaged(cell));
}

/** The names in a header, which numpy.savetxt marks with #. */
export const namesOf = (line) => cells(line).map((name, i) => (i === 0 ? name.replace(/^[# ]+/, "") : name));

function orderOf(names, channels) {
  if (names.length !== channels.length || !channels.every((name) => names.filter((n) => n === name).length === 1)) {
    throw new Error(
      `line 1: expected the columns ${channels.join()} of the training, got ${names.join()}; correct the header`,
    );
  }
  return channels.map((name) => names.indexOf(name));
}

// a cell after its comma: in quotes, which may hold commas and doubled quotes, or plain
const CELL = /,\s*(?:"((?:[^"]|"")*)"\s*(?=,|$)|([^,]*))/g;
// the first line may begin with a byte order mark
const cells = (line) =>
  [...`,${line.replace(/^\uFEFF/, "")}`.matchAll(CELL)].map(([, quoted, plain]) =>
    (quoted?.replaceAll('""', '"') ?? plain).trim(),
  );
const number = (cell) => (/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(cell) ? Number(cell) : NaN);
const isNumber = (cell) => !Number.isNaN(number(cell)) || /^[+-]?(nan|inf|infinity)$/i.test(cell);
const isDamaged = (cell) => /\p{Nd}/u.test(cell) && !/\p{L}/u.test(cell);

/** The median and the 90th percentile of an array. */
export function quantiles(values) {
  const sorted = Float64Array.from(values).sort();
  return { median: sorted[Math.floor(sorted.length / 2)], p90: sorted[Math.floor(sorted.length * 0.9)] };
}
