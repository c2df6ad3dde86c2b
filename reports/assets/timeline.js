// The timeline that zooms: drawn by plotly.js, which takes seconds to unpack and draw, so that it is unpacked once
// somebody zooms: a button, a key, or a click on the picture, which shows the same until then. Each view is drawn in
// a bounded number of columns; what is narrower than one shares it, by height.
(() => {
  "use strict";
  const element = (id) => document.getElementById(id);
  const [source, packed, still, chart, plot] =
    ["timeline-data", "plotly-packed", "timeline-still", "timeline-chart", "timeline-plot"].map(element);
  if (!source || !packed || !chart || typeof DecompressionStream !== "function") return;
  const data = JSON.parse(source.textContent);
  const MOST_BARS = 3000, MOST_COLUMNS = 500, FEWEST_COLUMNS = 20, FEW_RANKS = 4, NARROWEST_NS = 20;
  const COUNTED = { host: " calls", compute: " kernels" };
  const UNIT = data.span >= 1e6 ? ["ms", 1e6] : ["µs", 1e3];
  const view = { from: 0, to: data.span, rank: 0 };
  const few = data.ranks.length <= FEW_RANKS;

  const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
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
    let at = row.rank.offset, held = new Map(), first = 0, last = 0, pooled = 0;
    const flush = () => {
      let top = 0;
      const parts = [...held].sort((a, b) => a[0] - b[0]);
      for (const [code, ns] of parts) {
        const bottom = Math.min(1, top + ns / (last - first));
        found.push({ code, start: first, end: last, top, bottom, ns, said: pooled + " segments share this column" });
        top = bottom;
      }
      held = new Map();
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
        found.push({ code: track.code[i], start, end, top: 0, bottom: 1, ns: length, said: said.map(plain).join("<br>") });
        continue;
      }
      if (!pooled) first = last = start;
      last = Math.max(end, last);
      held.set(track.code[i], (held.get(track.code[i]) || 0) + length);
      pooled++;
    }
    if (pooled) flush();
    return found;
  };

  // The patches of every row, in as many columns as keep the bars few.
  const fitted = (shown, wide) => {
    const from = Math.max(0, view.from - wide / 2), to = Math.min(data.span, view.to + wide / 2);
    for (let columns = MOST_COLUMNS; ; columns *= 0.6) {
      const found = shown.map((row) => patches(row, from, to, wide / columns));
      if (columns < FEWEST_COLUMNS || found.reduce((sum, part) => sum + part.length, 0) <= MOST_BARS) return found;
    }
  };

  const figure = () => {
    const shown = rows(), traces = new Map(), wide = view.to - view.from, fit = fitted(shown, wide);
    const ink = colour("ink"), line = colour("line");
    shown.forEach((row, y) => {
      for (const patch of fit[y]) {
        const look = data.looks[row.kind][patch.code], key = row.kind + "/" + patch.code;
        if (!traces.has(key)) {
          traces.set(key, {
            type: "bar", orientation: "h", name: plain(look[0]), base: [], x: [], y: [], offset: [], width: [], text: [],
            hovertext: [], hovertemplate: "%{hovertext}<extra></extra>", textposition: "inside", insidetextanchor: "middle",
            textangle: 0, textfont: { color: "#fff", size: 11 }, constraintext: "none", cliponaxis: true,
            marker: { color: colour(look[2]), line: { width: 0 }, pattern: { shape: look[3], size: 6, solidity: 0.25, fgcolor: "rgba(255,255,255,.5)", fillmode: "overlay" } },
          });
        }
        const trace = traces.get(key);
        trace.base.push(patch.start / UNIT[1]);
        trace.x.push((patch.end - patch.start) / UNIT[1]);
        trace.y.push(y);
        trace.offset.push(-0.4 + 0.8 * patch.top);
        trace.width.push(0.8 * (patch.bottom - patch.top));
        trace.text.push(patch.bottom - patch.top === 1 && patch.end - patch.start > wide * 0.03 ? look[1] : "");
        trace.hovertext.push(
          `${plain(row.label)}<br>${plain(look[0])} ${time(patch.ns)}<br>from ${time(patch.start)}` + (patch.said ? "<br>" + patch.said : ""));
      }
    });
    const marked = data.mark ? shown.findIndex((row) => row.kind === "ledger" && row.label === data.mark[0]) : -1;
    const layout = {
      shapes: marked < 0 ? [] : [{ type: "rect", x0: data.mark[1] / UNIT[1], x1: data.mark[2] / UNIT[1], y0: marked - 0.46, y1: marked + 0.46, line: { color: ink, width: 2 } }],
      barmode: "overlay", bargap: 0, hovermode: "closest", dragmode: "zoom", uirevision: "kept",
      height: 70 + 24 * shown.length, margin: { l: 20, r: 15, t: 10, b: 40 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink, size: 12, family: "system-ui, sans-serif" },
      hoverlabel: { bgcolor: colour("card"), bordercolor: line, font: { color: ink } },
      xaxis: { range: [view.from / UNIT[1], view.to / UNIT[1]], autorange: false, title: { text: UNIT[0] + " since the earliest rank began" }, gridcolor: line, zeroline: false },
      yaxis: { range: [shown.length - 0.5, -0.5], autorange: false, fixedrange: true, tickmode: "array", tickvals: shown.map((_, i) => i), ticktext: shown.map((row) => plain(row.label)), automargin: true, showgrid: false, zeroline: false },
      showlegend: false,
    };
    return [[...traces.values()], layout];
  };

  const config = { responsive: true, displayModeBar: false, doubleClick: false };
  const said = element("timeline-said");
  let opened;
  const draw = async () => {
    if (!opened) said.textContent = "drawing …";
    if (!(await (opened ??= unpack()))) return chart.remove();
    const [traces, layout] = figure();
    await Plotly.react(plot, traces, layout, config);
    said.textContent = `${time(view.from)} to ${time(view.to)} of ${time(data.span)}`;
    chart.dataset.from = view.from;
    chart.dataset.to = view.to;
    if (!chart.dataset.ready) follow();
  };
  const show = (from, to) => {
    const wide = Math.min(data.span, Math.max(NARROWEST_NS, to - from));
    view.from = Math.round(Math.min(Math.max(0, from), data.span - wide));
    view.to = Math.round(view.from + wide);
    return draw();
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

  const unpack = async () => {
    const bytes = Uint8Array.from(atob(packed.textContent.trim()), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const text = await new Response(stream).text();
    // The library brings the styles of its maps as elements with such ids, unless they are there. No map is drawn.
    for (const [, id] of text.matchAll(/getElementById\("([0-9a-f]{64})"\)/g)) {
      const there = document.createElement("template");
      there.id = id;
      document.head.append(there);
    }
    const script = document.createElement("script");
    script.textContent = text;
    document.head.append(script);
    return typeof Plotly === "object" || typeof Plotly === "function";
  };
  // What the library tells of, which begins with its first drawing.
  const follow = () => {
    chart.dataset.ready = "yes";
    still.classList.add("replaced");
    plot.on("plotly_relayout", (change) => {
      const range = change["xaxis.range"] ?? [change["xaxis.range[0]"], change["xaxis.range[1]"]];
      if (range[0] !== undefined && range[1] !== undefined) show(range[0] * UNIT[1], range[1] * UNIT[1]);
      else if (change["xaxis.autorange"]) act("whole");
    });
    plot.on("plotly_doubleclick", () => { act("whole"); });
    new MutationObserver(draw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  };
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
  still.addEventListener("click", () => act("whole"));
  still.style.cursor = "zoom-in";
  said.textContent = "click the picture to zoom";
  chart.hidden = false;
})();
