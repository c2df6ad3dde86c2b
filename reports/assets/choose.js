// What a chosen set of changes gains: looked up in the table of sets that were simulated, and never worked out
// here, since gains do not add.
(() => {
  "use strict";
  const panel = document.getElementById("choose");
  if (panel) {
    const result = document.getElementById("chosen");
    const rows = Array.from(document.querySelectorAll("#sets tbody tr"));
    const boxes = Array.from(document.querySelectorAll("input.choice"));
    const line = (words, value) => {
      const strong = document.createElement("b");
      strong.textContent = value;
      result.replaceChildren(...(value ? [words + " ", strong] : [words]));
    };
    const show = () => {
      const members = [...new Set(boxes.filter((box) => box.checked).map((box) => Number(box.value)))];
      members.sort((a, b) => a - b);
      if (!members.length) return line("No change is chosen.", "");
      const row = rows.find((each) => each.dataset.set === members.join(","));
      if (!row) return line("These were not simulated together.", "");
      const band = row.dataset.band ? ` (${row.dataset.band})` : "";
      const saves = row.dataset.gain.startsWith("costs") ? "" : "saves ";
      line(members.length === 1 ? "This change alone:" : "Simulated together:", saves + row.dataset.gain + band);
    };
    for (const box of boxes) {
      box.addEventListener("change", () => {
        for (const twin of boxes) if (twin.value === box.value) twin.checked = box.checked;
        show();
      });
      box.checked = false;
    }
    show();
  }

  const dialect = document.getElementById("dialect");
  if (dialect) {
    const snippets = Array.from(document.querySelectorAll("[data-dialect]"));
    const pick = () => {
      for (const quick of document.querySelectorAll(".quick")) {
        const all = Array.from(quick.querySelectorAll("[data-quick]"));
        const shown = all.find((each) => each.dataset.quick === dialect.value) ?? all[0];
        for (const each of all) each.hidden = each !== shown;
      }
      for (const each of snippets) {
        each.hidden = dialect.value !== "all" && each.dataset.dialect !== dialect.value;
      }
      for (const setting of document.querySelectorAll(".setting")) {
        const own = Array.from(setting.querySelectorAll("[data-dialect]"));
        const none = setting.querySelector(".no-spelling");
        if (none) none.hidden = own.some((each) => !each.hidden);
      }
    };
    dialect.addEventListener("change", pick);
    pick();
  }

  // A link to something that is folded away opens it.
  const open = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    target?.querySelector(":scope > details")?.setAttribute("open", "");
    target?.scrollIntoView();
  };
  if (location.hash) open();
  addEventListener("hashchange", open);

  // Browsers that print only what is open.
  addEventListener("beforeprint", () => {
    for (const each of document.querySelectorAll("details:not(.exact):not([open])")) {
      each.open = true;
      each.dataset.shut = "";
    }
  });
  addEventListener("afterprint", () => {
    for (const each of document.querySelectorAll("details[data-shut]")) {
      each.open = false;
      delete each.dataset.shut;
    }
  });
})();
