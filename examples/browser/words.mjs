// SPDX-License-Identifier: Apache-2.0
// Detects spoken words in the sound of the microphone or of a file, with a packed model that reads audio, and shows the
// features, the words and the share of updates at each step.
//
// Parameters of the address: ?speed=max reads a file at maximum speed, without playing it.

import { element } from "./sound_page.mjs";
import { startWordPage } from "./word_source.mjs";
import { drawWords, SHOWN_SECONDS } from "./words_chart.mjs";

function draw(listening) {
  const seconds = listening?.seconds ?? 0;
  drawWords(element("chart"), listening?.rows ?? [], listening?.count ?? 0, seconds);
  if (!listening?.count) return;
  const heard = listening.count * seconds;
  const last = listening.rows.slice(-Math.round(SHOWN_SECONDS / seconds));
  const share = last.reduce((sum, row) => sum + row.share, 0) / last.length;
  element("heard").textContent = `${heard.toFixed(1)} s, ${listening.words} words`;
  element("updated").textContent = `${(100 * share).toFixed(1)} %`;
  element("time").textContent = `${((0.1 * listening.milliseconds) / heard).toPrecision(2)} %`;
}

startWordPage({ figures: ["heard", "updated", "time"], keptSeconds: SHOWN_SECONDS, draw });
