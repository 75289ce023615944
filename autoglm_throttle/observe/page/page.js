"use strict";
// Draws the page from data.json, then from one message per step. All data are text: no markup is made of them.
const MAX_FAILURES = 2, STALE_STEPS = 3, HEIGHT_PX = 200, ROW = 24, WIDTH = 1000;
const SVG = "http://www.w3.org/2000/svg", DASHES = [[], [8, 4], [2, 4], [8, 4, 2, 4]];
const NOT_KNOWN = "–";
const plots = new Map(); // id of a plot -> its values and its drawing
const structures = new Map(); // id of a section -> its structure
const byId = (id) => document.getElementById(id);
let latest = null, failures = 0, polling = 0, source = null;

function element(name, properties = {}, children = []) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}
function drawn(name, attributes, children = []) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text; // an equal text must not be announced again
}
const shown = (name, value, unit) => `${name}: ${value === null ? NOT_KNOWN : `${value} ${unit}`.trim()}`;
const last = (values) => values[values.length - 1];

// Sections: made once, then only their texts change, so that focus, selection and scrolling stay.
const pair = ([name]) => element("div", {}, [element("dt", { textContent: name }), element("dd")]);
const headCell = (textContent) => element("th", { scope: "col", textContent });
const row = (cells) =>
  element("tr", {}, cells.map((_, index) => (index ? element("td") : element("th", { scope: "row" }))));
function tableOf({ caption, head, rows }) {
  const table = element("table", {}, [
    element("caption", { textContent: caption }),
    element("thead", {}, [element("tr", {}, head.map(headCell))]),
    element("tbody", {}, rows.map(row)),
  ]);
  return element("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: caption }, [table]);
}
function sectionOf({ id, title, pairs, tables }, itsPlots) {
  const made = element("section", { id }, [element("h2", { id: `${id}-title`, textContent: title })]);
  made.setAttribute("aria-labelledby", `${id}-title`);
  if (pairs.length) made.append(element("dl", {}, pairs.map(pair)));
  if (itsPlots.length) made.append(element("div", { className: "plots" }, itsPlots.map(figureOf)));
  made.append(...tables.map(tableOf));
  return made;
}
function fill({ id, pairs, tables }) {
  const section = byId(id), values = section.querySelectorAll("dd"), made = section.querySelectorAll("table");
  pairs.forEach(([, text], index) => setText(values[index], text));
  tables.forEach(({ caption, rows, shades }, index) => {
    setText(made[index].caption, caption);
    const cells = made[index].tBodies[0].querySelectorAll("th, td");
    rows.flat().forEach((text, position) => setText(cells[position], text));
    shades?.flat().forEach((shade, position) => { cells[position].className = shade ? `shade${shade}` : ""; });
  });
}
const plotsOf = (section, all) => all.filter((plot) => plot.section === section);
/** Everything of a section but its texts and values: if it changes, the section is made anew. */
const structureOf = ({ id, pairs, tables }, all) => JSON.stringify([
  id, pairs.map(([name]) => name), tables.map(({ head, rows }) => [head, rows.length]),
  plotsOf(id, all).map(({ id: plot, series }) => [plot, series.map(({ name }) => name)]),
]);
/** Whether a message, which has no configuration, differs from what is shown by texts and values alone. */
const fits = ({ sections, plots: all }) =>
  sections.every((section) => structures.get(section.id) === structureOf(section, all)) &&
  [...structures.keys()].every((id) => id === "configuration" || sections.some((section) => section.id === id));

// Plots: lines by uPlot, with a common cursor; a strip of states as SVG.
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
function figureOf(plot) {
  const { id, title, unit, kind, top, bands, series } = plot;
  const items = series.map((_, index) => element("li", {}, [
    element("span", { className: `key s${index % 8}` }), element("span")]));
  const drawing = element("div", { className: kind === "strip" ? "strip" : "drawing", role: "img" });
  const axis = [...(top ? [`0 to ${top} ${unit}`] : []), ...bands.map(([, text]) => text)].join("; ");
  return element("figure", { id: `plot-${id}` }, [
    element("figcaption", { textContent: unit ? `${title}, ${unit}` : title }),
    drawing,
    element("p", { className: "axis", textContent: kind === "line" ? axis : "" }),
    element("ul", { className: `legend${kind === "strip" ? " names" : ""}` }, items),
  ]);
}
function legend({ id, title, unit }, series) {
  const figure = byId(`plot-${id}`), texts = series.map(({ name, values }) => shown(name, last(values), unit));
  figure.querySelectorAll("li > span:last-child").forEach((item, index) => setText(item, texts[index]));
  figure.querySelector("[role=img]").ariaLabel = `${title}. ${texts.join(", ")}`;
}
/** Columns of uPlot: the times, the values, and the bands as level lines. */
function columns({ bands, series }) {
  const length = series[0].values.length, { at, step_s: step } = latest;
  const times = Array.from({ length }, (_, index) => at - (length - 1 - index) * step);
  return [times, ...series.map(({ values }) => values), ...bands.map(([level]) => times.map(() => level))];
}
function startLines(plot) {
  const { id, top, bands, series, unit } = plot, box = byId(`plot-${id}`).querySelector(".drawing");
  const axis = { stroke: color("soft"), grid: { stroke: color("grid") }, ticks: { stroke: color("rule") } };
  return new uPlot({
    width: box.clientWidth, height: HEIGHT_PX, legend: { show: false },
    cursor: { sync: { key: "steps" }, y: false },
    scales: { y: { range: (_, low, high) => [0, top ?? (high > 0 ? high * 1.05 : 1)] } },
    axes: [axis, { ...axis, size: 56, values: (_, ticks) => ticks.map((tick) => `${tick} ${unit}`.trim()) }],
    series: [{}, ...series.map(({ name }, index) => ({
      label: name, stroke: color(`s${index % 8}`), width: 2, dash: DASHES[index % 4], points: { show: false },
    })), ...bands.map(([, label]) => ({ label, stroke: color("soft"), width: 1, dash: [4, 4], points: { show: false } }))],
  }, columns(plot), box);
}
function drawStrip({ id, series }) {
  const rects = series.flatMap(({ name, values }, index) => {
    const width = WIDTH / values.length, runs = [];
    values.forEach((state, step) => {
      if (step && state === values[step - 1]) last(runs).length += 1;
      else runs.push({ state, start: step, length: 1 });
    });
    return runs.filter(({ state }) => state !== null).map(({ state, start, length }) =>
      drawn("rect", { class: `state ${state}`, x: start * width, y: index * ROW, width: length * width,
        height: ROW - 4 }, [drawn("title", {}, [shown(name, state, "")])]));
  });
  const height = ROW * series.length;
  byId(`plot-${id}`).querySelector(".strip").replaceChildren(drawn("svg", {
    class: "plot", viewBox: `0 0 ${WIDTH} ${height}`, height, preserveAspectRatio: "none", "aria-hidden": "true",
  }, rects));
}
function drawPlots() {
  for (const known of plots.values()) {
    const { plot } = known;
    if (plot.kind === "strip") drawStrip(plot);
    else if (known.lines) known.lines.setData(columns(plot));
    else known.lines = startLines(plot);
    legend(plot, plot.series);
  }
}
function forgetDrawings() {
  for (const known of plots.values()) {
    known.lines?.destroy();
    known.lines = null;
  }
}

// Documents.
function show(whole) {
  const shownNow = byId("sections"), before = new Map(structures);
  forgetDrawings();
  plots.clear();
  structures.clear();
  for (const plot of whole.plots) plots.set(plot.id, { plot, lines: null });
  for (const section of whole.sections) structures.set(section.id, structureOf(section, whole.plots));
  for (const node of [...shownNow.children])
    if (before.get(node.id) !== structures.get(node.id)) node.remove();
  whole.sections.forEach((section, index) => { // those that stay are not moved, which would take their focus
    if (shownNow.children[index]?.id !== section.id)
      shownNow.insertBefore(sectionOf(section, plotsOf(section.id, whole.plots)), shownNow.children[index] ?? null);
  });
  update(whole);
}
function update(document_) {
  latest = document_;
  document_.sections.forEach(fill);
  setText(byId("sentence"), document_.sentence);
  document.title = document_.sentence;
  drawPlots();
  showAge();
}
/** Add the newest values; a message that does not follow the last one needs the whole document. */
async function receive(message) {
  if (latest && message.step === latest.step) return;
  const follows = latest && message.step === latest.step + 1 && message.process === latest.process;
  if (!follows || !fits(message)) return load();
  for (const { id, series } of message.plots) {
    plots.get(id).plot.series.forEach(({ values }, index) => {
      values.push(series[index].values[0]);
      if (values.length > message.points) values.shift();
    });
  }
  update(message);
}
async function load() {
  const answer = await fetch("data.json", { cache: "no-store" });
  if (!answer.ok) throw new Error(`data.json: ${answer.status}`);
  show(await answer.json());
}
function showAge() {
  const age = latest ? Date.now() / 1000 - latest.at : 0, limit = latest ? STALE_STEPS * latest.step_s : 0;
  const time = latest ? new Date(latest.at * 1000).toLocaleTimeString() : NOT_KNOWN;
  byId("age").className = age > limit ? "stale" : "";
  setText(byId("age"), age > limit ? `Stale: no data since ${time}` : `As of ${time}`);
}

// Transport: events, or polling after two failures in a row.
function listen() {
  if (document.hidden || polling || source) return;
  source = new EventSource("events");
  source.onmessage = ({ data }) => {
    failures = 0;
    receive(JSON.parse(data)).catch(showAge);
  };
  source.onerror = () => {
    failures += 1; // a stream that ended after a message begins anew by itself, and does not count
    if (failures < MAX_FAILURES && source.readyState !== EventSource.CLOSED) return;
    stop();
    polling = setInterval(() => load().catch(showAge), (latest?.step_s ?? 5) * 1000);
  };
}
function stop() {
  source?.close();
  source = null;
  clearInterval(polling);
  polling = 0;
}
function start() {
  if (!byId("sections")) return; // the login
  load().catch(showAge).finally(listen);
}
document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  forgetDrawings();
  drawPlots();
});
new ResizeObserver(() => {
  for (const { plot, lines } of plots.values())
    lines?.setSize({ width: byId(`plot-${plot.id}`).querySelector(".drawing").clientWidth, height: HEIGHT_PX });
}).observe(byId("main"));
setInterval(showAge, 1000);
start();
