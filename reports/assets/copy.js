// A button beside everything that is there to be pasted.
(() => {
  "use strict";
  const said = document.getElementById("said");

  const copy = async (code) => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      return true;
    } catch {
      // No clipboard for this page, as in a frame: the old way asks nobody.
      const selection = getSelection();
      selection.selectAllChildren(code);
      const done = document.execCommand("copy");
      selection.removeAllRanges();
      return done;
    }
  };

  for (const code of document.querySelectorAll("code.paste")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "copy";
    button.setAttribute("aria-label", `copy ${code.dataset.what ?? "this"}`);
    code.after(button);
    button.addEventListener("click", async () => {
      const done = await copy(code);
      button.textContent = done ? "copied" : "select it by hand";
      said.textContent = done ? "Copied." : "The browser does not let the page copy.";
      setTimeout(() => { button.textContent = "copy"; }, 2000);
    });
  }
})();
