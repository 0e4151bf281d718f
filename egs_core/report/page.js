// Draws the charts of a report from the data in the page. No library, no network. Times are seconds.
(() => {
  "use strict";
  const { runs } = JSON.parse(document.getElementById("egs-data").textContent);
  const LONGEST = Math.max(...runs.map((run) => run.end), 0.001);
  const UNUSED = 0, COLD = 1, LOADING = 2;
  const [START, END, PIPELINE, KIND, NAME, OUTCOME, PARTS] = [0, 1, 2, 3, 4, 5, 6];
  const PARTS_NAMED = ["held, not used", "cold start", "loading"];
  const MOST_ROWS = 1000;
  const AXIS = 24, FONT = '11px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';
  const view = { from: 0, to: LONGEST };
  const chosen = new Map(); // run -> [lane, bar]
  let colourBy = "pipeline", colours = {}, patterns = {};

  // --- helpers -------------------------------------------------------------------------------------------------------

  const all = (selector) => [...document.querySelectorAll(selector)];

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    colours = new Proxy({}, { get: (known, name) => (known[name] ??= style.getPropertyValue("--" + name).trim()) });
    patterns = {};
  }

  function pattern(ctx, colour, crossed) {
    const key = colour + crossed;
    if (!patterns[key]) {
      const ratio = devicePixelRatio || 1, size = 6, tile = document.createElement("canvas");
      tile.width = tile.height = Math.round(size * ratio);
      const t = tile.getContext("2d");
      t.scale(tile.width / size, tile.height / size);
      t.strokeStyle = colour;
      t.lineWidth = crossed ? 1.1 : 1.6;
      t.beginPath();
      for (const shift of [-size, 0, size]) {
        t.moveTo(shift - 1, size + 1); t.lineTo(shift + size + 1, -1);
        if (crossed) { t.moveTo(shift - 1, -1); t.lineTo(shift + size + 1, size + 1); }
      }
      t.stroke();
      patterns[key] = ctx.createPattern(tile, "repeat");
      patterns[key].setTransform(new DOMMatrix().scale(size / tile.width));
    }
    return patterns[key];
  }

  function niceStep(span, most) {
    const rough = span / most, power = 10 ** Math.floor(Math.log10(rough));
    if (rough > 30) return [60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400].find((s) => s >= rough) || power * 10;
    return [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  }

  function clock(t, step) {
    if (step < 60) return t.toFixed(step < 0.1 ? 2 : step < 1 ? 1 : 0) + " s";
    const minutes = Math.round(t / 60);
    return minutes < 120 || step < 600 ? minutes + " min" : +(minutes / 60).toFixed(1) + " h";
  }

  const secondsText = (s) => (s < 10 ? s.toFixed(2) : s < 1000 ? s.toFixed(1) : Math.round(s).toLocaleString("en")) + " s";

  function prepare(canvas, height) {
    const ratio = devicePixelRatio || 1, width = canvas.clientWidth;
    canvas.style.height = height + "px";
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const ctx = canvas.getContext("2d");
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.font = FONT;
    return { ctx, width, height };
  }

  const longest = runs.reduce((most, run) => run.lanes.reduce((n, lane) => Math.max(n, lane.name.length), most), 0);
  const gutter = (width) => Math.max(width < 500 ? 52 : 72, Math.min(8 + 6.4 * longest, 0.25 * width)); // 6.4: of a letter

  function scale(width) {
    const left = gutter(width), usable = width - left - 10;
    return {
      left, right: left + usable,
      x: (t) => left + ((t - view.from) / (view.to - view.from)) * usable,
      t: (x) => view.from + ((x - left) / usable) * (view.to - view.from),
    };
  }

  function drawAxis(ctx, s, bottom) {
    const step = niceStep(view.to - view.from, Math.max(2, (s.right - s.left) / 64));
    ctx.textAlign = "center";
    ctx.textBaseline = "top";
    for (let n = Math.ceil(view.from / step - 1e-9); n * step <= view.to + 1e-9; n++) {
      const x = s.x(n * step), text = clock(n * step, step), half = ctx.measureText(text).width / 2;
      ctx.fillStyle = colours.grid;
      ctx.fillRect(Math.round(x), 0, 1, bottom + 4);
      ctx.fillStyle = colours.soft;
      ctx.fillText(text, Math.min(Math.max(x, half), s.right + 10 - half), bottom + 8);
    }
  }

  function clipText(ctx, text, room) {
    if (ctx.measureText(text).width <= room) return text;
    let fits = Math.floor((text.length * room) / ctx.measureText(text).width);
    while (fits > 1 && ctx.measureText(text.slice(0, fits) + "…").width > room) fits--;
    return fits > 1 ? text.slice(0, fits) + "…" : "";
  }

  function clipLane(ctx, name, room) { // of a node's name the end goes, not the number of its GPU
    const [, node, gpu] = name.match(/^(.+?)( GPU \d+|, which GPU is not told)$/) || [name, name, ""];
    const rest = room - ctx.measureText(gpu).width;
    return gpu && rest > 24 ? clipText(ctx, node, rest) + gpu : clipText(ctx, name, room);
  }

  // --- what ran where ------------------------------------------------------------------------------------------------

  function rowsOf(run) {
    const cpus = run.lanes.filter((lane) => lane.group === "cpu").length;
    const gpus = run.lanes.filter((lane) => lane.group === "gpu").length;
    const high = { gpu: gpus > 16 ? 16 : 28, cpu: cpus > 32 ? 5 : cpus > 12 ? 9 : 16, preload: run.lanes.length - cpus - gpus > 6 ? 6 : 10 };
    let y = 2, before = "";
    const rows = run.lanes.map((lane) => {
      if (before && before !== lane.group) y += 8;
      before = lane.group;
      const row = { y, high: high[lane.group] };
      y += row.high + (row.high > 9 ? 3 : 1);
      return row;
    });
    return { rows, bottom: y };
  }

  const barColour = (bar) => (colourBy === "kind" ? colours["kind-" + (bar[KIND] === "gpu" ? "gpu" : "cpu")] : colours["c" + (bar[PIPELINE] % 8)]);

  function drawTimeline(canvas) {
    const run = runs[canvas.dataset.timeline], { rows, bottom } = rowsOf(run);
    const { ctx, width, height } = prepare(canvas, bottom + AXIS), s = scale(width);
    ctx.fillStyle = colours.paper;
    ctx.fillRect(0, 0, width, height);
    ctx.fillStyle = colours.lane;
    for (const row of rows) ctx.fillRect(s.left, row.y, s.right - s.left, row.high);
    drawAxis(ctx, s, bottom);
    ctx.save();
    ctx.beginPath();
    ctx.rect(s.left, 0, s.right - s.left, bottom);
    ctx.clip();
    run.lanes.forEach((lane, n) => {
      for (const bar of lane.bars) {
        if (bar[START] > view.to) break;
        if (bar[END] >= view.from) drawBar(ctx, s, run, bar, rows[n]);
      }
    });
    drawChosen(ctx, s, run, rows);
    drawEnd(ctx, s, run, bottom);
    ctx.restore();
    drawLaneNames(ctx, s, run, rows);
  }

  function drawBar(ctx, s, run, bar, row) {
    const x = s.x(bar[START]), wide = Math.max(s.x(bar[END]) - x, 0.7), gap = wide > 4 ? 0.5 : 0, colour = barColour(bar);
    if (bar[KIND] === "preload") return drawPreload(ctx, s, bar, row, colour);
    ctx.fillStyle = colour;
    ctx.fillRect(x + gap, row.y, wide - 2 * gap, row.high);
    for (const [what, from, to] of bar[PARTS] || []) {
      const a = Math.max(s.x(from), x + gap), b = Math.min(s.x(to), x + wide - gap);
      if (b - a < 0.5) continue;
      ctx.fillStyle = colours.paper;
      ctx.fillRect(a, row.y, b - a, row.high);
      ctx.fillStyle = pattern(ctx, what === COLD ? colours.cold : colour, what === COLD);
      ctx.fillRect(a, row.y, b - a, row.high);
    }
    ctx.strokeStyle = colour;
    ctx.lineWidth = 1;
    if (wide > 4 && bar[PARTS]) ctx.strokeRect(x + gap + 0.5, row.y + 0.5, wide - 2 * gap - 1, row.high - 1);
    drawFailure(ctx, run, bar, row, x, wide);
    drawName(ctx, s, run, bar, row, x, wide);
  }

  function drawPreload(ctx, s, bar, row, colour) {
    ctx.fillStyle = colour;
    ctx.fillRect(s.x(bar[START]), row.y + row.high / 2 - 1, Math.max(s.x(bar[END]) - s.x(bar[START]), 0.7), 2);
    for (const [, from, to] of bar[PARTS]) ctx.fillRect(s.x(from), row.y + 1, Math.max(s.x(to) - s.x(from), 0.7), row.high - 2);
  }

  function drawFailure(ctx, run, bar, row, x, wide) {
    if (run.names[bar[OUTCOME]] === "succeeded" || wide < 3) return;
    ctx.strokeStyle = colours.wasted;
    ctx.lineWidth = 2;
    ctx.strokeRect(x + 1, row.y + 1, wide - 2, row.high - 2);
    ctx.beginPath();
    ctx.moveTo(x + wide - 2, row.y + 2); ctx.lineTo(x + Math.max(2, wide - row.high), row.y + row.high - 2);
    ctx.stroke();
  }

  // The name goes into the longest plain stretch, so that no pattern runs through it.
  function drawName(ctx, s, run, bar, row, x, wide) {
    if (row.high < 14 || wide < 26) return;
    let [best, room] = [x, 0], from = Math.max(x, s.left);
    const parts = [...(bar[PARTS] || [])].sort((a, b) => a[1] - b[1]);
    for (const [a, b] of [...parts.map((p) => [s.x(p[1]), s.x(p[2])]), [Math.min(x + wide, s.right), 0]]) {
      if (a - from > room) [best, room] = [from, a - from];
      from = Math.max(from, b);
    }
    const text = room > 26 ? clipText(ctx, run.names[bar[NAME]], room - 8) : "";
    if (!text) return;
    ctx.fillStyle = colours["bar-ink"];
    ctx.textAlign = "left";
    ctx.textBaseline = "middle";
    ctx.fillText(text, best + 4, row.y + row.high / 2 + 0.5);
  }

  function drawChosen(ctx, s, run, rows) {
    const at = chosen.get(run);
    if (!at) return;
    const bar = run.lanes[at[0]].bars[at[1]], row = rows[at[0]], x = s.x(bar[START]);
    ctx.strokeStyle = colours.ink;
    ctx.lineWidth = 2;
    ctx.strokeRect(x - 1, row.y - 1, Math.max(s.x(bar[END]) - x, 1) + 2, row.high + 2);
  }

  function drawEnd(ctx, s, run, bottom) {
    const x = s.x(run.end);
    if (x > s.right + 1) return;
    ctx.fillStyle = colours.ink;
    ctx.fillRect(Math.min(x, s.right - 2), 0, 2, bottom);
    const text = "ends at " + secondsText(run.end), room = ctx.measureText(text).width + 14;
    if (x + room > s.right || x < s.left) return;
    ctx.textAlign = "left";
    ctx.textBaseline = "middle";
    ctx.fillText(text, x + 8, bottom / 2);
  }

  function drawLaneNames(ctx, s, run, rows) {
    ctx.textAlign = "right";
    ctx.textBaseline = "middle";
    ctx.fillStyle = colours.ink;
    run.lanes.forEach((lane, n) => {
      if (lane.name) ctx.fillText(clipLane(ctx, lane.name, s.left - 8), s.left - 8, rows[n].y + Math.max(rows[n].high, 11) / 2);
    });
  }

  function describe(run, [lane, index]) {
    const bar = run.lanes[lane].bars[index];
    const where = nameOfLane(run, lane);
    const parts = (bar[PARTS] || []).map(([what, a, b]) => `${PARTS_NAMED[what]} ${secondsText(b - a)}`);
    const span = `${secondsText(bar[START])} to ${secondsText(bar[END])} (${secondsText(bar[END] - bar[START])})`;
    const kind = bar[KIND] === "preload" ? "preload" : bar[KIND].toUpperCase() + " phase";
    return [run.names[bar[NAME]], run.pipelines[bar[PIPELINE]], kind, where, span, run.names[bar[OUTCOME]], ...parts].join(" · ");
  }

  function nameOfLane(run, lane) {
    let n = lane;
    while (n > 0 && !run.lanes[n].name) n--;
    return run.lanes[n].name;
  }

  function choose(canvas, at) {
    const run = runs[canvas.dataset.timeline];
    if (String(chosen.get(run)) === String(at)) return;
    if (at) chosen.set(run, at); else chosen.delete(run);
    document.querySelector(`[data-readout="${canvas.dataset.timeline}"]`).textContent = at ? describe(run, at) : "";
    drawTimeline(canvas);
  }

  function barAt(canvas, event) {
    const run = runs[canvas.dataset.timeline], { rows } = rowsOf(run), s = scale(canvas.clientWidth);
    const lane = rows.findIndex((row) => event.offsetY >= row.y - 1 && event.offsetY <= row.y + row.high + 1);
    if (lane < 0 || event.offsetX < s.left) return null;
    const { bars } = run.lanes[lane], near = (s.t(3) - s.t(0));
    let low = 0, high = bars.length;
    const t = s.t(event.offsetX);
    while (low < high) { const mid = (low + high) >> 1; if (bars[mid][START] <= t + near) low = mid + 1; else high = mid; }
    return low > 0 && bars[low - 1][END] >= t - near ? [lane, low - 1] : null;
  }

  function step(canvas, key) {
    const run = runs[canvas.dataset.timeline], filled = run.lanes.map((l, n) => (l.bars.length ? n : -1)).filter((n) => n >= 0);
    if (!filled.length) return;
    const [lane, bar] = chosen.get(run) || [filled[0], -1], bars = run.lanes[lane].bars;
    if (key === "ArrowRight" || key === "ArrowLeft") {
      const next = bar + (key === "ArrowRight" ? 1 : -1);
      return choose(canvas, [lane, Math.min(Math.max(next, 0), bars.length - 1)]);
    }
    const row = filled.indexOf(lane) + (key === "ArrowDown" ? 1 : -1);
    const to = filled[Math.min(Math.max(row, 0), filled.length - 1)], t = bar < 0 ? 0 : bars[bar][START];
    const near = run.lanes[to].bars.findIndex((other) => other[END] >= t);
    choose(canvas, [to, near < 0 ? run.lanes[to].bars.length - 1 : near]);
  }

  function keepInView(run) {
    const at = chosen.get(run), bar = at && run.lanes[at[0]].bars[at[1]], span = view.to - view.from;
    if (bar && (bar[START] < view.from || bar[START] > view.to)) show(bar[START] - span / 4, span);
  }

  // --- over time -----------------------------------------------------------------------------------------------------

  function drawFlow(canvas) {
    const [number, kind] = canvas.dataset.flow.split(" "), run = runs[number], flow = run.flows[kind];
    const high = 96, { ctx, width, height } = prepare(canvas, high + AXIS), s = scale(width);
    ctx.fillStyle = colours.paper;
    ctx.fillRect(0, 0, width, height);
    drawAxis(ctx, s, high);
    if (!flow) return;
    const y = (value) => high - (value / flow.most) * (high - 8), bin = run.end / flow.useful.length;
    drawScale(ctx, s, flow, y);
    ctx.save();
    ctx.beginPath();
    ctx.rect(s.left, 0, s.right - s.left, high + 1);
    ctx.clip();
    const top = flow.useful.map((v, n) => v + flow.wasted[n]);
    area(ctx, s, y, bin, top, flow.useful, pattern(ctx, colours.wasted, false));
    outline(ctx, s, y, bin, top.map((v, n) => (flow.wasted[n] > 0.004 ? v : NaN)), colours.wasted, 1, []);
    area(ctx, s, y, bin, flow.useful, null, colours.useful);
    outline(ctx, s, y, bin, flow.capacity, colours.soft, 1.5, [5, 4]);
    if (kind === "gpu") outline(ctx, s, y, bin, flow.held, colours.ink, 1.5, []);
    ctx.fillStyle = colours.ink;
    if (s.x(run.end) < s.right - 3) ctx.fillRect(s.x(run.end), 0, 2, high);
    ctx.restore();
  }

  function drawScale(ctx, s, flow, y) {
    const stride = Math.max(1, Math.ceil(flow.most / 4));
    ctx.textAlign = "right";
    ctx.textBaseline = "middle";
    for (let value = 0; value <= flow.most + 1e-6; value += stride) {
      ctx.fillStyle = colours.grid;
      ctx.fillRect(s.left, Math.round(y(value)), s.right - s.left, 1);
      ctx.fillStyle = colours.soft;
      ctx.fillText(String(value), s.left - 8, y(value));
    }
  }

  function area(ctx, s, y, bin, upper, lower, fill) {
    ctx.beginPath();
    upper.forEach((v, n) => { ctx.lineTo(s.x(n * bin), y(v)); ctx.lineTo(s.x((n + 1) * bin), y(v)); });
    for (let n = upper.length - 1; n >= 0; n--) {
      const v = lower ? lower[n] : 0;
      ctx.lineTo(s.x((n + 1) * bin), y(v)); ctx.lineTo(s.x(n * bin), y(v));
    }
    ctx.fillStyle = fill;
    ctx.fill();
  }

  function outline(ctx, s, y, bin, values, colour, width, dash) {
    ctx.beginPath();
    let down = false;
    values.forEach((v, n) => {
      if (Number.isNaN(v)) { down = false; return; }
      if (down) ctx.lineTo(s.x(n * bin), y(v)); else ctx.moveTo(s.x(n * bin), y(v));
      ctx.lineTo(s.x((n + 1) * bin), y(v));
      down = true;
    });
    ctx.strokeStyle = colour;
    ctx.lineWidth = width;
    ctx.setLineDash(dash);
    ctx.stroke();
    ctx.setLineDash([]);
  }

  // --- the phases as a table -----------------------------------------------------------------------------------------

  function fillTable(box) {
    const run = runs[box.dataset.phases], at = box.querySelector(".scroll");
    if (at.firstChild) return;
    const bars = run.lanes.flatMap((lane, n) => lane.bars.map((bar) => [nameOfLane(run, n), bar])).sort((a, b) => a[1][START] - b[1][START]);
    const table = document.createElement("table"), head = table.createTHead().insertRow(), body = table.createTBody();
    for (const text of ["Phase", "Pipeline", "Where", "Start", "End", "Outcome"]) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = text;
      head.append(cell);
    }
    for (const [where, bar] of bars.slice(0, MOST_ROWS)) {
      const row = body.insertRow(), texts = [run.names[bar[NAME]], run.pipelines[bar[PIPELINE]], where];
      for (const text of [...texts, secondsText(bar[START]), secondsText(bar[END]), run.names[bar[OUTCOME]]]) row.insertCell().textContent = text;
    }
    at.append(table);
    if (bars.length > MOST_ROWS) {
      const note = document.createElement("p");
      note.className = "note";
      note.textContent = `The first ${MOST_ROWS.toLocaleString("en")} of ${bars.length.toLocaleString("en")}; the run log has them all.`;
      at.after(note);
    }
  }

  // --- putting it together -------------------------------------------------------------------------------------------

  let queued = false;
  function redraw() {
    if (queued) return;
    queued = true;
    requestAnimationFrame(() => {
      queued = false;
      all("canvas[data-timeline]").forEach(drawTimeline);
      all("canvas[data-flow]").forEach(drawFlow);
    });
  }

  function show(from, span) {
    span = Math.min(Math.max(span, LONGEST / 2000), LONGEST);
    view.from = Math.min(Math.max(from, 0), LONGEST - span);
    view.to = view.from + span;
    redraw();
  }

  function zoom(factor, around) {
    const span = view.to - view.from, wanted = Math.min(span * factor, LONGEST);
    show(around - ((around - view.from) / span) * wanted, wanted);
  }

  function listen(canvas) {
    let dragged = null;
    canvas.addEventListener("pointerdown", (e) => { dragged = { x: e.offsetX, from: view.from }; choose(canvas, barAt(canvas, e)); });
    canvas.addEventListener("pointermove", (e) => {
      const s = scale(canvas.clientWidth);
      if (dragged && e.buttons) show(dragged.from - (s.t(e.offsetX) - s.t(dragged.x)), view.to - view.from);
      else choose(canvas, barAt(canvas, e));
    });
    for (const end of ["pointerup", "pointercancel", "pointerleave"]) canvas.addEventListener(end, () => { dragged = null; });
    canvas.addEventListener("wheel", (e) => {
      if (!e.ctrlKey && !e.metaKey) return;
      e.preventDefault();
      zoom(e.deltaY > 0 ? 1.25 : 0.8, scale(canvas.clientWidth).t(e.offsetX));
    }, { passive: false });
    canvas.addEventListener("keydown", (e) => {
      if (e.key === "+" || e.key === "-") zoom(e.key === "+" ? 0.5 : 2, (view.from + view.to) / 2);
      else if (e.key === "Escape") choose(canvas, null);
      else if (e.key.startsWith("Arrow")) { step(canvas, e.key); keepInView(runs[canvas.dataset.timeline]); }
      else return;
      e.preventDefault();
    });
  }

  readColours();
  all("canvas[data-timeline]").forEach(listen);
  all("[data-phases]").forEach((box) => box.querySelector("details").addEventListener("toggle", () => fillTable(box)));
  all("[data-zoom]").forEach((button) => button.addEventListener("click", () => {
    const what = button.dataset.zoom;
    if (what === "all") show(0, LONGEST); else zoom(what === "in" ? 0.5 : 2, (view.from + view.to) / 2);
  }));
  all("input[name=colour]").forEach((input) => input.addEventListener("change", () => {
    colourBy = input.value;
    all("[data-colour]").forEach((legend) => { legend.hidden = legend.dataset.colour !== colourBy; });
    redraw();
  }));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); redraw(); });
  let wide = 0;
  new ResizeObserver(() => { if (document.body.clientWidth !== wide) { wide = document.body.clientWidth; patterns = {}; redraw(); } }).observe(document.body);
  redraw();
})();
