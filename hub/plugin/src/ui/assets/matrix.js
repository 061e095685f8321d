// The matrix of rules and clusters: one canvas that draws only what is visible, and a grid for keyboards and screen
// readers. Canvas, because 200,000 elements would be slow.
import { NONE, STATES, isOlder, showsOlder, stateOf, wordsOf } from "./model.js";

const ROW = 24;
const NARROW = 14;
const WIDE = 104;
const GROUP = 26;
const NAMES = { narrow: 112, wide: 30 };
const COUNTS = [0, 1, 2, 3, 4, 5];
/** The times of the last frames that are kept, for measurements. */
const FRAMES = 240;

export class Matrix {
  /** Creates the grid. `open` gets what a person chose: a rule, a cluster or both. */
  constructor(open) {
    this.open = open;
    this.model = undefined;
    this.rules = [];
    this.groups = [];
    this.columns = [];
    /** The selected cell; -1 is a heading. */
    this.at = { row: 0, column: 0 };
    this.frameTimes = [];
    this.root = document.createElement("div");
    this.root.className = "matrix";
    this.root.id = "matrix";
    this.root.frameTimes = this.frameTimes;
    this.root.tabIndex = 0;
    this.root.dataset.keep = "";
    this.root.setAttribute("role", "grid");
    this.root.setAttribute("aria-label", "Rules by clusters. Arrow keys move, Enter opens.");
    this.root.setAttribute("aria-activedescendant", "matrix-cell");
    this.scroll = document.createElement("div");
    this.scroll.className = "matrix-scroll";
    this.scroll.tabIndex = -1;
    this.space = document.createElement("div");
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("aria-hidden", "true");
    this.row = document.createElement("div");
    this.row.className = "hidden";
    this.row.setAttribute("role", "row");
    this.cell = document.createElement("div");
    this.cell.id = "matrix-cell";
    this.cell.setAttribute("role", "gridcell");
    this.row.append(this.cell);
    this.tip = document.createElement("p");
    this.tip.className = "matrix-tip";
    this.tip.id = "matrix-tip";
    this.space.append(this.canvas);
    this.scroll.append(this.space);
    this.nothing = document.createElement("p");
    this.nothing.className = "quiet";
    this.nothing.setAttribute("role", "status");
    this.root.append(this.nothing, this.scroll, this.row, this.tip);
    this.listen();
    new ResizeObserver(() => this.layout()).observe(this.root);
  }

  listen() {
    this.scroll.addEventListener("scroll", () => this.request(), { passive: true });
    this.root.addEventListener("keydown", (event) => this.key(event));
    this.root.addEventListener("focus", () => this.request());
    this.root.addEventListener("blur", () => this.request());
    this.scroll.addEventListener("mousemove", (event) => {
      const at = this.hit(event);
      this.hover = at;
      this.scroll.classList.toggle("over", Boolean(at));
      this.describe();
      this.request();
    });
    this.scroll.addEventListener("mouseleave", () => {
      this.hover = undefined;
      this.describe();
      this.request();
    });
    this.scroll.addEventListener("click", (event) => {
      const at = this.hit(event);
      if (!at) return;
      this.select(at);
      this.enter();
    });
  }

  /** Shows rules and columns, or says why there are none. The selection stays on the same pair. */
  show(model, { rules, groups, columns }, nothing) {
    const before = this.model ? this.selected() : undefined;
    this.model = model;
    Object.assign(this, { rules, groups, columns });
    if (before) {
      const row = rules.findIndex(({ key }) => key === before.rule);
      const column = columns.findIndex(({ name }) => name === before.cluster);
      if (row >= 0) this.at.row = row;
      if (column >= 0) this.at.column = column;
    }
    this.clamp();
    this.nothing.textContent = nothing;
    this.root.classList.toggle("empty", Boolean(nothing));
    this.root.setAttribute("aria-rowcount", rules.length + 1);
    this.root.setAttribute("aria-colcount", columns.length + 1);
    this.layout();
  }

  selected() {
    return {
      row: this.at.row,
      column: this.at.column,
      rule: this.rules[this.at.row]?.key,
      cluster: this.columns[this.at.column]?.name,
    };
  }

  clamp() {
    this.at.row = Math.min(Math.max(this.at.row, -1), this.rules.length - 1);
    this.at.column = Math.min(Math.max(this.at.column, -1), this.columns.length - 1);
  }

  /** Works out the sizes. */
  layout() {
    if (this.scroll.clientWidth === 0 || !this.model) return;
    this.grouped = this.groups.length > 1 || (this.groups[0]?.value ?? "") !== "";
    this.canvas.style.height = "0";
    // Scrollbars take room, and whether there are any depends on the sizes.
    for (let pass = 0; pass < 2; pass += 1) {
      const width = this.scroll.clientWidth;
      this.left = Math.min(340, Math.max(200, Math.round(width * 0.26)));
      this.wide = this.columns.length > 0 && this.columns.length * WIDE < width - this.left;
      this.width = this.wide ? Math.min(180, Math.floor((width - this.left - 1) / this.columns.length)) : NARROW;
      this.top = (this.grouped ? GROUP : 0) + (this.wide ? NAMES.wide : NAMES.narrow);
      this.space.style.width = `${this.left + this.columns.length * this.width + 1}px`;
      this.space.style.height = `${this.top + this.rules.length * ROW + 1}px`;
    }
    const { clientWidth, clientHeight } = this.scroll;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(clientWidth * ratio);
    this.canvas.height = Math.round(clientHeight * ratio);
    this.canvas.style.width = `${clientWidth}px`;
    this.canvas.style.height = `${clientHeight}px`;
    this.ratio = ratio;
    this.describe();
    this.request();
  }

  /** Reads the colors again, after the theme changed. */
  restyle() {
    this.colors = undefined;
    this.request();
  }

  request() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      const begin = performance.now();
      this.draw();
      this.frameTimes.push(performance.now() - begin);
      if (this.frameTimes.length > FRAMES) this.frameTimes.shift();
    });
  }

  palette() {
    if (!this.colors) {
      const style = getComputedStyle(document.documentElement);
      const read = (name) => style.getPropertyValue(`--${name}`).trim();
      this.colors = Object.fromEntries(
        ["text", "quiet", "line", "faint", "surface", "accent", "select", "on-state"].map((name) => [name, read(name)]),
      );
      for (const { letter } of STATES) this.colors[letter] = read(`state-${letter}`);
      this.font = read("font");
      this.sprites = undefined;
    }
    return this.colors;
  }

  /** The picture of a cell, drawn once for each code. */
  sprite(code) {
    this.sprites ??= new Map();
    const known = this.sprites.get(code);
    if (known) return known;
    const size = NARROW;
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = Math.ceil(size * this.ratio);
    const context = canvas.getContext("2d");
    context.scale(this.ratio, this.ratio);
    this.drawState(context, code, 1, 1, size - 2, size - 2);
    this.sprites.set(code, canvas);
    return canvas;
  }

  drawState(context, code, x, y, width, height) {
    const colors = this.palette();
    const { letter, glyph } = stateOf(code);
    const older = showsOlder(code);
    const quiet = letter === "R" && !older;
    context.beginPath();
    context.roundRect(x, y, width, height, 2.5);
    context.fillStyle = colors[letter];
    context.globalAlpha = quiet ? 0.3 : older && letter === "R" ? 0.55 : 1;
    context.fill();
    context.globalAlpha = 1;
    context.fillStyle = quiet ? colors.text : colors["on-state"];
    context.font = `700 ${Math.min(11, height - 2)}px ${this.font}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText(glyph, x + width / 2, y + height / 2 + 0.5);
    if (older) {
      // A cut corner: not the newest revision.
      context.beginPath();
      context.moveTo(x + width, y + height);
      context.lineTo(x + width, y + height - 5);
      context.lineTo(x + width - 5, y + height);
      context.fillStyle = colors.surface;
      context.fill();
    }
  }

  draw() {
    const context = this.canvas.getContext("2d");
    const colors = this.palette();
    if (this.spriteRatio !== this.ratio) {
      this.sprites = undefined;
      this.spriteRatio = this.ratio;
    }
    const [width, height] = [this.canvas.width / this.ratio, this.canvas.height / this.ratio];
    const { scrollLeft, scrollTop } = this.scroll;
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.fillStyle = colors.surface;
    context.fillRect(0, 0, width, height);
    const first = { row: Math.floor(scrollTop / ROW), column: Math.floor(scrollLeft / this.width) };
    const last = {
      row: Math.min(this.rules.length - 1, Math.floor((scrollTop + height - this.top) / ROW)),
      column: Math.min(this.columns.length - 1, Math.floor((scrollLeft + width - this.left) / this.width)),
    };
    const x = (column) => this.left + column * this.width - scrollLeft;
    const y = (row) => this.top + row * ROW - scrollTop;
    const active = this.hover ?? (document.activeElement === this.root ? this.at : undefined);

    context.save();
    context.beginPath();
    context.rect(this.left, this.top, width - this.left, height - this.top);
    context.clip();
    if (active) {
      context.fillStyle = colors.select;
      const [right, bottom] = [x(this.columns.length), y(this.rules.length)];
      if (active.row >= 0) context.fillRect(this.left, y(active.row), right - this.left, ROW);
      if (active.column >= 0) context.fillRect(x(active.column), this.top, this.width, bottom - this.top);
    }
    for (let row = first.row; row <= last.row; row += 1) {
      const codes = this.model.rows.get(this.rules[row].key)?.codes;
      for (let column = first.column; column <= last.column; column += 1) {
        const id = this.columns[column].id;
        const code = codes && id !== undefined ? (codes[id] ?? NONE) : NONE;
        this.drawCell(context, code, x(column), y(row));
      }
    }
    this.drawGroups(context, x, (group) => {
      context.fillStyle = colors.line;
      context.fillRect(Math.round(x(group.end)) - 0.5, this.top, 1, y(this.rules.length) - this.top);
    });
    if (active && active.row >= 0 && active.column >= 0) {
      context.strokeStyle = colors.accent;
      context.lineWidth = 2;
      context.strokeRect(x(active.column) + 0.5, y(active.row) + 0.5, this.width - 1, ROW - 1);
    }
    context.restore();
    this.drawHeadings(context, { width, first, last, x, active });
    this.drawRules(context, { height, first, last, y, active });
    context.fillStyle = colors.surface;
    context.fillRect(0, 0, this.left, this.top);
    this.drawCorner(context);
  }

  drawCell(context, code, left, top) {
    if (code === NONE) return;
    if (!this.wide) {
      context.drawImage(this.sprite(code), left, top + (ROW - NARROW) / 2, NARROW, NARROW);
      return;
    }
    const colors = this.palette();
    context.drawImage(this.sprite(code), left + 8, top + (ROW - NARROW) / 2, NARROW, NARROW);
    const { letter, name } = stateOf(code);
    const ready = letter === "R" && !isOlder(code);
    context.font = `${ready ? 400 : 600} 12px ${this.font}`;
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillStyle = ready ? colors.quiet : colors.text;
    context.fillText(isOlder(code) && letter === "R" ? "Older" : name, left + 28, top + ROW / 2 + 0.5, this.width - 32);
  }

  drawGroups(context, x, each) {
    if (!this.grouped) return;
    let begin = 0;
    for (const { value, clusters } of this.groups) {
      const group = { value, begin, end: begin + clusters.length };
      each(group);
      begin = group.end;
    }
  }

  drawHeadings(context, { width, first, last, x, active }) {
    const colors = this.palette();
    context.save();
    context.beginPath();
    context.rect(this.left, 0, width - this.left, this.top);
    context.clip();
    context.fillStyle = colors.surface;
    context.fillRect(this.left, 0, width, this.top);
    context.textBaseline = "middle";
    for (let column = first.column; column <= last.column; column += 1) {
      const { name, counts } = this.columns[column];
      const chosen = active?.column === column;
      const bad = [0, 1, 2].some((state) => counts.state(state) > 0);
      context.font = `${chosen || bad ? 600 : 400} ${this.wide ? 12 : 11}px ${this.font}`;
      context.fillStyle = chosen || bad ? colors.text : colors.quiet;
      context.save();
      if (this.wide) {
        context.textAlign = "left";
        context.fillText(clipped(context, name, this.width - 14), x(column) + 8, this.top - NAMES.wide / 2);
      } else {
        context.translate(x(column) + this.width / 2, this.top - 6);
        context.rotate(-Math.PI / 2);
        context.textAlign = "left";
        context.fillText(clipped(context, name, NAMES.narrow - 12), 0, 0);
      }
      context.restore();
      if (active?.row === -1 && chosen) {
        context.strokeStyle = colors.accent;
        context.lineWidth = 2;
        const begin = this.grouped ? GROUP : 0;
        context.strokeRect(x(column) + 1, begin + 1, this.width - 2, this.top - begin - 2);
      }
    }
    this.drawGroups(context, x, ({ value, begin, end }) => {
      const [from, to] = [x(begin), x(end)];
      context.fillStyle = colors.faint;
      context.fillRect(from + 1, 2, to - from - 2, GROUP - 6);
      context.font = `600 12px ${this.font}`;
      context.fillStyle = colors.text;
      context.textAlign = "left";
      const visible = Math.max(from, this.left);
      const text = `${value || "(no label)"}  ${end - begin}`;
      if (to - visible > 30) context.fillText(clipped(context, text, to - visible - 12), visible + 8, GROUP / 2 - 1);
    });
    context.fillStyle = colors.line;
    context.fillRect(this.left, this.top - 1, width, 1);
    context.restore();
  }

  drawRules(context, { height, first, last, y, active }) {
    const colors = this.palette();
    context.save();
    context.beginPath();
    context.rect(0, this.top, this.left, height - this.top);
    context.clip();
    context.fillStyle = colors.surface;
    context.fillRect(0, this.top, this.left, height);
    context.textBaseline = "middle";
    for (let row = first.row; row <= last.row; row += 1) {
      const { key, counts } = this.rules[row];
      const chosen = active?.row === row;
      if (chosen) {
        context.fillStyle = colors.select;
        context.fillRect(0, y(row), this.left, ROW);
      }
      const middle = y(row) + ROW / 2;
      let right = this.left - 12;
      for (const index of [...COUNTS].reverse()) {
        const count = counts.state(index);
        if (count === 0) continue;
        context.font = `600 11px ${this.font}`;
        context.textAlign = "right";
        context.fillStyle = colors.text;
        const text = String(count);
        context.fillText(text, right, middle + 0.5);
        right -= context.measureText(text).width + 3;
        context.drawImage(this.sprite(index + 1), right - NARROW, middle - NARROW / 2, NARROW, NARROW);
        right -= NARROW + 8;
      }
      const slash = key.indexOf("/");
      const [namespace, name] = slash < 0 ? ["", key] : [key.slice(0, slash + 1), key.slice(slash + 1)];
      context.textAlign = "left";
      context.font = `400 13px ${this.font}`;
      context.fillStyle = colors.quiet;
      const room = right - 14;
      const before = clipped(context, namespace, room * 0.5);
      context.fillText(before, 14, middle + 0.5);
      const taken = context.measureText(before).width;
      context.font = `500 13px ${this.font}`;
      context.fillStyle = colors.text;
      context.fillText(clipped(context, name, room - taken), 14 + taken, middle + 0.5);
      if (chosen && active.column === -1) {
        context.strokeStyle = colors.accent;
        context.lineWidth = 2;
        context.strokeRect(1, y(row) + 1, this.left - 2, ROW - 2);
      }
    }
    context.fillStyle = colors.line;
    context.fillRect(this.left - 1, this.top, 1, height);
    context.restore();
  }

  drawCorner(context) {
    const colors = this.palette();
    context.font = `400 12px ${this.font}`;
    context.textAlign = "left";
    context.textBaseline = "alphabetic";
    context.fillStyle = colors.quiet;
    context.fillText(`${this.rules.length} × ${this.columns.length}`, 14, this.top - 9);
    context.fillStyle = colors.line;
    context.fillRect(0, this.top - 1, this.left, 1);
  }

  /** The cell under the mouse. */
  hit(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const column = x < this.left ? -1 : Math.floor((x - this.left + this.scroll.scrollLeft) / this.width);
    const row = y < this.top ? -1 : Math.floor((y - this.top + this.scroll.scrollTop) / ROW);
    if ((row === -1 && column === -1) || row >= this.rules.length || column >= this.columns.length) return undefined;
    return { row, column };
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) {
      if (!event.ctrlKey || !["Home", "End"].includes(event.key)) return;
    }
    const page = Math.max(1, Math.floor((this.scroll.clientHeight - this.top) / ROW) - 1);
    const { row, column } = this.at;
    const [rows, columns] = [this.rules.length - 1, this.columns.length - 1];
    const moves = {
      ArrowUp: { row: row - 1, column },
      ArrowDown: { row: row + 1, column },
      ArrowLeft: { row, column: column - 1 },
      ArrowRight: { row, column: column + 1 },
      PageUp: { row: Math.max(0, row - page), column },
      PageDown: { row: row + page, column },
      Home: event.ctrlKey ? { row: 0, column: 0 } : { row, column: 0 },
      End: event.ctrlKey ? { row: rows, column: columns } : { row, column: columns },
    };
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.enter();
      return;
    }
    const to = moves[event.key];
    if (!to) return;
    event.preventDefault();
    this.hover = undefined;
    this.select(to);
  }

  select(at) {
    this.at = { ...at };
    this.clamp();
    if (this.at.row === -1 && this.at.column === -1) this.at.column = 0;
    this.clamp();
    this.reveal();
    this.describe();
    this.request();
  }

  /** Scrolls so that the selected cell is visible. */
  reveal() {
    const { row, column } = this.at;
    const { scrollLeft, scrollTop, clientWidth, clientHeight } = this.scroll;
    if (row >= 0) {
      const [from, to] = [row * ROW, (row + 1) * ROW - (clientHeight - this.top)];
      this.scroll.scrollTop = Math.min(Math.max(scrollTop, to), from);
    }
    if (column >= 0) {
      const [from, to] = [column * this.width, (column + 1) * this.width - (clientWidth - this.left)];
      this.scroll.scrollLeft = Math.min(Math.max(scrollLeft, to), from);
    }
  }

  enter() {
    const { rule, cluster } = this.selected();
    this.open({ rule, cluster });
  }

  /** Tells the selected cell to screen readers, and the one under the mouse to everybody. */
  describe() {
    const text = (at) => {
      const [rule, cluster] = [this.rules[at.row], this.columns[at.column]];
      if (rule && cluster) {
        const code = this.model.code(rule.key, cluster.name);
        return `${rule.key} in ${cluster.name}: ${wordsOf(code, this.model.reason(rule.key, cluster.name))}`;
      }
      if (!rule && !cluster) return "";
      const counts = (rule ?? cluster).counts;
      const states = STATES.map(({ name }, index) => [counts.state(index), name]).filter(([count]) => count > 0);
      const list = states.map(([count, name]) => `${count} ${name}`).join(", ") || "no deliveries";
      return rule ? `Rule ${rule.key}: ${list}` : `Cluster ${cluster.name}: ${list}`;
    };
    const chosen = text(this.at);
    if (this.cell.textContent !== chosen) this.cell.textContent = chosen;
    this.row.setAttribute("aria-rowindex", this.at.row + 2);
    this.cell.setAttribute("aria-colindex", this.at.column + 2);
    const shown = this.hover ? text(this.hover) : chosen;
    if (this.tip.textContent !== shown) this.tip.textContent = shown;
  }
}

function clipped(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let [low, high] = [0, text.length];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (context.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle;
    else high = middle - 1;
  }
  return low === 0 ? "" : `${text.slice(0, low)}…`;
}

/** The legend: each state as it is drawn. */
export const LEGEND = [...STATES, { name: "older revision", letter: "R", glyph: "·", older: true }];
