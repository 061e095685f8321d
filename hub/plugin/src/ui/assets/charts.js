// Pictures as SVG: the waves of a rollout, and the delivery times of edits.
import { s } from "./dom.js";
import { many, span, time } from "./words.js";

const MARKS = {
  applied: "✓",
  progressing: "▸",
  failed: "✕",
  unreachable: "?",
  waiting: "",
  reverted: "↺",
};
export const ROLLOUT_WORDS = {
  applied: "has the change",
  progressing: "under way",
  failed: "failed",
  unreachable: "unreachable",
  waiting: "waits for its wave",
  reverted: "rolled back",
};
const SIDE = 16;
const GAP = 4;
const ACROSS = 10;
/** A wave with more clusters is a bar with counts. */
const SQUARES = 60;
const WIDTH = 960;

function countsOf(clusters) {
  const counts = {};
  for (const { state } of clusters) counts[state] = (counts[state] ?? 0) + 1;
  return counts;
}

function describe(wave) {
  const counts = Object.entries(countsOf(wave.clusters)).map(([state, count]) => `${count} ${ROLLOUT_WORDS[state]}`);
  const where = wave.current ? ", the current wave" : "";
  return `${nameOf(wave)}${where}: ${counts.join(", ")}`;
}

/** The name of a wave. Labels that changed since can make more waves than there were. */
function nameOf(wave) {
  return wave.number < 1 ? "Earlier wave" : `Wave ${wave.number}`;
}

function squares(wave, x, y) {
  return wave.clusters.map(({ name, state }, index) => {
    const [left, top] = [x + (index % ACROSS) * (SIDE + GAP), y + Math.floor(index / ACROSS) * (SIDE + GAP)];
    return s(
      "g",
      { class: `turn ${state}` },
      s("title", {}, `${name}: ${ROLLOUT_WORDS[state]}`),
      s("rect", { x: left + 0.5, y: top + 0.5, width: SIDE - 1, height: SIDE - 1, rx: 3 }),
      s("text", { x: left + SIDE / 2, y: top + SIDE / 2 + 4, "text-anchor": "middle" }, MARKS[state]),
    );
  });
}

function bar(wave, x, y, width) {
  let left = x;
  const parts = [];
  for (const [state, count] of Object.entries(countsOf(wave.clusters))) {
    const part = (width * count) / wave.clusters.length;
    parts.push(
      s(
        "g",
        { class: `turn ${state}` },
        s("title", {}, `${count} ${ROLLOUT_WORDS[state]}`),
        s("rect", { x: left + 0.5, y: y + 0.5, width: Math.max(1, part - 1), height: SIDE - 1, rx: 3 }),
        part > 34 && s("text", { x: left + part / 2, y: y + SIDE / 2 + 4, "text-anchor": "middle" }, `${MARKS[state]} ${count}`),
      ),
    );
    left += part;
  }
  return parts;
}

/** Draws the waves of a rollout. */
export function rolloutChart(picture, now) {
  const [boxes, lines] = [[], []];
  let [x, y, height] = [0, 0, 0];
  for (const wave of picture.waves) {
    const isBar = wave.clusters.length > SQUARES;
    const across = Math.min(ACROSS, wave.clusters.length);
    const inner = isBar ? 200 : across * (SIDE + GAP) - GAP;
    const width = Math.max(inner, 96) + 24;
    const rows = isBar ? 1 : Math.ceil(wave.clusters.length / ACROSS);
    const own = 50 + rows * (SIDE + GAP) + 14;
    if (x > 0 && x + width > WIDTH) {
      lines.push({ y, height });
      [x, y, height] = [0, y + height + 12, 0];
    }
    boxes.push({ wave, x, y, width, isBar, height: own, line: lines.length });
    height = Math.max(height, own);
    x += width + 12;
  }
  lines.push({ y, height });
  const drawn = boxes.map(({ wave, x: left, y: top, width, isBar, line }) => {
    const tall = lines[line].height;
    const { soak } = picture;
    const soaking = wave.current && soak.since !== undefined && soak.seconds > 0;
    const done = soaking ? Math.min(1, Math.max(0, (now - soak.since) / (soak.seconds * 1000))) : 0;
    const label = picture.label?.split("/").at(-1);
    const value = label ? (wave.value === undefined ? `no ${label}` : `${label}=${wave.value}`) : many(wave.clusters.length, "cluster");
    return s(
      "g",
      { class: wave.current ? "wave current" : "wave" },
      s("title", {}, describe(wave)),
      s("rect", { class: "box", x: left + 0.5, y: top + 0.5, width: width - 1, height: tall - 1, rx: 6 }),
      s("text", { class: "name", x: left + 12, y: top + 20 }, nameOf(wave)),
      s("text", { class: "value", x: left + 12, y: top + 36 }, value.length > 18 ? `${value.slice(0, 17)}…` : value),
      isBar ? bar(wave, left + 12, top + 46, width - 24) : squares(wave, left + 12, top + 46),
      soaking && s("rect", { class: "track", x: left + 12, y: top + tall - 11, width: width - 24, height: 4, rx: 2 }),
      soaking && s("rect", { class: "soaked", x: left + 12, y: top + tall - 11, width: (width - 24) * done, height: 4, rx: 2 }),
    );
  });
  const bottom = lines.at(-1);
  const label = picture.waves.map(describe).join(". ");
  return s(
    "svg",
    { class: "rollout", viewBox: `0 0 ${WIDTH} ${bottom.y + bottom.height}`, role: "img", "aria-label": label },
    drawn,
  );
}

/** Draws the failure budget: one mark for each failure that is allowed, and those that are used. */
export function budgetChart({ max, failed }) {
  const shown = Math.min(24, Math.max(max, failed));
  const marks = Array.from({ length: shown }, (_, index) => {
    const used = index < failed;
    const state = used ? (index < max ? "used" : "beyond") : "free";
    return s(
      "g",
      { class: `pip ${state}` },
      s("rect", { x: index * 18 + 0.5, y: 0.5, width: 13, height: 13, rx: 3 }),
      used && s("text", { x: index * 18 + 7, y: 11, "text-anchor": "middle" }, "✕"),
    );
  });
  return s(
    "svg",
    { class: "budget", width: Math.max(1, shown * 18), height: 14, role: "img", "aria-label": `${failed} of ${max} allowed failures` },
    marks,
  );
}

const PLOT = { width: 960, height: 200, left: 64, right: 16, top: 12, bottom: 28 };
/** Edits below this many milliseconds cannot be measured. */
export const QUICK = 250;
const STEPS = [QUICK, 1000, 10_000, 60_000, 600_000, 3_600_000];

/** Draws the delivery times of edits, the newest on the right. */
export function deliveryChart(edits, now) {
  const { width, height, left, right, top, bottom } = PLOT;
  const shown = edits.slice(-200);
  const slowest = Math.max(1000, ...shown.map(({ took }) => took ?? 0));
  const steps = STEPS.filter((step, index) => index < 2 || STEPS[index - 1] < slowest);
  const [low, high] = [Math.log(QUICK / 1.6), Math.log(steps.at(-1) * 1.1)];
  const from = Math.min(now - 60_000, ...shown.map(({ endedAt }) => endedAt));
  const px = (at) => left + ((at - from) / (now - from)) * (width - left - right);
  const py = (took) => top + (1 - (Math.log(Math.max(took, QUICK / 1.4)) - low) / (high - low)) * (height - top - bottom);
  const measured = shown.map(({ took }) => took).filter((took) => took !== null);
  const label = `${shown.length} edits, ${measured.length} of them measured${measured.length ? `, the slowest ${span(slowest)}` : ""}`;
  return s(
    "svg",
    { class: "plot", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    steps.map((step) => [
      s("line", { class: "rule", x1: left, x2: width - right, y1: py(step), y2: py(step) }),
      s("text", { x: left - 10, y: py(step) + 4, "text-anchor": "end" }, span(step)),
    ]),
    s("text", { x: left, y: height - 8 }, time(from)),
    s("text", { x: width - right, y: height - 8, "text-anchor": "end" }, time(now)),
    shown.map(({ endedAt, took }) => {
      const [x, y] = [px(endedAt), py(took ?? 0)];
      const text = took === null ? `quicker than ${span(QUICK)}` : span(took);
      const mark =
        took === null
          ? s("path", { class: "quick", d: `M${x - 4} ${y - 3}h8l-4 7z` })
          : s("circle", { class: "edit", cx: x, cy: y, r: 4 });
      mark.append(s("title", {}, `${time(endedAt)}: ${text}`));
      return mark;
    }),
  );
}
