// The heat map of many ranks: leaves by rank, or one leaf by role. It is drawn in as many columns as the screen has;
// ranks that share one show the one that is farthest from nothing. A click looks a rank up in the table.
(() => {
  "use strict";
  const element = (id) => document.getElementById(id);
  const [source, still, chart, plot, tip, rows, shows] =
    ["ranks-data", "heat-still", "heat-chart", "heat-plot", "heat-tip", "heat-rows", "heat-shows"].map(element);
  if (!source || !chart) return;
  const canvas = plot.querySelector("canvas"), pen = canvas.getContext("2d");
  if (!pen) return;
  const LEFT = 190, HIGH = 22, GAP = 2, AXIS = 20, FEWEST = 4, LEAST = 2, LEVELS = 64;
  let data, members, lines, view, held = null;

  const wide = () => Math.max(120, plot.clientWidth - left());
  const left = () => (plot.clientWidth < 600 ? 120 : LEFT);
  const part = (leaf, i) => (data.window[i] > 0 ? (100 * leaf.ns[i]) / data.window[i] : 0);
  const off = (leaf, i) => part(leaf, i) - 100 * leaf.usual[data.role[i]];
  const signed = (by) => (by < 0 ? "−" : "+") + Math.abs(by).toFixed(2) + " %";
  const count = (number) => number.toLocaleString("en");

  // A line is {label, values: what is drawn, from -1 to 1, ranks: whose it is, leaf}.
  const lay = () => {
    const differ = shows.value === "differ", one = data.leaves[Number(rows.value)], all = rows.value === "";
    const found = all
      ? data.leaves.map((leaf) => ({ label: leaf.label, leaf, ranks: data.labels.map((_, i) => i) }))
      : members.map((ranks, role) => ({ label: data.roles[role], leaf: one, ranks }));
    const most = found.map(({ leaf, ranks }) => ranks.reduce((top, i) => Math.max(top, part(leaf, i)), 1e-9));
    const top = Math.max(...most);
    const limit = found.reduce((far, { leaf, ranks }) => ranks.reduce((at, i) => Math.max(at, Math.abs(off(leaf, i))), far), LEAST);
    lines = found.map((line, y) => ({
      ...line, values: line.ranks.map((i) => differ ? off(line.leaf, i) / limit : part(line.leaf, i) / (all ? most[y] : top)),
    }));
    element("heat-key").textContent = differ
      ? `Orange: more than the role's median, blue: less; full colour is ${limit.toFixed(1)} % of the window.`
      : `Darker is a larger share; full colour is ${all ? "the largest of the row" : top.toFixed(1) + " % of the window"}.`;
    return Math.max(...lines.map((line) => line.ranks.length));
  };

  const rgb = (name) => {
    const hex = getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim().slice(1);
    return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
  };
  const shades = () => {
    const none = rgb("code"), more = rgb(shows.value === "differ" ? "dp" : "compute"), less = rgb("compute");
    const mixed = (to, by) => `rgb(${none.map((part, at) => Math.round(part + (to[at] - part) * by)).join(" ")})`;
    return Array.from({ length: 2 * LEVELS + 1 }, (_, at) => mixed(at < LEVELS ? less : more, Math.abs(at - LEVELS) / LEVELS));
  };

  const draw = () => {
    const scale = window.devicePixelRatio || 1, width = wide(), from = left();
    const height = lines.length * (HIGH + GAP) + AXIS, shade = shades();
    canvas.width = Math.round((width + from) * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.height = `${height}px`;
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    const style = getComputedStyle(plot);
    pen.font = `12px ${style.fontFamily}`;
    const shown = view.to - view.from, columns = Math.min(width, Math.max(1, Math.ceil(shown)));
    lines.forEach(({ label, values }, y) => {
      const top = y * (HIGH + GAP);
      for (let at = 0; at < columns; at++) {
        const first = view.from + Math.floor((at * shown) / columns), end = Math.max(first + 1, view.from + Math.floor(((at + 1) * shown) / columns));
        let value = null;
        for (let i = first; i < Math.min(end, values.length); i++) if (value === null || Math.abs(values[i]) > Math.abs(value)) value = values[i];
        if (value === null) continue;
        pen.fillStyle = shade[LEVELS + Math.round(Math.max(-1, Math.min(1, value)) * LEVELS)];
        const x = from + (at * width) / columns;
        pen.fillRect(Math.floor(x), top, Math.ceil(from + ((at + 1) * width) / columns) - Math.floor(x), HIGH);
      }
      pen.fillStyle = style.color;
      pen.textAlign = "left";
      pen.fillText(label, 0, top + 15, from - 8);
    });
    const one = lines[0].ranks, bottom = lines.length * (HIGH + GAP) + 14;
    const ends = rows.value === "" ? [data.labels[one[view.from]], data.labels[one[Math.min(one.length, view.to) - 1]]] : [`${count(view.from + 1)}.`, `${count(view.to)}. of the role`];
    pen.fillText(ends[0], from, bottom);
    pen.textAlign = "right";
    pen.fillText(ends[1], from + width, bottom);
    if (held !== null && held.to !== held.from) {
      pen.globalAlpha = 0.25;
      pen.fillRect(Math.min(held.from, held.to), 0, Math.abs(held.to - held.from), height - AXIS);
      pen.globalAlpha = 1;
    }
    element("heat-said").textContent = `${count(view.from + 1)} to ${count(view.to)} of ${count(view.across)}`;
    chart.dataset.from = view.from;
    chart.dataset.to = view.to;
  };
  const show = (from, to) => {
    const shown = Math.min(view.across, Math.max(FEWEST, Math.round(to - from)));
    view.from = Math.round(Math.min(Math.max(0, from), view.across - shown));
    view.to = view.from + shown;
    tip.hidden = true;
    draw();
  };
  const whole = () => {
    const across = lay();
    view = { from: 0, to: across, across };
    tip.hidden = true;
    draw();
  };
  const steps = {
    in: (w) => show(view.from + w / 4, view.to - w / 4),
    out: (w) => show(view.from - w / 2, view.to + w / 2),
    left: (w) => show(view.from - w / 4, view.to - w / 4),
    right: (w) => show(view.from + w / 4, view.to + w / 4),
    whole,
  };
  const KEYS = { ArrowLeft: "left", ArrowRight: "right", "+": "in", "=": "in", "-": "out", 0: "whole", Home: "whole" };
  const act = (name) => steps[name](view.to - view.from);

  // The cell under the pointer: the rank that its column shows.
  const cellAt = (event) => {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const line = lines[Math.floor(y / (HIGH + GAP))], shown = view.to - view.from, columns = Math.min(wide(), shown);
    const at = Math.floor(((x - left()) / wide()) * columns);
    if (!line || at < 0 || at >= columns) return { x, y, at: null };
    const first = view.from + Math.floor((at * shown) / columns), end = Math.max(first + 1, view.from + Math.floor(((at + 1) * shown) / columns));
    let best = null;
    for (let i = first; i < Math.min(end, line.values.length); i++) if (best === null || Math.abs(line.values[i]) > Math.abs(line.values[best])) best = i;
    return { x, y, line, at: best };
  };
  const say = (event) => {
    const { x, y, line, at } = cellAt(event);
    tip.hidden = at === null;
    if (at === null) return;
    const i = line.ranks[at], leaf = line.leaf;
    tip.textContent = `${data.labels[i]}, ${data.roles[data.role[i]]}: ${leaf.label} ${part(leaf, i).toFixed(2)} % of its window, ${signed(off(leaf, i))} against its role`;
    tip.style.left = `${Math.max(0, Math.min(x + 12, plot.clientWidth - tip.offsetWidth))}px`;
    tip.style.top = `${y + 14}px`;
  };
  // A drag may end in the column of names, or beyond the last rank.
  const within = (i) => Math.min(Math.max(i, view.from), view.to);
  const indexAt = (x) => view.from + ((x - left()) / wide()) * (view.to - view.from);
  const lookUp = (i) => {
    element("every-rank").dispatchEvent(new CustomEvent("lookup", { detail: i }));
    element("ranks-find").scrollIntoView({ block: "center" });
  };

  const start = () => {
    data = JSON.parse(source.textContent);
    members = data.roles.map(() => []);
    data.role.forEach((role, i) => members[role].push(i));
    data.leaves.forEach((leaf, i) => rows.append(new Option(`${leaf.label}, by role`, String(i))));
    rows.addEventListener("change", whole);
    shows.addEventListener("change", () => { lay(); draw(); });
    for (const button of chart.querySelectorAll("button[data-do]")) button.addEventListener("click", () => act(button.dataset.do));
    plot.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
      event.preventDefault();
      act(KEYS[event.key]);
    });
    canvas.addEventListener("pointerdown", (event) => {
      const { x } = cellAt(event);
      held = { from: x, to: x };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      say(event);
      if (held === null) return;
      held.to = cellAt(event).x;
      draw();
    });
    canvas.addEventListener("pointerup", (event) => {
      if (held === null) return;
      const [from, to] = [held.from, cellAt(event).x].sort((a, b) => a - b).map(indexAt).map(within), dragged = Math.abs(held.from - cellAt(event).x) > 4;
      held = null;
      if (dragged && to > from) { show(Math.floor(from), Math.ceil(to)); return; }
      draw();
      const { line, at } = cellAt(event);
      if (at !== null && at !== undefined) lookUp(line.ranks[at]);
    });
    canvas.addEventListener("pointercancel", () => { held = null; draw(); });
    canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
    chart.hidden = false;
    still.classList.add("replaced");
    whole();
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
