// The timeline that zooms, drawn once the section comes into view. What is narrower than a column of the screen shares
// it, by height.
(() => {
  "use strict";
  const element = (id) => document.getElementById(id);
  const [source, still, chart, plot, tip] =
    ["timeline-data", "timeline-still", "timeline-chart", "timeline-plot", "timeline-tip"].map(element);
  if (!source || !chart) return;
  const canvas = plot.querySelector("canvas"), pen = canvas.getContext("2d");
  if (!pen) return;
  const data = JSON.parse(source.textContent);
  const LEFT = 160, HIGH = 20, GAP = 4, AXIS = 20, LETTER = 0.03, FEW_RANKS = 4, NARROWEST_NS = 20;
  const COUNTED = { host: " calls", compute: " kernels" };
  const view = { from: 0, to: data.span, rank: 0 };
  const few = data.ranks.length <= FEW_RANKS;
  let shown = [], drawn = [], held = null;

  const left = () => (plot.clientWidth < 600 ? 100 : LEFT);
  const wide = () => Math.max(120, plot.clientWidth - left());
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const time = (ns) => {
    const [unit, size] = ns >= 1e9 ? ["s", 1e9] : ns >= 1e6 ? ["ms", 1e6] : ns >= 1e3 ? ["µs", 1e3] : ["ns", 1];
    return (size === 1 ? String(Math.round(ns)) : (ns / size).toFixed(3)) + " " + unit;
  };

  const rows = () => {
    const found = data.ranks.map((rank) => ({ rank, kind: "ledger", label: rank.label }));
    const detailed = few ? data.ranks : [data.ranks[view.rank]];
    for (const rank of detailed) {
      for (const kind of Object.keys(data.kinds)) {
        if (kind === "ledger" || !rank.tracks[kind]) continue;
        const label = (data.ranks.length > 1 ? rank.label + " · " : "") + kind;
        const at = few ? found.findLastIndex((row) => row.rank === rank) + 1 : found.length;
        found.splice(at, 0, { rank, kind, label });
      }
    }
    return found;
  };

  // The stretches of a row inside [from, to) as patches: {code, start, end, top, bottom, said}.
  const patches = (row, from, to, column) => {
    const track = row.rank.tracks[row.kind], found = [];
    let at = row.rank.offset, pool = new Map(), first = 0, last = 0, pooled = 0;
    const flush = () => {
      let top = 0;
      const parts = [...pool].sort((a, b) => a[0] - b[0]);
      for (const [code, ns] of parts) {
        const bottom = Math.min(1, top + ns / (last - first));
        found.push({ code, start: first, end: last, top, bottom, ns, said: pooled + " segments share this column" });
        top = bottom;
      }
      pool = new Map();
      pooled = 0;
    };
    for (let i = 0; i < track.length.length; i++) {
      const start = at + track.gap[i], length = track.length[i], end = start + length;
      at = end;
      if (end <= from || start >= to || length <= 0) continue;
      if (pooled && (length >= column || start - last >= column || last - first >= column)) flush();
      if (length >= column) {
        const said = [];
        if (track.name[i] >= 0) said.push((row.kind === "passes" ? "micro-batch " : "") + data.names[track.name[i]]);
        if (track.held[i] > 1) said.push("stacks " + track.held[i].toLocaleString("en") + " intervals");
        if (track.count[i] > 1) said.push(track.count[i].toLocaleString("en") + (COUNTED[row.kind] ?? " kernels and copies") + " begin in it");
        found.push({ code: track.code[i], start, end, top: 0, bottom: 1, ns: length, said: said.join("\n") });
        continue;
      }
      if (!pooled) first = last = start;
      last = Math.max(end, last);
      pool.set(track.code[i], (pool.get(track.code[i]) || 0) + length);
      pooled++;
    }
    if (pooled) flush();
    return found;
  };

  // A look as what the pen fills with: its colour with its hatch on it.
  const filled = (look, scale) => {
    const tile = document.createElement("canvas"), ink = tile.getContext("2d");
    tile.width = tile.height = 8 * scale;
    ink.scale(scale, scale);
    ink.fillStyle = colour(look[2]);
    ink.fillRect(0, 0, 8, 8);
    ink.strokeStyle = "rgba(255, 255, 255, .5)";
    ink.lineWidth = 1.6;
    ink.stroke(new Path2D(look[3]));
    const found = pen.createPattern(tile, "repeat");
    found.setTransform(new DOMMatrix().scale(1 / scale));
    return found;
  };

  const draw = () => {
    const scale = Math.ceil(window.devicePixelRatio || 1), width = wide(), from = left(), span = view.to - view.from;
    shown = rows();
    const bottom = shown.length * (HIGH + GAP), style = getComputedStyle(plot), fills = new Map();
    canvas.width = Math.round((width + from) * scale);
    canvas.height = Math.round((bottom + AXIS) * scale);
    canvas.style.height = `${bottom + AXIS}px`;
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    const at = (ns) => from + (Math.min(Math.max(ns, view.from), view.to) - view.from) * (width / span);
    drawn = shown.map((row) => patches(row, view.from, view.to, span / width));
    const write = (text, x, y, align, room) => { pen.textAlign = align; pen.fillText(text, x, y, room); };
    drawn.forEach((found, y) => {
      const top = y * (HIGH + GAP);
      pen.fillStyle = colour("code");
      pen.fillRect(from, top, width, HIGH);
      for (const patch of found) {
        const look = data.looks[shown[y].kind][patch.code], key = shown[y].kind + patch.code;
        if (!fills.has(key)) fills.set(key, filled(look, scale));
        const x = at(patch.start), w = Math.max(at(patch.end) - x, 0.5);
        pen.fillStyle = fills.get(key);
        pen.fillRect(x, top + HIGH * patch.top, w, HIGH * (patch.bottom - patch.top));
        if (patch.bottom - patch.top < 1 || w < Math.max(width * LETTER, 10 * look[1].length + 4)) continue;
        pen.font = `700 11.5px ${style.fontFamily}`;
        pen.strokeStyle = colour("halo");
        pen.lineWidth = 2.5;
        pen.textAlign = "center";
        pen.strokeText(look[1], x + w / 2, top + 14);
        pen.fillStyle = "#fff";
        pen.fillText(look[1], x + w / 2, top + 14);
      }
      pen.font = `12px ${style.fontFamily}`;
      pen.fillStyle = style.color;
      write(shown[y].label, 0, top + 14, "left", from - 8);
    });
    const marked = data.mark ? shown.findIndex((row) => row.kind === "ledger" && row.label === data.mark[0]) : -1;
    if (marked >= 0 && data.mark[2] > view.from && data.mark[1] < view.to) {
      pen.strokeStyle = colour("ink");
      pen.lineWidth = 2;
      pen.strokeRect(at(data.mark[1]), marked * (HIGH + GAP) + 1, Math.max(at(data.mark[2]) - at(data.mark[1]), 1), HIGH - 2);
    }
    for (let part = 0; part <= 4; part += width < 500 ? 2 : 1) write(time(view.from + (span * part) / 4), from + (width * part) / 4, bottom + 14, ["left", "center", "center", "center", "right"][part]);
    if (held !== null && held.to !== held.from) {
      pen.globalAlpha = 0.25;
      pen.fillRect(Math.min(held.from, held.to), 0, Math.abs(held.to - held.from), bottom);
      pen.globalAlpha = 1;
    }
    element("timeline-said").textContent = `${time(view.from)} to ${time(view.to)} of ${time(data.span)}`;
    chart.dataset.from = view.from;
    chart.dataset.to = view.to;
  };
  const show = (from, to) => {
    const wide = Math.min(data.span, Math.max(NARROWEST_NS, to - from));
    view.from = Math.round(Math.min(Math.max(0, from), data.span - wide));
    view.to = Math.round(view.from + wide);
    tip.hidden = true;
    draw();
  };
  const steps = {
    in: (w) => show(view.from + w / 4, view.to - w / 4),
    out: (w) => show(view.from - w / 2, view.to + w / 2),
    left: (w) => show(view.from - w / 4, view.to - w / 4),
    right: (w) => show(view.from + w / 4, view.to + w / 4),
    whole: () => show(0, data.span),
  };
  const KEYS = { ArrowLeft: "left", ArrowRight: "right", "+": "in", "=": "in", "-": "out", 0: "whole", Home: "whole" };
  const act = (name) => steps[name](view.to - view.from);

  // Where the pointer is: on the screen, in time, and on which patch.
  const pointed = (event) => {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const ns = view.from + ((x - left()) / wide()) * (view.to - view.from), line = Math.floor(y / (HIGH + GAP));
    const down = (y - line * (HIGH + GAP)) / HIGH;
    const patch = (drawn[line] ?? []).find((one) => one.start <= ns && ns < one.end && one.top <= down && down < one.bottom);
    return { x, y, ns: Math.min(Math.max(ns, view.from), view.to), row: shown[line], patch };
  };
  const say = (event) => {
    const { x, y, row, patch } = pointed(event);
    tip.hidden = !patch;
    if (!patch) return;
    const look = data.looks[row.kind][patch.code];
    tip.textContent = [row.label, `${look[0]} ${time(patch.ns)}`, `from ${time(patch.start)}`, ...(patch.said ? [patch.said] : [])].join("\n");
    tip.style.left = `${Math.max(0, Math.min(x + 12, plot.clientWidth - tip.offsetWidth))}px`;
    tip.style.top = `${y + 14}px`;
  };

  const start = () => {
    const select = element("timeline-rank");
    data.ranks.forEach((rank, i) => select.append(new Option(rank.label, String(i))));
    select.closest("label").hidden = few;
    select.addEventListener("change", () => { view.rank = Number(select.value); draw(); });
    for (const button of chart.querySelectorAll("button[data-do]")) button.addEventListener("click", () => act(button.dataset.do));
    plot.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
      event.preventDefault();
      act(KEYS[event.key]);
    });
    canvas.addEventListener("pointerdown", (event) => {
      const { x } = pointed(event);
      held = { from: x, to: x, ns: pointed(event).ns };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      say(event);
      if (held === null) return;
      held.to = pointed(event).x;
      draw();
    });
    canvas.addEventListener("pointerup", (event) => {
      if (held === null) return;
      const [from, to] = [held.ns, pointed(event).ns].sort((a, b) => a - b), dragged = Math.abs(held.from - pointed(event).x) > 4;
      held = null;
      if (dragged && to > from) show(from, to);
      else draw();
    });
    canvas.addEventListener("pointercancel", () => { held = null; draw(); });
    canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
    canvas.addEventListener("dblclick", () => act("whole"));
    chart.hidden = false;
    still.classList.add("replaced");
    draw();
    new ResizeObserver(draw).observe(plot);
    new MutationObserver(draw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    chart.dataset.ready = "yes";
  };
  new IntersectionObserver((entries, observer) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    start();
  }, { rootMargin: "200px" }).observe(still);
})();
