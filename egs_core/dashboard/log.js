// Loads the page again when its log has more, unless somebody does not want that, or has something in focus.
(() => {
  "use strict";
  const { version, home } = document.body.dataset;
  const box = document.getElementById("follow");
  const KEPT = `follow ${home}`;
  box.checked = sessionStorage.getItem(KEPT) !== "no";
  box.addEventListener("change", () => sessionStorage.setItem(KEPT, box.checked ? "yes" : "no"));
  setInterval(async () => {
    if (!box.checked || document.hidden || document.activeElement !== document.body) return;
    try {
      const answer = await fetch(`${home}/version`, { cache: "no-store" });
      if (answer.ok && (await answer.text()) !== version) location.reload();
    } catch { /* the command has ended: what is shown stays */ }
  }, 2000);
})();
