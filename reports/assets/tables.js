// Tables whose rows can be sorted by any column, by mouse and keyboard: first the largest (of text: the first in
// the alphabet), then the other way round, then as the page had them. Cells without a figure stay last.
(() => {
  "use strict";
  const UNITS = { ns: 1, "µs": 1e3, ms: 1e6, s: 1e9, B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40 };
  const FIGURE = /^[<>≤]?\s*(-?[\d,]*\.?\d+(?:e[-+]?\d+)?)\s*([^\s/]*)/i;

  const figure = (cell) => {
    if (!cell) return null;
    if (cell.dataset.ns !== undefined) return Number(cell.dataset.ns);
    if (cell.dataset.bytes !== undefined) return Number(cell.dataset.bytes);
    const found = FIGURE.exec(cell.textContent.trim());
    return found ? Number(found[1].replaceAll(",", "")) * (UNITS[found[2]] ?? 1) : null;
  };

  const order = (rows, at, numeric, direction) => {
    const keyed = rows.map((row) => ({
      row,
      key: numeric ? figure(row.cells[at]) : row.cells[at]?.textContent.trim() || null,
    }));
    keyed.sort((a, b) => {
      if (a.key === null || b.key === null) return (a.key === null) - (b.key === null);
      return direction * (numeric ? a.key - b.key : a.key.localeCompare(b.key));
    });
    return keyed.map((each) => each.row);
  };

  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const asWritten = Array.from(body.rows);
    if (asWritten.length < 2) continue;
    const heads = Array.from(table.tHead.rows[0].cells);
    heads.forEach((head, at) => {
      const label = head.textContent.trim();
      if (!label) return;
      const numeric = head.classList.contains("num");
      const first = numeric ? "descending" : "ascending";
      const second = numeric ? "ascending" : "descending";
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const now = head.getAttribute("aria-sort");
        const next = now === null ? first : now === first ? second : null;
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        if (next) head.setAttribute("aria-sort", next);
        const direction = next === "descending" ? -1 : 1;
        body.append(...(next ? order(asWritten, at, numeric, direction) : asWritten));
      });
    });
  }
})();
