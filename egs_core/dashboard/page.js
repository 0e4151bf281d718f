// Fills the tables of the dashboard, or the parts of its other pages (view.js), with what the server tells. No library,
// no other host. Text goes in as text only: the page's policy forbids all that would read it as HTML.
(() => {
  "use strict";
  const { csrf: given, role, name: user, view, of } = document.body.dataset;
  const KEPT = "egs-dashboard"; // the session's secret, where no other port's pages can read it
  if (given) {
    localStorage.setItem(KEPT, given);
    location.replace("/dashboard");
    return;
  }
  const csrf = localStorage.getItem(KEPT);
  if (!csrf) {
    location.replace("/dashboard/login");
    return;
  }
  const $ = (id) => document.getElementById(id);
  const dialog = document.querySelector("dialog");
  const tables = new Map(); // section -> { body, kinds, empty, scroll, link, rows: Map(key -> { tr, row }) }
  const LABEL = { abort: "Abort", pause: "Pause", resume: "Resume", priority: "Priority" };
  const RETRY_MS = [1000, 2000, 5000, 10000];
  let ahead = 0, tries = 0, asked = null;

  for (const section of document.querySelectorAll("section[id]")) {
    tables.set(section.id, {
      body: section.querySelector("tbody"),
      kinds: [...section.querySelectorAll("th")].map((th) => th.dataset.kind),
      empty: section.querySelector(".empty"),
      scroll: section.querySelector(".scroll"),
      link: document.querySelector(`[data-count="${section.id}"]`),
      title: section.querySelector("h2").textContent,
      rows: new Map(),
    });
  }

  // --- text of a cell ----------------------------------------------------------------------------------------------

  const now = () => Date.now() / 1000 + ahead;

  function span(seconds) {
    const s = Math.max(0, Math.round(seconds));
    if (s < 120) return s + " s";
    if (s < 7200) return Math.round(s / 60) + " min";
    return s < 172800 ? (s / 3600).toFixed(1) + " h" : (s / 86400).toFixed(1) + " d";
  }

  function text(kind, value) {
    if (value === null) return kind === "starts" ? "not known" : "";
    if (value === "") return "";
    if (kind === "since") return span(now() - value);
    if (kind === "starts") return value <= now() ? "now" : "in " + span(value - now());
    return value;
  }

  // --- rows --------------------------------------------------------------------------------------------------------

  function fillCell(cell, kind, value, row) {
    if (kind === "actions") return fillActions(cell, value, row);
    if (kind === "share" && value !== null) {
      const percent = Math.round(value * 100) + " %";
      const meter = cell.querySelector("meter") || document.createElement("meter");
      meter.value = value;
      cell.replaceChildren(meter, " " + percent);
      return;
    }
    if (kind === "run") return fillRun(cell, value);
    const shown = text(kind, value);
    if (cell.textContent !== shown) cell.textContent = shown;
  }

  function fillRun(cell, value) { // to the workload that it is of
    if (cell.textContent === value) return;
    const link = cell.querySelector("a") || document.createElement("a");
    link.href = `/dashboard/workloads/${encodeURIComponent(cell.parentNode.dataset.key)}`;
    link.textContent = value;
    if (!link.parentNode) cell.replaceChildren(link);
  }

  function fillActions(cell, value, row) {
    const may = role === "admin" || role === "operator" || (role === "submitter" && row[1] === user);
    const wanted = may ? value.split(" ").filter(Boolean) : [];
    const have = [...cell.children].map((button) => button.dataset.verb);
    if (have.join() === wanted.join()) return;
    const hadFocus = cell.contains(document.activeElement);
    cell.replaceChildren(...wanted.map((verb) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = LABEL[verb];
      button.dataset.verb = verb;
      button.setAttribute("aria-label", `${LABEL[verb]} ${row[0]}`);
      return button;
    }));
    if (hadFocus) cell.querySelector("button")?.focus();
  }

  function fillRow(table, key, row) {
    let known = table.rows.get(key);
    if (!known) {
      const tr = document.createElement("tr");
      tr.dataset.key = key;
      table.kinds.forEach((_, n) => tr.append(document.createElement(n ? "td" : "th")));
      tr.firstChild.scope = "row";
      known = { tr, row };
      table.rows.set(key, known);
    }
    known.row = row;
    row.forEach((value, n) => fillCell(known.tr.children[n], table.kinds[n], value, row));
  }

  function setOrder(table, order) {
    const wanted = new Set(order);
    for (const [key, { tr }] of table.rows) {
      if (!wanted.has(key)) { tr.remove(); table.rows.delete(key); }
    }
    const focused = document.activeElement;
    let at = table.body.firstChild; // only what stands elsewhere is moved: a moved button loses the focus
    for (const key of order) {
      const { tr } = table.rows.get(key);
      if (tr === at) at = at.nextSibling;
      else table.body.insertBefore(tr, at);
    }
    if (focused !== document.activeElement && table.body.contains(focused)) focused.focus();
    table.empty.hidden = order.length > 0;
    table.scroll.hidden = order.length === 0;
    table.link.textContent = `${table.title} (${order.length})`;
  }

  function tick() {
    for (const time of document.querySelectorAll("time[data-since]")) time.textContent = span(now() - time.dataset.since);
    for (const time of document.querySelectorAll("time[data-at]")) time.textContent = text("starts", Number(time.dataset.at));
    for (const table of tables.values()) {
      table.kinds.forEach((kind, n) => {
        if (kind !== "since" && kind !== "starts") return;
        for (const { tr, row } of table.rows.values()) fillCell(tr.children[n], kind, row[n], row);
      });
    }
  }

  // --- what the server tells ---------------------------------------------------------------------------------------

  function problem(words) {
    $("problem").textContent = words;
    $("problem").hidden = !words;
    document.body.classList.toggle("stale", Boolean(words));
  }

  function change({ now: at, sections = {}, totals, parts }) {
    ahead = at - Date.now() / 1000;
    tries = 0;
    problem("");
    for (const [name, { rows = {}, order }] of Object.entries(sections)) {
      const table = tables.get(name);
      for (const [key, row] of Object.entries(rows)) fillRow(table, key, row);
      if (order) setOrder(table, order);
    }
    if (totals) $("status").textContent = totals;
    if (parts) {
      showParts(parts);
      tick();
    }
  }

  function told(event) { // "event: KIND\ndata: JSON", or a comment
    const [, kind, data] = event.match(/^event: (\w+)\ndata: (.*)$/) || [];
    if (kind === "change") change(JSON.parse(data));
    else if (kind === "problem") problem(JSON.parse(data));
    else if (kind === "ended") location.reload();
  }

  async function listen() { // not an EventSource: that can send no header
    try {
      const asked = view ? `?view=${encodeURIComponent(view)}&of=${encodeURIComponent(of)}` : "";
      const answer = await fetch(`/dashboard/events${asked}`, { headers: { "X-EGS-CSRF": csrf }, cache: "no-store" });
      if (answer.status === 401 || answer.status === 403) return location.replace("/dashboard/login");
      if (answer.ok) {
        const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
        let rest = "";
        for (let part = await reader.read(); !part.done; part = await reader.read()) {
          const events = (rest + part.value).split("\n\n");
          rest = events.pop();
          events.forEach(told);
        }
      }
    } catch { /* said below */ }
    problem("No connection to the dashboard: what is shown may be old. Runs and leases are not touched by that.");
    setTimeout(listen, RETRY_MS[Math.min(tries++, RETRY_MS.length - 1)]);
  }

  // --- changes -----------------------------------------------------------------------------------------------------

  function priorityOf(key) {
    const { kinds, rows } = tables.get("waiting");
    return rows.get(key)?.row[kinds.length - 2] ?? "0"; // beside the buttons
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-verb]");
    if (!button) return;
    const key = button.closest("tr").dataset.key;
    asked = { key, verb: button.dataset.verb };
    $("ask").textContent = `${button.getAttribute("aria-label")}?`;
    $("reason").value = "";
    const wantsNumber = asked.verb === "priority";
    $("with-reason").hidden = wantsNumber;
    $("with-number").hidden = $("number").disabled = !wantsNumber;
    if (wantsNumber) $("number").value = priorityOf(key);
    $("refused").hidden = true;
    dialog.showModal();
  });

  $("no")?.addEventListener("click", () => dialog.close());

  dialog?.querySelector("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    $("yes").disabled = true;
    let words = "";
    try {
      const answer = await fetch(`/dashboard/runs/${encodeURIComponent(asked.key)}/${asked.verb}`, {
        method: "POST",
        headers: { "Content-Type": "application/json", "X-EGS-CSRF": csrf },
        body: JSON.stringify(asked.verb === "priority" ? { priority: Number($("number").value) } : { reason: $("reason").value }),
      });
      if (!answer.ok) words = await answer.text();
    } catch (error) {
      words = "The server does not answer now.";
    }
    $("yes").disabled = false;
    $("refused").textContent = words;
    $("refused").hidden = !words;
    if (!words) dialog.close();
  });

  $("csrf").value = csrf;
  listen();
  setInterval(tick, 1000);
})();
