// SPDX-License-Identifier: Apache-2.0
// Draws three panels over the last steps: the input, the output, and the share of updates.

const WINDOW = 200; // steps
const LEFT = 58;
const RIGHT = 18;
const HEAD = 34; // space for the title above each panel
const FOOT = 44; // space for the axis below the last panel
// maximum number of channels drawn as lines; more are drawn as a heat map
const LINES = 4;

/** Sizes a canvas for the screen, and returns its context, its size in CSS pixels, and the colours of the page. */
export function openCanvas(canvas) {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(`--${name}`).trim();
  const scale = window.devicePixelRatio;
  const { clientWidth: width, clientHeight: height } = canvas;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const g = canvas.getContext("2d");
  g.scale(scale, scale);
  const colors = {
    text: color("text"),
    muted: color("muted"),
    line: color("line"),
    palette: color("series").split(" "),
  };
  return { g, width, height, colors };
}

/**
 * Draws the last steps of `rows`, each {x, y, goal, share, begins}, with the latest at the right edge.
 * names: The names of the input's channels. count: The number of the latest step.
 */
export function draw(canvas, rows, names, count) {
  const { g, width, height, colors } = openCanvas(canvas);
  g.font = "13px system-ui, sans-serif";
  g.lineJoin = "round";

  const shown = rows.slice(-WINDOW);
  const first = count - shown.length + 1;
  const heights = [0.3, 0.35, 0.35].map((part) => part * (height - FOOT - 3 * HEAD));
  const plot = {
    g,
    first,
    shown,
    width: width - LEFT - RIGHT,
    ...colors,
    // the x coordinate of the middle of a step
    at: (i) => LEFT + ((i + 0.5) * (width - LEFT - RIGHT)) / WINDOW,
  };
  let top = HEAD;
  panel(plot, top, heights[0], "Input", series(shown, "x", names));
  top += heights[0] + HEAD;
  const output = series(shown, "y", []);
  if (shown[0]?.goal !== undefined) {
    output[0].name = "model";
    output.push({ name: "target: sum of the marked values so far", values: shown.map((r) => r.goal), dashed: true });
  }
  panel(plot, top, heights[1], "Output", output);
  top += heights[1] + HEAD;
  const shares = { name: "", values: shown.map((row) => 100 * row.share), bars: true };
  panel(plot, top, heights[2], "Updates, %", [shares], 0);
  axis(plot, top + heights[2]);
}

/** Returns one series per channel of rows[…][key]. */
function series(rows, key, names) {
  const channels = rows[0]?.[key].length ?? 0;
  return Array.from({ length: channels }, (_, c) => {
    const values = rows.map((row) => row[key][c]);
    const events = channels > 1 && values.every((v) => v === 0 || v === 1);
    return { name: names[c] ?? `${key}${c}`, values, events };
  });
}

function panel(plot, top, height, title, all, floor) {
  const { g } = plot;
  g.textBaseline = "alphabetic";
  g.textAlign = "left";
  g.fillStyle = plot.text;
  g.font = "600 13px system-ui, sans-serif";
  g.fillText(title, LEFT, top - 10);
  const titled = g.measureText(title).width;
  g.font = "13px system-ui, sans-serif";
  boundaries(plot, top, height);
  if (all.length === 0) return;
  let x = LEFT + titled + 24;
  if (all.length > LINES) {
    picture(plot, top, height, all, x);
    return;
  }
  const { low, high } = extremes(all);
  const range = nice(Math.min(floor ?? Infinity, low), high);
  const y = (v) => top + height * (1 - (v - range.low) / (range.high - range.low));
  grid(plot, range, y);
  all.forEach((s, i) => {
    g.strokeStyle = g.fillStyle = s.bars ? plot.palette[2] : s.dashed ? plot.muted : plot.palette[i];
    if (s.bars) bars(plot, s.values, y, top + height);
    else if (s.events) events(plot, s.values, y, top + height);
    else trace(plot, s, y);
    if (s.name) x = legend(plot, s, x, top - 10);
  });
}

/** Returns the smallest and the largest value; a call with many values as arguments could exceed a limit. */
function extremes(all) {
  let [low, high] = [Infinity, -Infinity];
  for (const { values } of all) {
    for (const value of values) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  return { low, high };
}

/** Draws a line that starts again with each sequence. */
function trace({ g, at, shown }, { values, dashed }, y) {
  g.lineWidth = dashed ? 1.5 : 2;
  g.setLineDash(dashed ? [5, 4] : []);
  g.beginPath();
  values.forEach((v, i) => {
    if (shown[i].begins) g.moveTo(at(i), y(v));
    else g.lineTo(at(i), y(v));
  });
  g.stroke();
  g.setLineDash([]);
}

function bars({ g, at }, values, y, bottom) {
  const width = Math.max(1.5, (at(1) - at(0)) * 0.75);
  values.forEach((v, i) => g.fillRect(at(i) - width / 2, y(v), width, bottom - y(v)));
}

/** Draws a pin at each step where the channel is 1. */
function events({ g, at }, values, y, bottom) {
  g.lineWidth = 2;
  values.forEach((v, i) => {
    if (v !== 1) return;
    g.beginPath();
    g.moveTo(at(i), bottom);
    g.lineTo(at(i), y(1));
    g.stroke();
    g.beginPath();
    g.arc(at(i), y(1), 4, 0, 2 * Math.PI);
    g.fill();
  });
}

/** Draws a heat map with a row per channel; larger values are more opaque. */
function picture({ g, at, palette, muted }, top, height, all, x) {
  const { low, high } = extremes(all);
  const row = height / all.length;
  const width = at(1) - at(0);
  g.fillStyle = palette[0];
  all.forEach((s, c) =>
    s.values.forEach((v, i) => {
      g.globalAlpha = (v - low) / (high - low || 1);
      // cells overlap a little to hide seams
      g.fillRect(at(i) - width / 2, top + c * row, width + 0.5, row + 0.5);
    }),
  );
  g.globalAlpha = 1;
  g.fillStyle = muted;
  g.fillText(`${all.length} channels, from ${short(low)} (faint) to ${short(high)} (strong)`, x, top - 10);
  g.textAlign = "right";
  g.textBaseline = "middle";
  g.fillText(all[0].name, LEFT - 9, top + row / 2);
  g.fillText(all.at(-1).name, LEFT - 9, top + height - row / 2);
}

function legend({ g, muted }, { name, dashed, events: pins }, x, baseline) {
  g.lineWidth = dashed ? 1.5 : 2;
  g.setLineDash(dashed ? [5, 4] : []);
  g.beginPath();
  if (pins) {
    g.arc(x + 9, baseline - 4, 4, 0, 2 * Math.PI);
    g.fill();
  } else {
    g.moveTo(x, baseline - 4.5);
    g.lineTo(x + 18, baseline - 4.5);
    g.stroke();
  }
  g.setLineDash([]);
  g.fillStyle = muted;
  g.textAlign = "left";
  g.fillText(name, x + 24, baseline);
  return x + 24 + g.measureText(name).width + 20;
}

function grid({ g, width, line, muted }, { low, high, tick }, y) {
  g.strokeStyle = line;
  g.fillStyle = muted;
  g.lineWidth = 1;
  g.textAlign = "right";
  g.textBaseline = "middle";
  // multiples of the tick, as adding ticks up would miss zero by a rounding error
  for (let i = Math.round(low / tick); i <= Math.round(high / tick); i++) {
    const v = i * tick;
    g.beginPath();
    g.moveTo(LEFT, Math.round(y(v)) + 0.5);
    g.lineTo(LEFT + width, Math.round(y(v)) + 0.5);
    g.stroke();
    g.fillText(short(v), LEFT - 9, y(v));
  }
  g.textBaseline = "alphabetic";
}

/** Draws a vertical line where each sequence begins. */
function boundaries({ g, at, shown, line }, top, height) {
  g.fillStyle = line;
  shown.forEach((row, i) => row.begins && g.fillRect((at(i) + at(i - 1)) / 2 - 0.5, top, 1.5, height));
}

function axis({ g, at, first, shown, width, muted }, bottom) {
  g.fillStyle = muted;
  g.textAlign = "center";
  shown.forEach((_, i) => {
    const step = first + i;
    if (step % 50 === 0) g.fillText(step.toLocaleString("en"), at(i), bottom + 18);
  });
  g.fillText("step", LEFT + width / 2, bottom + 36);
}

const short = (v) => String(Number(v.toPrecision(3)));

/** Returns round limits around a range, and the distance between its three to six ticks. */
function nice(low, high) {
  const span = high - low || Math.abs(high) || 1;
  const power = 10 ** Math.floor(Math.log10(span / 3));
  const tick = [1, 2, 5, 10].map((n) => n * power).find((t) => span / t <= 5);
  const bottom = Math.floor(low / tick);
  return { low: bottom * tick, high: Math.max(Math.ceil(high / tick), bottom + 1) * tick, tick };
}
