// Before anything is drawn: the theme that this reader chose last. Without storage, or where none was chosen,
// the page follows the system.
(() => {
  "use strict";
  const THEMES = ["light", "dark"];
  const KEY = "perfdoc-theme";
  const root = document.documentElement;
  root.classList.add("scripted");
  const kept = () => {
    try { return localStorage.getItem(KEY); } catch { return null; }
  };
  const apply = (theme) => {
    if (THEMES.includes(theme)) root.dataset.theme = theme;
    else delete root.dataset.theme;
  };
  apply(kept());
  document.addEventListener("DOMContentLoaded", () => {
    const select = document.getElementById("theme");
    select.value = root.dataset.theme ?? "auto";
    select.addEventListener("change", () => {
      apply(select.value);
      try { localStorage.setItem(KEY, select.value); } catch { /* the choice lasts as long as the page */ }
    });
  });
})();
