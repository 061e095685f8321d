// Durations and times as texts.

/** A duration in milliseconds, such as `250 ms`, `1.4 s`, `3m 20s`. */
export function span(milliseconds) {
  const seconds = milliseconds / 1000;
  if (milliseconds < 1000) return `${Math.round(milliseconds)} ms`;
  if (seconds < 10) return `${Number(seconds.toFixed(1))} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172_800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86_400)} d`;
}

/** How long ago a time was. */
export function ago(at, now) {
  if (!at || Number.isNaN(at)) return "";
  return now - at < 1500 ? "now" : `${span(now - at)} ago`;
}

/** A time of day; with the date if it is not of today. */
export function time(at) {
  if (!at || Number.isNaN(at)) return "";
  const date = new Date(at);
  const day = date.toDateString() === new Date().toDateString() ? "" : `${date.toLocaleDateString("sv-SE")} `;
  return day + date.toLocaleTimeString("sv-SE");
}

/** A number with its noun. */
export function many(count, one, several = `${one}s`) {
  return `${count.toLocaleString("en-US")} ${count === 1 ? one : several}`;
}
