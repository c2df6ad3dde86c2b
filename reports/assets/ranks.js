// Every rank of a job of many: rows are made from columns of figures when somebody asks, a page of them at a time.
(() => {
  "use strict";
  const element = (id) => document.getElementById(id);
  const source = element("ranks-data"), details = element("every-rank");
  if (!source || !details) return;
  const PAGE = 100;
  const number = new Intl.NumberFormat("en");
  let data, columns, found, shown, sorted = null, only = null;

  const time = (ns) => {
    const [unit, size] = ns >= 1e9 ? ["s", 1e9] : ns >= 1e6 ? ["ms", 1e6] : ns >= 1e3 ? ["µs", 1e3] : ["ns", 1];
    return (size === 1 ? String(ns) : (ns / size).toFixed(3)) + " " + unit;
  };
  const exact = () => element("ranks-unit").value === "ns";
  const share = (ns, window) => {
    if (!(window > 0)) return "—";
    const part = (100 * ns) / window;
    return (ns > 0 && part < 0.05 ? "<0.1" : part.toFixed(1)) + " %";
  };

  // {title, numeric, key: what it is sorted by, text, ns: its exact time}; all of them take a rank's place.
  const makeColumns = () => [
    { title: "rank", key: (i) => i, text: (i) => data.labels[i] },
    { title: "role", key: (i) => data.role[i], text: (i) => data.roles[data.role[i]] },
    ...Object.entries(data.places).map(([name, of]) => ({ title: name.toUpperCase(), numeric: true, key: (i) => of[i], text: (i) => String(of[i]) })),
    { title: "differs by", numeric: true, key: (i) => Math.abs(parseFloat(data.far[i] ?? "0")), text: (i) => data.far[i] ?? "" },
    ...(data.steps ? [{ title: "step time", numeric: true, key: (i) => data.step[i], text: (i) => time(data.step[i]), ns: (i) => data.step[i] }] : []),
    { title: "window", numeric: true, key: (i) => data.window[i], text: (i) => exact() ? number.format(data.window[i]) : time(data.window[i]), ns: (i) => data.window[i] },
    ...data.leaves.map((leaf) => ({
      title: leaf.label, numeric: true, key: (i) => exact() ? leaf.ns[i] : leaf.ns[i] / Math.max(1, data.window[i]),
      text: (i) => exact() ? number.format(leaf.ns[i]) : share(leaf.ns[i], data.window[i]), ns: (i) => leaf.ns[i],
    })),
    { title: "file", key: (i) => data.files[i], text: (i) => data.files[i] },
  ];

  // "7, 16-31" are numbers in a rank's name; anything else is a part of it.
  const matcher = (wanted) => {
    const parts = wanted.split(",").map((part) => part.trim().toLowerCase()).filter(Boolean);
    if (!parts.length) return () => true;
    const tests = parts.map((part) => {
      const span = /^(\d+)\s*(?:[-–]\s*(\d+))?$/.exec(part);
      if (!span) return (label) => label.toLowerCase().includes(part);
      const from = Number(span[1]), to = Number(span[2] ?? span[1]);
      return (label) => {
        const at = /^rank (\d+)$/.exec(label);
        return at ? Number(at[1]) >= from && Number(at[1]) <= to : label.split(/\D+/).includes(span[1]);
      };
    });
    return (label) => tests.some((test) => test(label));
  };

  const rowOf = (i) => {
    const row = document.createElement("tr");
    columns.forEach((column, at) => {
      const cell = document.createElement(at ? "td" : "th");
      if (!at) cell.scope = "row";
      if (column.numeric) cell.className = "num";
      else if (at) cell.className = "left";
      if (column.ns) cell.dataset.ns = column.ns(i);
      cell.textContent = column.text(i);
      row.append(cell);
    });
    return row;
  };
  const more = () => {
    const body = element("ranks").tBodies[0];
    body.append(...found.slice(shown, shown + PAGE).map(rowOf));
    shown = Math.min(found.length, shown + PAGE);
    element("ranks-more").hidden = shown >= found.length;
    element("ranks-said").textContent =
      `${number.format(shown)} of ${number.format(found.length)} ranks` + (found.length < data.labels.length ? ` that fit, of ${number.format(data.labels.length)}` : "");
  };
  const list = () => {
    const fits = matcher(element("ranks-find").value), role = element("ranks-role").value, far = element("ranks-far").checked;
    found = data.labels.map((_, i) => i).filter((i) => only !== null ? i === only :
      fits(data.labels[i]) && (role === "" || data.role[i] === Number(role)) && (!far || i in data.far));
    if (sorted) {
      const { key } = columns[sorted.at];
      found.sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        return sorted.direction * (typeof x === "string" ? x.localeCompare(y) : x - y) || a - b;
      });
    }
    element("ranks").tBodies[0].replaceChildren();
    shown = 0;
    more();
  };
  const sort = (at, heads) => {
    const [first, second] = columns[at].numeric ? [-1, 1] : [1, -1];
    const now = sorted?.at === at ? sorted.direction : null;
    const next = now === null ? first : now === first ? second : null;
    sorted = next === null ? null : { at, direction: next };
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    if (next) heads[at].setAttribute("aria-sort", next < 0 ? "descending" : "ascending");
    list();
  };

  const start = () => {
    data = JSON.parse(source.textContent);
    columns = makeColumns();
    const heads = columns.map((column, at) => {
      const head = document.createElement("th"), button = document.createElement("button");
      head.scope = "col";
      if (column.numeric) head.className = "num";
      button.type = "button";
      button.className = "sort";
      button.textContent = column.title;
      button.addEventListener("click", () => sort(at, heads));
      head.append(button);
      return head;
    });
    element("ranks").tHead.rows[0].replaceChildren(...heads);
    data.roles.forEach((label, i) => element("ranks-role").append(new Option(label, String(i))));
    for (const id of ["ranks-find", "ranks-role", "ranks-far", "ranks-unit"]) element(id).addEventListener("input", () => { if (id !== "ranks-unit") only = null; list(); });
    element("ranks-more").addEventListener("click", more);
    list();
  };
  const opened = () => { if (details.open && !data) start(); };
  details.addEventListener("toggle", opened);
  // One rank by its place, whatever it is called and whatever was chosen before.
  details.addEventListener("lookup", (event) => {
    details.open = true;
    opened();
    only = event.detail;
    element("ranks-find").value = data.labels[only];
    element("ranks-role").value = "";
    element("ranks-far").checked = false;
    list();
  });
  opened();
})();
