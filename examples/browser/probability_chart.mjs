// SPDX-License-Identifier: Apache-2.0
// Draws a probability over time.

export const SHOWN_SECONDS = 10;

/**
 * Draws the last SHOWN_SECONDS of steps, {seconds, probability}, with a threshold and parts, {begin, end} in seconds.
 */
export function drawProbability(canvas, steps, parts, threshold) {
  const ratio = window.devicePixelRatio;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  Object.assign(canvas, { width: width * ratio, height: height * ratio });
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const style = getComputedStyle(canvas);
  const [line, muted] = ["--line", "--muted"].map((name) => style.getPropertyValue(name));
  const series = style.getPropertyValue("--series").trim().split(" ");
  const end = Math.max(SHOWN_SECONDS, steps.at(-1)?.seconds ?? 0);
  const x = (seconds) => 40 + ((width - 56) * (seconds - end + SHOWN_SECONDS)) / SHOWN_SECONDS;
  const y = (probability) => 16 + (height - 48) * (1 - probability);
  context.fillStyle = series[2];
  context.globalAlpha = 0.18;
  for (const part of parts) {
    const left = Math.max(x(part.begin), 40);
    if (x(part.end) > left) context.fillRect(left, y(1), x(part.end) - left, y(0) - y(1));
  }
  context.globalAlpha = 1;
  context.font = "12px system-ui, sans-serif";
  context.fillStyle = muted;
  context.strokeStyle = line;
  context.textAlign = "right";
  const horizontal = (probability) => {
    context.beginPath();
    context.moveTo(40, y(probability));
    context.lineTo(width - 16, y(probability));
    context.stroke();
  };
  for (const probability of [0, 0.5, 1]) {
    context.fillText(String(probability), 34, y(probability) + 4);
    horizontal(probability);
  }
  context.textAlign = "center";
  for (let seconds = Math.ceil(end - SHOWN_SECONDS); seconds <= end; seconds += 2) {
    context.fillText(`${seconds} s`, x(seconds), height - 10);
  }
  context.strokeStyle = series[1];
  context.setLineDash([4, 4]);
  horizontal(threshold);
  context.setLineDash([]);
  context.strokeStyle = series[0];
  context.lineWidth = 2;
  context.beginPath();
  for (const step of steps) if (x(step.seconds) >= 40) context.lineTo(x(step.seconds), y(step.probability));
  context.stroke();
}
