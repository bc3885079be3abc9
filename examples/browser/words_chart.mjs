// SPDX-License-Identifier: Apache-2.0
// Draws the last seconds of audio: the features with the detected words above them, and the share of updates.

import { openCanvas } from "./chart.mjs";

export const SHOWN_SECONDS = 10;
const NARROW = 450; // width of a chart that shows half of them
const LEFT = 44;
const RIGHT = 14;
const HEAD = 34; // space for the title above each panel
const FOOT = 42; // space for the axis below the last panel
const LABEL = 22; // height of the row with words

/**
 * Draws the last steps of `rows`, each {features, share, word}, with the latest at the right edge.
 * count: The number of the latest step. seconds: The duration of a step.
 */
export function drawWords(canvas, rows, count, seconds) {
  const { g, width, height, colors } = openCanvas(canvas);

  const wide = width - LEFT - RIGHT;
  const shownSeconds = wide < NARROW ? SHOWN_SECONDS / 2 : SHOWN_SECONDS;
  const steps = seconds > 0 ? Math.round(shownSeconds / seconds) : 1;
  const shown = rows.slice(-steps);
  const plot = {
    g,
    shown,
    seconds,
    wide,
    ...colors,
    // the x coordinate of the left edge of a shown step
    at: (i) => LEFT + ((steps - shown.length + i) * wide) / steps,
    first: count - shown.length,
  };
  const heights = [0.62, 0.38].map((part) => part * (height - FOOT - 2 * HEAD - LABEL));
  title(plot, HEAD, "Features");
  spectrogram(plot, HEAD + LABEL, heights[0]);
  labels(plot, HEAD, LABEL + heights[0]);
  const top = 2 * HEAD + LABEL + heights[0];
  title(plot, top, "Updates, %");
  shares(plot, top, heights[1]);
  axis(plot, top + heights[1]);
}

function title({ g, text }, top, words) {
  g.fillStyle = text;
  g.font = "600 13px system-ui, sans-serif";
  g.textAlign = "left";
  g.textBaseline = "alphabetic";
  g.fillText(words, LEFT, top - 10);
  g.font = "13px system-ui, sans-serif";
}

/** Draws a pixel for each step and band, low frequencies at the bottom; larger features are more opaque. */
function spectrogram({ g, shown, wide, at, palette, line }, top, height) {
  g.strokeStyle = line;
  g.lineWidth = 1;
  g.strokeRect(LEFT - 0.5, top - 0.5, wide + 1, height + 1);
  if (shown.length === 0) return;
  const bands = shown[0].features.length;
  let low = Infinity;
  let high = -Infinity;
  for (const { features } of shown) {
    for (const value of features) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  const pixels = new ImageData(shown.length, bands);
  const [red, green, blue] = [1, 3, 5].map((i) => Number.parseInt(palette[0].slice(i, i + 2), 16));
  shown.forEach(({ features }, i) => {
    for (let b = 0; b < bands; b++) {
      // squared, as noise lies between silence and speech
      const opacity = ((features[b] - low) / (high - low || 1)) ** 2;
      pixels.data.set([red, green, blue, 255 * opacity], 4 * ((bands - 1 - b) * shown.length + i));
    }
  });
  const image = new OffscreenCanvas(shown.length, bands);
  image.getContext("2d").putImageData(pixels, 0, 0);
  g.imageSmoothingEnabled = false;
  g.drawImage(image, at(0), top, at(shown.length) - at(0), height);
}

/** Draws a line at each detection, and the word before it, above the features. */
function labels({ g, shown, at, palette }, top, height) {
  g.fillStyle = palette[1];
  g.font = "600 14px system-ui, sans-serif";
  g.textBaseline = "middle";
  let free = LEFT; // where the last word ends
  shown.forEach(({ word }, i) => {
    if (word === undefined) return;
    const x = at(i + 1);
    g.fillRect(x - 1, top + 2, 1.5, height - 2);
    const width = g.measureText(word.word).width;
    // the word was spoken before it is detected
    const start = Math.max(x - 6 - width, free);
    if (start + width <= x - 2) g.fillText(word.word, start, top + LABEL / 2);
    free = x + 4;
  });
  g.font = "13px system-ui, sans-serif";
}

function shares({ g, shown, at, wide, palette, muted, line }, top, height) {
  g.textAlign = "right";
  g.textBaseline = "middle";
  for (const percent of [0, 50, 100]) {
    const y = top + height * (1 - percent / 100);
    g.fillStyle = line;
    g.fillRect(LEFT, Math.round(y), wide, 1);
    g.fillStyle = muted;
    g.fillText(`${percent}`, LEFT - 8, y);
  }
  g.fillStyle = palette[2];
  shown.forEach(({ share }, i) => {
    const left = Math.floor(at(i));
    g.fillRect(left, top + height * (1 - share), Math.ceil(at(i + 1)) - left, height * share);
  });
}

/** Draws a tick at each second since the start. */
function axis({ g, shown, at, first, seconds, wide, muted }, bottom) {
  g.fillStyle = muted;
  g.textAlign = "center";
  g.textBaseline = "alphabetic";
  for (let i = 0; seconds > 0 && i < shown.length; i++) {
    const second = Math.round((first + i) * seconds);
    const ends = Math.floor((first + i) * seconds) !== Math.floor((first + i - 1) * seconds);
    if (!ends) continue;
    g.fillRect(at(i), bottom, 1, 5);
    g.fillText(`${second}`, at(i), bottom + 18);
  }
  g.fillText("seconds", LEFT + wide / 2, bottom + 35);
}
