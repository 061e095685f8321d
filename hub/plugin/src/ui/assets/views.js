// The views besides the matrix. Each is a function from the state to elements; nothing here keeps state.
import { budgetChart, deliveryChart, QUICK, ROLLOUT_WORDS, rolloutChart } from "./charts.js";
import { h } from "./dom.js";
import { natural, READY, ruleArgument, showsOlder, STATES, stateOf, timeOf, wordsOf } from "./model.js";
import { picture } from "./rollout.js";
import { ago, many, span, time } from "./words.js";

const LISTED = 200;
const ENTRIES = 200;

export const hrefs = {
  rule: (key) => `#/rule/${encodeURIComponent(key)}`,
  cluster: (name) => `#/cluster/${encodeURIComponent(name)}`,
  delivery: (rule, cluster) => `#/delivery/${encodeURIComponent(rule)}/${encodeURIComponent(cluster)}`,
};

/** A state as a mark with its word. */
export function mark(code, reason) {
  const state = stateOf(code);
  if (!state) return h("span", { class: "state none" }, "not sent");
  const older = showsOlder(code);
  return h(
    "span",
    { class: `state s-${state.letter}${older ? " older" : ""}`, title: wordsOf(code, reason) },
    h("span", { class: "glyph", "aria-hidden": "true" }, state.glyph),
    state.name,
    older && h("small", {}, "older revision"),
  );
}

/** The condition Ready. `calm`: nothing failed, it only takes time or waits for a person. */
function pill(condition, calm) {
  const { status = "Unknown", reason = "no status" } = condition ?? {};
  const glyph = { True: "✓", False: calm ? "‖" : "✕" }[status] ?? "?";
  return h(
    "span",
    { class: `pill p-${status}${calm ? " calm" : ""}` },
    h("span", { "aria-hidden": "true" }, glyph),
    `${status === "True" ? "Ready" : status === "False" ? "Not ready" : "Unknown"}`,
    h("small", {}, reason),
  );
}

function section(title, note, ...content) {
  return h("section", { "data-key": title }, h("h2", {}, title, note && h("small", {}, note)), content);
}

function heading(kind, title, ...more) {
  return h(
    "div",
    { class: "heading" },
    h("p", { class: "path" }, h("a", { href: "#/", class: "back", title: "Back (Esc)" }, "← Matrix"), h("span", {}, kind)),
    h("h1", {}, title),
    h("div", { class: "facts" }, more),
  );
}

function figure(name, value, note) {
  return h("div", { class: "figure" }, h("dt", {}, name), h("dd", {}, value, note && h("small", {}, note)));
}

function quiet(text) {
  return h("p", { class: "quiet" }, text);
}

function table(heads, rows, className = "") {
  return h(
    "div",
    { class: "table" },
    h(
      "table",
      { class: className },
      h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col", class: head.right ? "right" : undefined }, head.name ?? head)))),
      h("tbody", {}, rows),
    ),
  );
}

function right(value) {
  return h("td", { class: "right" }, value);
}

/** All rules as a table: the matrix for people who prefer rows. */
export function rulesTable(model, rules) {
  if (rules.length === 0) return quiet("No rule matches.");
  const heads = ["Rule", "Ready", "Clusters", ...STATES.map(({ name }) => ({ name, right: true })), { name: "Older", right: true }, "Message"];
  const rows = rules.map(({ key, counts }) => {
    const condition = model.condition(model.rule(key), "Ready");
    return h(
      "tr",
      { "data-key": key },
      h("th", { scope: "row" }, h("a", { href: hrefs.rule(key) }, key)),
      h("td", {}, pill(condition, counts.state(0) === 0)),
      h("td", {}, model.rule(key)?.status?.display?.clusters ?? ""),
      STATES.map((_, index) => right(counts.state(index) || "")),
      right(counts.older() || ""),
      h("td", { class: "message", title: condition?.message }, condition?.status === "True" ? "" : (condition?.message ?? "")),
    );
  });
  return table(heads, rows, "rules");
}

function clusterList(model, key) {
  const clusters = model.clustersOf(key);
  if (clusters.length === 0) return quiet("The rule is sent to no cluster.");
  const rows = clusters.slice(0, LISTED).map(({ name, code, reason }) =>
    h(
      "tr",
      { "data-key": name },
      h("th", { scope: "row" }, h("a", { href: hrefs.delivery(key, name) }, name)),
      h("td", {}, mark(code, reason)),
      h("td", {}, reason),
      h("td", {}, h("div", { class: "labels" }, labels(model.labels(name)))),
    ),
  );
  const rest = clusters.length - LISTED;
  return [table(["Cluster", "State", "Reason", "Labels"], rows), rest > 0 && quiet(`${many(rest, "more cluster")}: the matrix shows them.`)];
}

function labels(all) {
  return Object.entries(all)
    .sort(([a], [b]) => natural(a, b))
    .map(([key, value]) => h("span", { class: "label" }, `${key}=${value}`));
}

function approvalBox(approval, command, now, { rules, lead = "To approve exactly this:" } = {}) {
  const names = approval.names ?? [];
  return h(
    "div",
    { class: "approval", "data-key": approval.digest },
    h("h3", {}, approval.cause || "Removal above a limit"),
    h(
      "p",
      {},
      `${many(approval.copies ?? 0, "copy", "copies")}${rules ? ` of ${many(rules, "rule")}` : ""} in ${many(approval.clusters ?? 0, "cluster")} would be removed`,
      approval.since && `, waiting for ${ago(Date.parse(approval.since), now).replace(" ago", "")}`,
      ".",
    ),
    names.length > 0 && h("p", { class: "labels" }, names.map((name) => h("span", { class: "label" }, name))),
    h("p", { class: "command" }, lead, " ", h("code", {}, command)),
  );
}

function historyTable(entries, now, named) {
  if (entries.length === 0) return quiet("No Events. The API server keeps them for an hour, unless it is configured otherwise.");
  const rows = entries.slice(0, ENTRIES).map(({ at, event }) => {
    const { regarding = {}, related = {} } = event;
    const key = regarding.namespace ? `${regarding.namespace}/${regarding.name}` : (regarding.name ?? "");
    const cluster = related.kind === "MemberCluster" ? related.name : regarding.kind === "MemberCluster" ? regarding.name : undefined;
    const count = event.metadata.annotations?.["runnel.dev/copy-count"];
    const isRule = /DistributionRule$/.test(regarding.kind ?? "");
    return h(
      "tr",
      { "data-key": event.metadata.name, class: event.type === "Warning" ? "warning" : undefined },
      h("td", { title: ago(at, now) }, time(at)),
      named && h("td", {}, isRule ? h("a", { href: hrefs.rule(key) }, key) : key),
      h("td", {}, cluster ? h("a", { href: hrefs.cluster(cluster) }, cluster) : ""),
      h("td", {}, event.type === "Warning" && h("span", { class: "warn", title: "Warning" }, "! "), event.reason),
      right(count ?? ""),
      h("td", { class: "message" }, event.note),
    );
  });
  const heads = ["Time", named && "Object", "Cluster", "What", { name: "Copies", right: true }, "Cause"].filter(Boolean);
  return [
    table(heads, rows, "history"),
    entries.length > ENTRIES && quiet(`The newest ${ENTRIES} of ${entries.length}.`),
    quiet("Users who may create Events can write such entries. The hub's log has its own ones."),
  ];
}

function rolloutSection(model, key, now) {
  const rollout = picture(model, key);
  if (!rollout) return undefined;
  const { status, soak, budget } = rollout;
  const left = soak.since === undefined ? 0 : Math.max(0, soak.since + soak.seconds * 1000 - now);
  const facts = [
    figure("Phase", status.phase, status.endedAt ? ago(Date.parse(status.endedAt), now) : ago(Date.parse(status.startedAt), now)),
    figure("Reached", `${status.clustersReached ?? 0}/${status.clusters ?? 0}`, "clusters"),
    figure("Applied", `${status.clustersApplied ?? 0}/${status.clusters ?? 0}`, "clusters"),
    figure("Soak", soak.seconds === 0 ? "none" : span(soak.seconds * 1000), soak.since !== undefined && `${span(left)} left`),
    figure("Wave size", String(rollout.size), rollout.label ? `ordered by ${rollout.label}` : "ordered by name"),
    h(
      "div",
      { class: "figure" },
      h("dt", {}, "Failure budget"),
      h("dd", {}, `${budget.failed} of ${budget.max}`, h("small", {}, rollout.onFailure === "Revert" ? "then roll back" : "then stop"), budgetChart(budget)),
    ),
  ];
  const used = Object.entries(ROLLOUT_WORDS).map(([state, words]) => h("li", { class: `turn-key ${state}` }, words));
  return section(
    "Rollout",
    undefined,
    h("dl", { class: "facts" }, facts),
    status.failure && h("p", { class: "banner bad" }, `First failure: ${status.failure}`),
    status.rollbackBlocker && h("p", { class: "banner warn" }, status.rollbackBlocker),
    rollout.waves.length > 0 ? rolloutChart(rollout, now) : quiet("The rule is sent to no cluster."),
    h("ul", { class: "keys" }, used),
    quiet("Later waves are worked out from the labels of the clusters now. Unreachable clusters take no place in a wave."),
  );
}

/** One rule. */
export function ruleView(model, key, now) {
  const rule = model.rule(key);
  if (!rule) return [heading("Rule", key), quiet(model.ready ? "There is no such rule. Its history may still be below." : "Loading …"), historyOf(model, kindOf(key), key, now)];
  const status = rule.status ?? {};
  const ready = model.condition(rule, "Ready");
  const summary = status.summary ?? {};
  const edits = model.edits.filter((edit) => edit.rule === key);
  const counts = model.countsOfRule(key);
  const calm = counts.state(0) === 0;
  const others = (status.conditions ?? []).filter(({ type }) => type !== "Ready");
  return [
    heading(
      rule.kind ?? kindOf(key),
      key,
      pill(ready, calm),
      h("dl", { class: "facts" }, [
        figure("Sources", summary.sources ?? 0),
        figure("Clusters ready", `${summary.clustersReady ?? 0}/${summary.clusters ?? 0}`),
        figure("Copies applied", `${summary.copiesApplied ?? 0}/${summary.copies ?? 0}`),
        figure("Copies failed", summary.copiesFailed ?? 0),
        summary.copiesWithHealth > 0 && figure("Copies healthy", `${summary.copiesHealthy ?? 0}/${summary.copiesWithHealth}`),
        figure("Outdated clusters", counts.older()),
      ]),
    ),
    ready?.message && h("p", { class: `banner ${ready.status === "True" ? "good" : calm ? "warn" : "bad"}` }, ready.message),
    status.pendingApproval && section("Pending approval", undefined, approvalBox(status.pendingApproval, `kubectl runnel approve ${ruleArgument(key)}`, now)),
    rolloutSection(model, key, now),
    section("Clusters", "the worst first", clusterList(model, key)),
    section(
      "Delivery time",
      undefined,
      edits.length > 0 ? deliveryChart(edits, now) : quiet("No edit has arrived since this page began to watch."),
      quiet(
        `From the first outdated cluster until every connected cluster has the edit, as this page observes it. The hub reports changes every ${span(QUICK)}: a triangle is an edit that was quicker. The metric runnel_rule_delivery_seconds measures exactly.`,
      ),
    ),
    others.length > 0 && section("Conditions", undefined, conditions(others)),
    historyOf(model, kindOf(key), key, now),
  ];
}

function conditions(all) {
  const rows = all.map(({ type, status, reason, message }) =>
    h("tr", { "data-key": type }, h("th", { scope: "row" }, type), h("td", {}, status), h("td", {}, reason), h("td", { class: "message" }, message)),
  );
  return table(["Condition", "Status", "Reason", "Message"], rows);
}

function kindOf(key) {
  return key.includes("/") ? "DistributionRule" : "ClusterDistributionRule";
}

function historyOf(model, kind, key, now) {
  const entries = model.history(kind, key);
  return section("History", entries.length > 0 && `the newest of ${many(entries.length, "Event")}`, historyTable(entries, now, kind === "MemberCluster"));
}

/** One cluster. */
export function clusterView(model, name, now) {
  const member = model.members.get(name);
  const ready = model.condition(member, "Ready");
  const rules = model.rulesOf(name);
  const rows = rules.slice(0, LISTED).map(({ key, code, reason }) =>
    h(
      "tr",
      { "data-key": key },
      h("th", { scope: "row" }, h("a", { href: hrefs.delivery(key, name) }, key)),
      h("td", {}, mark(code, reason)),
      h("td", {}, reason),
    ),
  );
  return [
    heading(
      "MemberCluster",
      name,
      member && pill(ready),
      h("dl", { class: "facts" }, [
        figure("Agent", member?.status?.agentVersion ?? "unknown"),
        figure("Kubernetes", member?.status?.kubernetesVersion ?? "unknown"),
        figure("Rules", rules.length, `${many(rules.filter(({ code }) => code === READY).length, "ready rule")}`),
      ]),
      h("p", { class: "labels" }, labels(model.labels(name))),
    ),
    ready?.message && ready.status !== "True" && h("p", { class: "banner bad" }, ready.message),
    section(
      "Rules",
      "the worst first",
      rows.length > 0 ? table(["Rule", "State", "Reason"], rows) : quiet("No rule is sent to the cluster."),
      rules.length > LISTED && quiet(`${many(rules.length - LISTED, "more rule")}: the matrix shows them.`),
    ),
    member?.status?.conditions && section("Conditions", undefined, conditions(member.status.conditions.filter(({ type }) => type !== "Ready"))),
    historyOf(model, "MemberCluster", name, now),
  ];
}

/** One rule in one cluster, with what `detail` has read. */
export function deliveryView(model, rule, cluster, detail) {
  const code = model.code(rule, cluster);
  const status = detail.delivery?.status;
  const proof = { Yes: "proved", No: "differs", NotCompared: "not compared" }[status?.proof] ?? "";
  const failures = (status?.failures ?? []).map(({ copy, reason, message }) =>
    h("tr", { "data-key": copy }, h("th", { scope: "row" }, copy), h("td", {}, reason), h("td", { class: "message" }, message)),
  );
  return [
    heading(
      "Delivery",
      [h("a", { href: hrefs.rule(rule) }, rule), h("span", { class: "in" }, " in "), h("a", { href: hrefs.cluster(cluster) }, cluster)],
      mark(code, model.reason(rule, cluster)),
      status &&
        h("dl", { class: "facts", id: "delivery" }, [
          figure("Applied", `${status.applied}/${status.copies}`, "copies"),
          figure("Failed", status.failed),
          status.withHealth > 0 && figure("Healthy", `${status.healthy}/${status.withHealth}`, "copies"),
          figure("Waiting", status.waiting),
          figure("Drifted", status.drifted),
          figure("Revision", status.newest ? "newest" : "older"),
          figure("Proof", proof),
          status.toCreate + status.toUpdate + status.toDelete > 0 && figure("Dry run", `+${status.toCreate} ~${status.toUpdate} −${status.toDelete}`),
        ]),
    ),
    detail.error && h("p", { class: "banner bad" }, detail.error),
    status?.message && h("p", { class: `banner ${status.state === "Ready" ? "good" : status.state === "Failed" ? "bad" : "warn"}` }, status.reason && h("strong", {}, `${status.reason}: `), status.message),
    !status && !detail.error && quiet("Loading …"),
    failures.length > 0 && section("Failures", "the worst first, at most five", table(["Copy", "Reason", "Message"], failures)),
    section("Copies", "as the agent reports them now", copiesTable(detail)),
  ];
}

function copiesTable({ copies, copiesError, warning, more, loading }) {
  if (copiesError) return h("p", { class: "banner bad" }, copiesError);
  const rows = (copies ?? []).map(({ spec, status, metadata }) =>
    h(
      "tr",
      { "data-key": metadata.name },
      h("td", {}, spec.target.kind),
      h("td", {}, spec.target.namespace ?? ""),
      h("th", { scope: "row" }, spec.target.name),
      h("td", {}, copyMark(status.state)),
      h("td", {}, status.reason ?? ""),
      h("td", {}, status.health ?? ""),
      h("td", {}, status.source ?? ""),
      h("td", {}, time(Date.parse(status.appliedAt))),
      h("td", { class: "message" }, status.message ?? status.healthMessage ?? ""),
    ),
  );
  return [
    warning && h("p", { class: "banner warn" }, warning),
    rows.length > 0 && table(["Kind", "Namespace", "Copy", "State", "Reason", "Health", "Source", "Applied", "Message"], rows, "copies"),
    rows.length === 0 && quiet(loading || !copies ? "Asking the agent …" : "The agent reports no copies."),
    more && h("button", { type: "button", "data-action": "more" }, loading ? "Loading …" : "More copies"),
  ];
}

const COPY_LETTERS = { Applied: "R", UnderWay: "P", Failed: "F", Waiting: "W", Drifted: "D", Removing: "P", PruneRequested: "W" };

function copyMark(word) {
  const letter = COPY_LETTERS[word] ?? "P";
  const { glyph } = STATES.find((state) => state.letter === letter);
  return h("span", { class: `state s-${letter}` }, h("span", { class: "glyph", "aria-hidden": "true" }, glyph), word);
}

/** Everything that waits for approval. */
export function approvalsView(model, now) {
  const { causes, rules } = model.approvals();
  const error = model.sourceError("fleets");
  const lead = causes.length > 1 ? "To approve all causes:" : undefined;
  return [
    h("div", { class: "heading" }, h("h1", {}, "Approvals"), quiet("Removals above a limit wait until a person approves exactly them. This page changes nothing.")),
    error && h("p", { class: "banner bad" }, error),
    section(
      "Causes",
      undefined,
      causes.length > 0 ? causes.map((cause) => approvalBox(cause, "kubectl runnel approve", now, { rules: cause.rules, lead })) : quiet("Nothing waits for approval."),
    ),
    rules.length > 0 && section("Rules", undefined, rules.map(({ key, approval }) => h("div", { "data-key": key }, h("p", { class: "of" }, h("a", { href: hrefs.rule(key) }, key)), approvalBox(approval, `kubectl runnel approve ${ruleArgument(key)}`, now)))),
  ];
}

/** What was done to copies, and why. */
export function historyView(model, search, now) {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const text = ({ event }) => `${event.reason} ${event.note} ${event.regarding?.name} ${event.regarding?.namespace} ${event.related?.name ?? ""}`.toLowerCase();
  const entries = model.history().filter((entry) => words.every((word) => text(entry).includes(word)));
  const error = model.sourceError("events");
  return [
    h("div", { class: "heading" }, h("h1", {}, "History"), quiet("What was done to copies, and why: the newest 2,000 Events of the hub.")),
    error && h("p", { class: "banner bad" }, error),
    historyTable(entries, now, true),
  ];
}

export { timeOf };
