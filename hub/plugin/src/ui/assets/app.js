// The page: its stream, its views, its keys.
import { h, patch, patchChildren } from "./dom.js";
import { LEGEND, Matrix } from "./matrix.js";
import { isMissing, Model } from "./model.js";
import { approvalsView, clusterView, deliveryView, historyView, hrefs, ruleView, rulesTable } from "./views.js";
import { many, span, time } from "./words.js";

const model = new Model();
const options = { group: undefined, sort: "worst", search: "", history: "", table: false };
const main = document.getElementById("main");
const matrix = new Matrix(({ rule, cluster }) => {
  if (rule && cluster) location.hash = hrefs.delivery(rule, cluster);
  else if (rule) location.hash = hrefs.rule(rule);
  else if (cluster) location.hash = hrefs.cluster(cluster);
});
/** The names of the resources, for messages. */
const RESOURCES = {
  rules: "DistributionRules",
  clusterrules: "ClusterDistributionRules",
  members: "MemberClusters",
  fleets: "the Fleet",
  events: "Events",
  deliveries: "deliveries",
  clusterdeliveries: "clusterdeliveries",
};
/** What the open delivery has read. */
let detail = {};
let connected = false;
let lostAt;
/** Why the server refuses the stream. */
let refusal;

// ---- the stream

function connect() {
  const stream = new EventSource("stream");
  stream.onopen = () => {
    connected = true;
    lostAt = refusal = undefined;
    schedule();
  };
  stream.onerror = () => {
    lostAt ??= Date.now();
    connected = false;
    schedule();
    // The browser tries again by itself, unless the answer was an error.
    if (stream.readyState !== EventSource.CLOSED) return;
    askForRefusal();
    setTimeout(connect, 2000);
  };
  stream.onmessage = ({ data }) => {
    const changed = model.apply(JSON.parse(data));
    const { view, rule, cluster } = route();
    if (view === "delivery" && changed.some((pair) => pair[0] === rule && pair[1] === cluster)) refresh(300);
    schedule();
  };
}

/** An EventSource does not tell why it is refused. */
async function askForRefusal() {
  const end = new AbortController();
  const answer = await fetch("stream", { signal: end.signal }).catch(() => undefined);
  refusal = answer && !answer.ok ? (await answer.json().catch(() => undefined))?.message : undefined;
  end.abort();
  schedule();
}

// ---- what is open

function route() {
  const [view = "", ...parts] = location.hash.replace(/^#\/?/, "").split("/").map(decode);
  if (view === "rule") return { view, rule: parts[0] ?? "" };
  if (view === "cluster") return { view, cluster: parts[0] ?? "" };
  if (view === "delivery") return { view, rule: parts[0] ?? "", cluster: parts[1] ?? "" };
  return { view: ["approvals", "history"].includes(view) ? view : "matrix" };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

// ---- the open delivery: read on demand, and again after each change

async function read(address) {
  const answer = await fetch(address);
  const body = await answer.json().catch(() => ({ message: `HTTP ${answer.status}` }));
  if (!answer.ok) throw new Error(body.message);
  const warning = answer.headers.get("warning")?.replace(/^299 - "(.*)"$/, "$1");
  return { body, warning };
}

async function readDelivery(open) {
  const pair = new URLSearchParams({ rule: open.rule, cluster: open.cluster });
  await Promise.all([
    read(`delivery?${pair}`).then(
      ({ body }) => Object.assign(open, { delivery: body, error: undefined }),
      (error) => Object.assign(open, { delivery: undefined, error: error.message }),
    ),
    read(`copies?${pair}`).then(
      ({ body, warning }) => Object.assign(open, { copies: body.items, more: body.metadata.continue, warning, copiesError: undefined }),
      (error) => Object.assign(open, { copiesError: error.message }),
    ),
  ]);
  schedule();
}

async function readMore(open) {
  if (open.loading || !open.more) return;
  open.loading = true;
  schedule();
  const query = new URLSearchParams({ rule: open.rule, cluster: open.cluster, continue: open.more });
  try {
    const { body, warning } = await read(`copies?${query}`);
    Object.assign(open, { copies: [...open.copies, ...body.items], more: body.metadata.continue, warning });
  } catch (error) {
    open.copiesError = error.message;
  }
  open.loading = false;
  schedule();
}

let reading;

/** Reads the open delivery again, at most once at a time. */
function refresh(delay = 0) {
  const open = detail;
  if (reading || !open.rule) return;
  reading = setTimeout(async () => {
    reading = undefined;
    if (open === detail) await readDelivery(open);
  }, delay);
}

// ---- drawing

let scheduled;
let arranged;
/** The milliseconds for which the order of the matrix stays, however often deliveries change. */
const SETTLES = 500;

function schedule() {
  scheduled ??= requestAnimationFrame(() => {
    scheduled = undefined;
    render();
  });
}

function render() {
  const now = Date.now();
  renderTop(now);
  renderBanners(now);
  if (!model.ready) return;
  const { view, rule, cluster } = route();
  document.body.dataset.view = view;
  if (view === "matrix") {
    renderMatrix();
    return;
  }
  arranged = undefined;
  const content = {
    rule: () => ruleView(model, rule, now),
    cluster: () => clusterView(model, cluster, now),
    delivery: () => deliveryView(model, rule, cluster, detail),
    approvals: () => approvalsView(model, now),
    history: () => [searchBox("Search the history", options.history), ...historyView(model, options.history, now)],
  }[view]();
  show(h("div", { class: "page", "data-key": location.hash }, content));
}

function show(element) {
  if (main.children.length === 1 && main.firstChild.nodeName === element.nodeName) patch(main.firstChild, element);
  else main.replaceChildren(element);
}

function searchBox(label, value) {
  return h("input", { type: "search", id: "search", placeholder: `${label}  ( / )`, "aria-label": label, autocomplete: "off", spellcheck: "false", value });
}

function renderMatrix() {
  const labels = model.groupLabels();
  // A label with one value would be one group.
  if (options.group === undefined && labels[0]?.values > 1) options.group = labels[0].label;
  // Rows that move all the time could not be read.
  const chosen = [model.structure, options.group, options.sort, options.search].join("\n");
  const isOld = arranged?.version !== model.version && performance.now() - (arranged?.at ?? 0) > SETTLES;
  if (arranged?.chosen !== chosen || isOld) {
    arranged = { chosen, version: model.version, at: performance.now(), ...model.arrange(options) };
  }
  const { rules, columns } = arranged;
  const choice = (value, text, chosen) => h("option", { value, selected: chosen }, text);
  const bar = h(
    "div",
    { class: "bar" },
    searchBox("Search rules, clusters, labels, states", options.search),
    h("label", {}, "Group by", h("select", { id: "group", "data-change": "group" }, choice("", "no label", !options.group), labels.map(({ label }) => choice(label, label, label === options.group)))),
    h("label", {}, "Sort by", h("select", { id: "sort", "data-change": "sort" }, choice("worst", "worst first", options.sort === "worst"), choice("name", "name", options.sort === "name"))),
    h("button", { type: "button", id: "table", "data-action": "table", "aria-pressed": String(options.table) }, options.table ? "Show as matrix" : "Show as table"),
  );
  const legend = h("p", { class: "legend", "aria-label": "Legend" }, LEGEND.map(({ name, letter, glyph, older }) => h("span", {}, h("span", { class: `glyph g-${letter}${older ? " older" : ""}`, "aria-hidden": "true" }, glyph), name)));
  const empty = columns.length === 0 || rules.length === 0;
  const why = model.sourceError("deliveries", "rules", "members");
  const nothing = options.search ? "Nothing matches the search." : (why ?? "There are no rules and clusters yet.");
  // The matrix stays while it is empty: keys that are typed on the way to a search that matches need a place to go.
  const body = options.table ? rulesTable(model, rules) : matrix.root;
  const outer = main.firstChild;
  const shown = outer?.children?.[1];
  if (outer?.dataset?.key === "matrix") {
    // In place, so that the search box keeps the focus.
    patch(outer.firstChild, bar);
    if (shown !== body) {
      if (shown === matrix.root || body === matrix.root) shown.replaceWith(body);
      else patch(shown, body);
    }
  } else {
    main.replaceChildren(h("div", { class: "page wide", "data-key": "matrix" }, bar, body, legend));
    if (body === matrix.root && document.activeElement === document.body) matrix.root.focus({ preventScroll: true });
  }
  if (body !== matrix.root) return;
  if (matrix.shown !== arranged) {
    matrix.shown = arranged;
    matrix.show(model, arranged, empty ? nothing : "");
  } else {
    matrix.describe();
    matrix.request();
  }
}

function renderTop() {
  const { view } = route();
  const [fleet] = model.fleets.values();
  const status = fleet?.status ?? {};
  const { causes, rules } = model.approvals();
  const waiting = causes.length || rules.length;
  const link = (href, text, name) => h("a", { href, "aria-current": view === name ? "page" : undefined }, text);
  patchChildren(document.getElementById("nav"), [
    link("#/", "Matrix", "matrix"),
    link("#/approvals", waiting > 0 ? ["Approvals", h("b", { class: "badge" }, waiting)] : "Approvals", "approvals"),
    link("#/history", "History", "history"),
  ].map((node) => (node instanceof Node ? node : h("span", {}, node))));
  const figure = (name, value) => value && h("div", {}, h("dt", {}, name), h("dd", {}, value));
  patchChildren(
    document.getElementById("figures"),
    [figure("Clusters", status.clusters), figure("Rules", status.rules), figure("Copies", status.copies), figure("Context", model.about?.context)].filter(Boolean),
  );
  const live = document.getElementById("live");
  const loading = [...model.sources.values()].some(({ state }) => state === "loading");
  const failed = [...model.sources.values()].some(isMissing);
  const [word, name] = !connected ? ["lost", "not connected"] : loading ? ["loading", "loading"] : failed ? ["partly", "partly live"] : ["live", "live"];
  live.className = `live ${word}`;
  if (live.textContent !== name) live.textContent = name;
  document.title = waiting > 0 ? `(${waiting}) Runnel` : "Runnel";
}

function renderBanners(now) {
  const banners = [];
  const banner = (kind, key, ...text) => banners.push(h("p", { class: `banner ${kind}`, "data-key": key }, text));
  if (!connected && refusal) banner("bad", "lost", `${sentence(refusal)}.`);
  else if (!connected && lostAt) banner("bad", "lost", `\`kubectl runnel ui\` does not answer since ${time(lostAt)}. Start it again, and open the address that it prints.`);
  const silent = model.silentSince(now);
  if (silent !== undefined) {
    banner("bad", "silent", h("strong", {}, "The hub is silent"), ` since ${time(silent)} (${span(now - silent)}). The page shows the last reported state.`);
  }
  const messages = new Map();
  for (const { resource, state, message, since } of model.sources.values()) {
    // The Lease is only for the warning above, and both kinds of deliveries fail together.
    const isSecond = resource === "clusterdeliveries" && model.sourceError("deliveries");
    if (state === "failed" && resource !== "leases" && !isSecond) messages.set(message, since);
  }
  for (const [message, since] of messages) banner("warn", message, `${sentence(message)} (since ${time(since)})`);
  const refused = [...model.sources.values()].filter(({ state, resource }) => state === "refused" && resource !== "leases");
  if (refused.length > 0) {
    const names = refused.map(({ resource }) => RESOURCES[resource]).join(", ");
    banner("warn", "refused", `You may not list ${names}. Ask the administrator of the hub for these rights, such as the ClusterRole runnel-hub-view.`);
  }
  const loading = [...model.sources.values()].filter(({ state, resource }) => state === "loading" && /deliveries/.test(resource));
  if (loading.length > 0 && model.rows.size > 0) banner("note", "loading", `Loading deliveries: ${many(deliveries(), "delivery", "deliveries")} so far.`);
  patchChildren(document.getElementById("banners"), banners);
}

function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function deliveries() {
  let sum = 0;
  for (const { counts } of model.rows.values()) sum += counts.total();
  return sum;
}

// ---- what a person does

function back() {
  const { view, rule } = route();
  if (view === "matrix") {
    if (options.search) setSearch("");
    matrix.root.focus({ preventScroll: true });
  } else if (history.length > 1 && opened > 0) {
    history.back();
  } else {
    location.hash = view === "delivery" ? hrefs.rule(rule) : "#/";
  }
}

function setSearch(text) {
  options[route().view === "history" ? "history" : "search"] = text;
  const box = document.getElementById("search");
  if (box && box.value !== text) box.value = text;
  schedule();
}

const THEMES = ["auto", "light", "dark"];

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = `Theme: ${theme}`;
  try {
    localStorage.setItem("runnel-theme", theme);
  } catch {
    // Without storage the choice lasts until the page is closed.
  }
  matrix.restyle();
}

function nextTheme() {
  const at = THEMES.indexOf(document.documentElement.dataset.theme);
  setTheme(THEMES[(at + 1) % THEMES.length]);
}

function storedTheme() {
  try {
    return localStorage.getItem("runnel-theme") ?? "auto";
  } catch {
    return "auto";
  }
}

document.addEventListener("click", ({ target }) => {
  const action = target.closest?.("[data-action]")?.dataset.action;
  if (action === "theme") nextTheme();
  if (action === "more") readMore(detail);
  if (action === "table") {
    options.table = !options.table;
    schedule();
  }
});

document.addEventListener("input", ({ target }) => {
  if (target.id === "search") setSearch(target.value);
  const name = target.dataset?.change;
  if (name) {
    options[name] = target.value;
    schedule();
  }
});

document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.nodeName);
  if (event.key === "Escape") {
    if (typing && event.target.id === "search") {
      setSearch("");
      matrix.root.focus({ preventScroll: true });
    } else {
      back();
    }
    event.preventDefault();
    return;
  }
  if (event.key === "Enter" && event.target.id === "search") {
    matrix.root.focus({ preventScroll: true });
    return;
  }
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const box = document.getElementById("search");
  if (event.key !== "/" || !box) return;
  event.preventDefault();
  box.focus();
});

let opened = 0;

function navigate() {
  opened += 1;
  const { view, rule, cluster } = route();
  detail = view === "delivery" ? { rule, cluster } : {};
  refresh();
  window.scrollTo(0, 0);
  render();
  if (view === "matrix") matrix.root.focus({ preventScroll: true });
  else main.focus({ preventScroll: true });
}

window.addEventListener("hashchange", navigate);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => matrix.restyle());
// Ages, the soak of a wave and the silence of the hub change with time.
setInterval(schedule, 1000);

setTheme(storedTheme());
navigate();
opened = 0;
connect();
