// The state of the page: what the stream sends, and what follows from it. No access to the document.

/** The states of a delivery, the worst first. The glyph tells them apart without colors. */
export const STATES = [
  { letter: "F", name: "Failed", glyph: "✕" },
  { letter: "D", name: "Drifted", glyph: "≠" },
  { letter: "U", name: "Unreachable", glyph: "?" },
  { letter: "W", name: "Waiting", glyph: "‖" },
  { letter: "P", name: "Progressing", glyph: "▸" },
  { letter: "Y", name: "DryRun", glyph: "○" },
  { letter: "R", name: "Ready", glyph: "·" },
];
export const NONE = 0;
export const READY = STATES.length;
/** Codes above this one are the same states without the newest revision. */
export const OLDER = STATES.length;
const CODES = 2 * STATES.length + 1;

export function isOlder(code) {
  return code > OLDER;
}

/** Whether the old revision is worth showing. Failed and unreachable clusters never have the newest one. */
export function showsOlder(code) {
  return isOlder(code) && !"FU".includes(stateOf(code).letter);
}

export function stateOf(code) {
  return code === NONE ? undefined : STATES[(code - 1) % STATES.length];
}

export function codeOf(text) {
  const letter = text.charAt(0);
  const index = STATES.findIndex((state) => state.letter === letter.toUpperCase());
  if (index < 0) return NONE;
  return index + 1 + (letter === letter.toLowerCase() ? OLDER : 0);
}

/** The words of a cell, such as `Ready, older revision`. */
export function wordsOf(code, reason) {
  const state = stateOf(code);
  if (!state) return "not sent here";
  const older = showsOlder(code) ? ", older revision" : "";
  return state.name + older + (reason ? `: ${reason}` : "");
}

/** Compares texts so that `2` comes before `10`. */
export function natural(one, other) {
  const parts = (text) => text.match(/\d+|\D/g) ?? [];
  const left = parts(one);
  const right = parts(other);
  for (let at = 0; at < Math.min(left.length, right.length); at += 1) {
    const [a, b] = [left[at], right[at]];
    if (/^\d/.test(a) && /^\d/.test(b)) {
      const [x, y] = [a.replace(/^0+/, ""), b.replace(/^0+/, "")];
      if (x.length !== y.length) return x.length - y.length;
      if (x !== y) return x < y ? -1 : 1;
    } else if (a !== b) {
      return a < b ? -1 : 1;
    }
  }
  if (left.length !== right.length) return left.length - right.length;
  return one < other ? -1 : Number(one > other);
}

/** Counts by code, which add up over groups. */
class Counts {
  constructor() {
    this.of = new Uint32Array(CODES);
  }

  add(other) {
    for (let code = 1; code < CODES; code += 1) this.of[code] += other.of[code];
  }

  /** The number of deliveries in a state, with any revision. */
  state(index) {
    return this.of[index + 1] + this.of[index + 1 + OLDER];
  }

  /** The number of deliveries without the newest revision. */
  older() {
    let sum = 0;
    for (let code = OLDER + 1; code < CODES; code += 1) sum += this.of[code];
    return sum;
  }

  total() {
    let sum = 0;
    for (let code = 1; code < CODES; code += 1) sum += this.of[code];
    return sum;
  }
}

/** Compares so that more of the worse states comes first. */
export function worseFirst(one, other) {
  for (let index = 0; index < STATES.length - 1; index += 1) {
    const difference = other.state(index) - one.state(index);
    if (difference !== 0) return difference;
  }
  return other.older() - one.older();
}

const OBJECTS = ["rules", "clusterrules", "members", "fleets", "leases", "events"];

function keyOf(object) {
  const { namespace, name } = object.metadata;
  return namespace ? `${namespace}/${name}` : name;
}

export class Model {
  constructor() {
    this.reset();
  }

  /** Forgets everything: a snapshot follows. */
  reset() {
    this.about = undefined;
    this.ready = false;
    this.sources = new Map();
    for (const name of OBJECTS) this[name] = new Map();
    this.clusterIds = new Map();
    this.clusterNames = [];
    this.clusterCounts = [];
    /** By rule: the codes by the number of the cluster, the reasons, and the counts. */
    this.rows = new Map();
    this.edits = [];
    this.structure = 0;
    this.version = 0;
  }

  /** Takes one update in. Returns the pairs of rule and cluster whose delivery changed. */
  apply(update) {
    this.version += 1;
    switch (update.type) {
      case "about":
        this.reset();
        this.about = update;
        return [];
      case "source":
        this.sources.set(update.resource, update);
        return [];
      case "objects": {
        const known = this[update.resource];
        for (const object of update.put) known.set(keyOf(object), object);
        for (const key of update.deleted) known.delete(key);
        this.structure += 1;
        return [];
      }
      case "cells":
        return this.applyCells(update.put);
      case "edits":
        this.edits.push(...update.put);
        if (this.edits.length > 5000) this.edits.splice(0, this.edits.length - 5000);
        return [];
      case "ready":
        this.ready = true;
        return [];
      default:
        return [];
    }
  }

  applyCells(put) {
    const changed = [];
    for (const [rule, clusters] of Object.entries(put)) {
      let row = this.rows.get(rule);
      if (!row) {
        row = { codes: new Uint8Array(Math.max(16, this.clusterNames.length)), reasons: new Map(), counts: new Counts() };
        this.rows.set(rule, row);
        this.structure += 1;
      }
      for (const [cluster, text] of Object.entries(clusters)) {
        const id = this.clusterId(cluster);
        if (id >= row.codes.length) {
          const larger = new Uint8Array(Math.max(2 * row.codes.length, id + 1));
          larger.set(row.codes);
          row.codes = larger;
        }
        const before = row.codes[id];
        const code = codeOf(text);
        if (before !== code) {
          if ((before === NONE) !== (code === NONE)) this.structure += 1;
          if (before !== NONE) {
            row.counts.of[before] -= 1;
            this.clusterCounts[id].of[before] -= 1;
          }
          if (code !== NONE) {
            row.counts.of[code] += 1;
            this.clusterCounts[id].of[code] += 1;
          }
          row.codes[id] = code;
        }
        const reason = text.slice(1);
        if (reason && reason !== "AllApplied") row.reasons.set(id, reason);
        else row.reasons.delete(id);
        changed.push([rule, cluster]);
      }
      if (row.counts.total() === 0) this.rows.delete(rule);
    }
    return changed;
  }

  clusterId(name) {
    let id = this.clusterIds.get(name);
    if (id === undefined) {
      id = this.clusterNames.length;
      this.clusterIds.set(name, id);
      this.clusterNames.push(name);
      this.clusterCounts.push(new Counts());
      this.structure += 1;
    }
    return id;
  }

  code(rule, cluster) {
    const id = this.clusterIds.get(cluster);
    return id === undefined ? NONE : (this.rows.get(rule)?.codes[id] ?? NONE);
  }

  reason(rule, cluster) {
    return this.rows.get(rule)?.reasons.get(this.clusterIds.get(cluster)) ?? "";
  }

  rule(key) {
    return this.rules.get(key) ?? this.clusterrules.get(key);
  }

  /** The keys of all rules, also of those without deliveries. */
  ruleKeys() {
    return [...new Set([...this.rules.keys(), ...this.clusterrules.keys(), ...this.rows.keys()])];
  }

  /** The names of all clusters, also of those without deliveries. */
  clusters() {
    const named = this.clusterNames.filter((_, id) => this.clusterCounts[id].total() > 0);
    return [...new Set([...this.members.keys(), ...named])];
  }

  countsOfRule(key) {
    return this.rows.get(key)?.counts ?? new Counts();
  }

  countsOfCluster(name) {
    return this.clusterCounts[this.clusterIds.get(name)] ?? new Counts();
  }

  labels(cluster) {
    return this.members.get(cluster)?.metadata.labels ?? {};
  }

  /** The labels by which clusters can be grouped: those with several values first, then the most frequent. */
  groupLabels() {
    const values = new Map();
    for (const member of this.members.values()) {
      for (const [label, value] of Object.entries(member.metadata.labels ?? {})) {
        if (!values.has(label)) values.set(label, new Map());
        const of = values.get(label);
        of.set(value, (of.get(value) ?? 0) + 1);
      }
    }
    const all = [...values].map(([label, of]) => ({ label, clusters: [...of.values()].reduce((a, b) => a + b), values: of.size }));
    return all
      .filter(({ values: number, clusters }) => number < clusters || clusters < 3)
      .sort((a, b) => Number(b.values > 1) - Number(a.values > 1) || b.clusters - a.clusters || natural(a.label, b.label));
  }

  condition(object, type) {
    return object?.status?.conditions?.find((condition) => condition.type === type);
  }

  /** The clusters to which a rule is sent, with their codes. */
  clustersOf(rule) {
    const row = this.rows.get(rule);
    if (!row) return [];
    const found = [];
    this.clusterNames.forEach((name, id) => {
      const code = row.codes[id] ?? NONE;
      if (code !== NONE) found.push({ name, code, reason: row.reasons.get(id) ?? "" });
    });
    return found.sort((a, b) => worstCode(a.code) - worstCode(b.code) || natural(a.name, b.name));
  }

  /** The rules that are sent to a cluster, with their codes. */
  rulesOf(cluster) {
    const id = this.clusterIds.get(cluster);
    const found = [];
    for (const [key, row] of this.rows) {
      const code = row.codes[id] ?? NONE;
      if (code !== NONE) found.push({ key, code, reason: row.reasons.get(id) ?? "" });
    }
    return found.sort((a, b) => worstCode(a.code) - worstCode(b.code) || natural(a.key, b.key));
  }

  /** The rows and columns of the matrix. */
  arrange({ group, sort, search }) {
    const worst = sort === "worst";
    const filter = new Filter(this, search);
    const rules = this.ruleKeys()
      .filter((key) => filter.hasRule(key))
      .map((key) => ({ key, counts: this.countsOfRule(key) }));
    rules.sort((a, b) => (worst && worseFirst(a.counts, b.counts)) || natural(a.key, b.key));
    const groups = new Map();
    for (const name of this.clusters()) {
      if (!filter.hasCluster(name)) continue;
      const value = group ? (this.labels(name)[group] ?? "") : "";
      if (!groups.has(value)) groups.set(value, { value, clusters: [], counts: new Counts() });
      const counts = this.countsOfCluster(name);
      groups.get(value).clusters.push({ name, counts, id: this.clusterIds.get(name) });
      groups.get(value).counts.add(counts);
    }
    for (const { clusters } of groups.values()) {
      clusters.sort((a, b) => (worst && worseFirst(a.counts, b.counts)) || natural(a.name, b.name));
    }
    const ordered = [...groups.values()].sort(
      (a, b) => (worst && worseFirst(a.counts, b.counts)) || Number(a.value === "") - Number(b.value === "") || natural(a.value, b.value),
    );
    return { rules, groups: ordered, columns: ordered.flatMap(({ clusters }) => clusters) };
  }

  /** Since when the hub is silent, in milliseconds since 1970; undefined while it is not. */
  silentSince(now) {
    const [lease] = this.leases.values();
    const { renewTime, leaseDurationSeconds } = lease?.spec ?? {};
    if (!renewTime) return undefined;
    const renewed = Date.parse(renewTime);
    const ahead = this.about?.clockAheadMs ?? 0;
    const lasts = Math.max(1, leaseDurationSeconds ?? 0) * 1000;
    return now + ahead - renewed > lasts + 1000 ? renewed - ahead : undefined;
  }

  /** The Events about an object, or all, the newest first. */
  history(kind, key) {
    const found = [];
    for (const event of this.events.values()) {
      const { regarding = {}, related = {} } = event;
      const of = (object) => {
        const named = object.namespace ? `${object.namespace}/${object.name}` : object.name;
        return object.kind === kind && named === key;
      };
      if (kind && !of(regarding) && !of(related)) continue;
      found.push({ at: timeOf(event), event });
    }
    return found.sort((a, b) => b.at - a.at || natural(b.event.metadata.name, a.event.metadata.name));
  }

  /** Everything that waits for approval: by cause, and by rule. */
  approvals() {
    const [fleet] = this.fleets.values();
    const causes = fleet?.status?.pendingApprovals ?? [];
    const rules = [];
    for (const [key, rule] of [...this.rules, ...this.clusterrules]) {
      const approval = rule.status?.pendingApproval;
      if (approval) rules.push({ key, approval });
    }
    rules.sort((a, b) => natural(a.key, b.key));
    return { causes, rules };
  }

  sourceError(...resources) {
    return resources.map((resource) => this.sources.get(resource)).find((source) => isMissing(source))?.message;
  }
}

/** Whether a resource is not followed now. */
export function isMissing(source) {
  return source?.state === "failed" || source?.state === "refused";
}

function worstCode(code) {
  // A ready cluster with an older revision is worse than a ready one.
  return ((code - 1) % STATES.length) * 2 + (isOlder(code) ? 0 : 1);
}

/** The time of an Event in milliseconds since 1970. */
export function timeOf(event) {
  return Date.parse(event.series?.lastObservedTime ?? event.eventTime ?? event.metadata.creationTimestamp ?? 0);
}

/** The name of a rule on the command line. */
export function ruleArgument(key) {
  return key.includes("/") ? key : `cdrule/${key}`;
}

/** The words of a search: each one narrows rules, clusters, or both. */
class Filter {
  constructor(model, search) {
    this.rules = undefined;
    this.clusters = undefined;
    const words = (search ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    for (const word of words) this.narrow(model, word);
  }

  narrow(model, word) {
    const index = word.length < 3 ? -1 : STATES.findIndex(({ name }) => name.toLowerCase().startsWith(word));
    const inState = (counts) => (word === "older" ? counts.older() > 0 : counts.state(index) > 0);
    if (index >= 0 || word === "older") {
      this.keep("rules", model.ruleKeys().filter((key) => inState(model.countsOfRule(key))));
      this.keep("clusters", model.clusters().filter((name) => inState(model.countsOfCluster(name))));
      return;
    }
    const labeled = (name) => Object.entries(model.labels(name)).some(([key, value]) => `${key}=${value}`.toLowerCase().includes(word));
    const rules = model.ruleKeys().filter((key) => key.toLowerCase().includes(word));
    const clusters = model.clusters().filter((name) => name.toLowerCase().includes(word) || labeled(name));
    if (rules.length > 0 || clusters.length === 0) this.keep("rules", rules);
    if (clusters.length > 0 || rules.length === 0) this.keep("clusters", clusters);
  }

  keep(part, names) {
    const found = new Set(names);
    this[part] = this[part] ? new Set([...this[part]].filter((name) => found.has(name))) : found;
  }

  hasRule(key) {
    return !this.rules || this.rules.has(key);
  }

  hasCluster(name) {
    return !this.clusters || this.clusters.has(name);
  }
}
