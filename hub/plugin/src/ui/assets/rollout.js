// The waves of a rollout, worked out from the rule, the labels of its clusters and the state of its deliveries.
import { isOlder, natural, stateOf } from "./model.js";

/** The number of clusters that may be in progress at a time. */
function room(concurrency, clusters) {
  const text = String(concurrency ?? "25%");
  const number = Number.parseInt(text, 10) || 1;
  return Math.max(1, text.endsWith("%") ? Math.ceil((number * clusters) / 100) : number);
}

/** Divides clusters into waves: one value each, and at most `size` that are connected. */
function waves(clusters, size) {
  const all = [];
  for (const cluster of clusters) {
    const last = all.at(-1);
    const fits = last && last.value === cluster.value && (cluster.state === "unreachable" || last.slots < size);
    if (!fits) all.push({ value: cluster.value, clusters: [], slots: 0 });
    const wave = all.at(-1);
    wave.clusters.push(cluster);
    wave.slots += cluster.state === "unreachable" ? 0 : 1;
  }
  return all;
}

function stateIn(cluster, reached) {
  const { letter } = stateOf(cluster.code);
  if (letter === "U") return "unreachable";
  if (cluster.reason === "Reverted") return "reverted";
  if (letter === "F" && reached) return "failed";
  if (!reached) return "waiting";
  return isOlder(cluster.code) ? "progressing" : "applied";
}

/** Returns the picture of a rollout; undefined if the rule has none. */
export function picture(model, key) {
  const rule = model.rule(key);
  const status = rule?.status?.rollout;
  const spec = rule?.spec?.rollout;
  if (!status) return undefined;
  const label = status.orderedBy;
  const turn = (name) => ({ name, value: label ? model.labels(name)[label] : undefined });
  const compare = (a, b) => {
    if (a.value !== b.value) {
      if (a.value === undefined) return 1;
      if (b.value === undefined) return -1;
      return natural(a.value, b.value);
    }
    return natural(a.name, b.name);
  };
  const upTo = status.reachedUpTo && { name: status.reachedUpTo.cluster, value: status.reachedUpTo.value };
  const completed = status.phase === "Completed";
  const ordered = model
    .clustersOf(key)
    .map((cluster) => ({ ...turn(cluster.name), code: cluster.code, reason: cluster.reason }))
    .sort(compare)
    .map((cluster) => {
      const reached = completed || Boolean(upTo && compare(cluster, upTo) <= 0);
      return { ...cluster, reached, state: stateIn(cluster, reached) };
    });
  const size = room(spec?.maxConcurrency, ordered.length);
  const before = waves(ordered.filter(({ reached }) => reached), size);
  const after = waves(ordered.filter(({ reached }) => !reached), size);
  const current = status.wave || before.length;
  before.forEach((wave, index) => {
    wave.number = current - (before.length - 1 - index);
    wave.current = index === before.length - 1 && !completed;
  });
  after.forEach((wave, index) => {
    wave.number = current + 1 + index;
  });
  return {
    phase: status.phase,
    status,
    waves: [...before, ...after],
    label,
    size,
    soak: {
      seconds: spec?.soakSeconds ?? 0,
      since: status.phase === "Soaking" && status.appliedAt ? Date.parse(status.appliedAt) : undefined,
    },
    budget: { max: spec?.maxFailures ?? 0, failed: status.clustersFailed ?? 0, most: status.clustersFailedMax ?? 0 },
    onFailure: spec?.onFailure ?? "Stop",
  };
}
