// Shows the state that the broker sends. Everything from the broker becomes text or the value of a number, never HTML:
// names come from other clusters.
"use strict";

const marks = {well: "✓", unknown: "?", warning: "!", error: "✗"};
const silence = 6000; // without a word for so long, the broker is not there, and what is shown may be wrong
const byId = id => document.getElementById(id);
let heard = 0, alive = 0, every = 1, findings = null, picture = "";

function make(tag, properties, ...children) {
  const e = Object.assign(document.createElement(tag), properties);
  e.append(...children);
  return e;
}

// Each section is a heading, a table in a box that scrolls by keyboard, and what is not shown.
for (const section of document.querySelectorAll("section[data-table]")) {
  const name = section.dataset.table;
  section.id = name;
  section.setAttribute("aria-labelledby", name + "-title");
  const head = make("tr", {}, ...section.dataset.columns.split(",").map(c => make("th", {scope: "col", textContent: c})));
  const box = make("div", {className: "scroll", tabIndex: 0}, make("table", {}, make("thead", {}, head), make("tbody", {})));
  box.setAttribute("role", "region");
  box.setAttribute("aria-labelledby", name + "-title");
  section.append(make("h2", {id: name + "-title", textContent: section.dataset.title}), box,
    make("p", {className: "more"}));
}

function text(node, value) {
  value = value === undefined || value === null || value === "" ? "-" : String(value);
  if (node.textContent !== value) node.textContent = value;
}

// fill puts rows into a table. Rows and cells stay, so that a selection and the place of a reader stay.
function fill(name, rows, more) {
  const section = byId(name), body = section.querySelector("tbody");
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((cells, i) => {
    const row = body.rows[i] || body.insertRow();
    cells.forEach((cell, j) => {
      const td = row.cells[j] || row.insertCell();
      const {value, name: className, course} = typeof cell === "object" && cell !== null ? cell : {value: cell};
      td.className = className || "";
      if (course) draw(td, course); else text(td, value);
    });
  });
  section.querySelector(".scroll").hidden = rows.length === 0;
  let note = rows.length === 0 ? section.dataset.none : "";
  if (more > 0) note += " and " + more + " more, which are not shown";
  section.querySelector(".more").textContent = note;
}

function draw(td, seconds) {
  const key = seconds.length + ":" + seconds.slice(-1) + ":" + seconds[0];
  if (td.dataset.key === key) return;
  td.dataset.key = key;
  const most = Math.max(...seconds, 0.001), svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "course");
  svg.setAttribute("viewBox", "0 0 360 32");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  let run = [];
  const flush = () => {
    if (run.length === 1) run.push(run[0].replace(/^[\d.]+/, x => String(Number(x) + 1)));
    if (run.length > 0) {
      const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
      line.setAttribute("points", run.join(" "));
      line.setAttribute("vector-effect", "non-scaling-stroke");
      svg.append(line);
    }
    run = [];
  };
  seconds.forEach((s, i) => {
    if (s < 0) flush(); else run.push((360 - seconds.length + i) + "," + (30 - 28 * s / most).toFixed(1));
  });
  flush();
  td.replaceChildren(svg);
}

const seconds = s => s < 0 ? "-" : s < 1 ? Math.round(s * 1000) + "ms" : s.toFixed(1) + "s";
const bytes = n => {
  if (!n) return "-";
  const units = ["B/s", "kB/s", "MB/s", "GB/s"];
  let i = 0;
  for (; n >= 1000 && i < units.length - 1; i++) n /= 1000;
  return (n < 10 && i > 0 ? n.toFixed(1) : Math.round(n)) + " " + units[i];
};
const clock = at => new Date(at).toLocaleTimeString();
const state = s => ({value: marks[s] + " " + s, name: s in marks ? s : "unknown"});
const wide = value => ({value, name: "wide"});

function show(v) {
  const m = v.mesh;
  text(byId("verdict"), (m.well ? "✓ " : "✗ ") + m.verdict);
  byId("verdict").className = m.well ? "well" : "error";
  const own = m.clusters.find(c => c.asked) || {name: "?", parts: []};
  const part = (own.parts || [])[0] || {};
  const mc = own.multiCluster;
  text(byId("when"), "broker of " + own.name + ", " + part.version + ", up " + part.up + "; " + own.agents + " of " +
    own.nodes + " nodes have an agent; " + (mc ? "ServiceExports here " + mc.exports + ", ServiceImports " + mc.imports +
    ", conflicts " + mc.conflicts + "; " : "") + "as of " + clock(v.at) +
    (v.standby ? "; a standby knows little: open the page of the leader, " + (v.leader || "which is not known") : ""));
  document.title = (m.well ? "✓ " : "✗ ") + own.name + " · semaphore";

  const all = m.findings || [];
  fill("findings", all.map(f => [state(f.level), f.code, wide((f.first || [f.meaning]).join("; ")), f.count, f.side,
    {value: f.command, name: "command"}]), v.more.findings);
  const codes = all.map(f => f.code + (f.cluster ? " of " + f.cluster : "")).join(", ");
  if (codes !== findings) { // not each second: a screen reader reads it
    text(byId("announce"), all.length === 0 ? "No findings" : "Findings: " + codes);
    findings = codes;
  }
  const kind = (l, k) => l.kinds ? l.kinds[k] || 0 : "-";
  fill("links", m.links === null ? [] : m.links.map((l, i) => [state(v.linkStates[i]), l.at, l.from, l.state, l.age, l.lag,
    kind(l, "node"), kind(l, "service"), kind(l, "endpointslice"), kind(l, "setmember"), l.exports || 0, l.refused, l.retained,
    l.nodes > 0 ? l.talking + "/" + l.nodes : "-", l.silent, l.handshake, bytes(l.sentPerSecond),
    bytes(l.receivedPerSecond)]), v.more.links);
  fill("pairs", (m.silentPairs || []).map(p => [p.node, p.remote, p.for, wide(p.reason)]), v.more.pairs);
  fill("nodes", (v.nodes || []).map(n => [n.name, n.attached ? "attached" : {value: "✗ not attached", name: "error"},
    n.since, n.devices, n.behind]), v.more.nodes);
  const made = s => s.conflict ? {value: "✗ ServiceImport: " + s.conflict, name: "warning"} :
    s.imported ? "ServiceImport" : s.global ? "global" : "mirror";
  fill("services", (v.services || []).map(s => [s.namespace, s.name, made(s),
    wide((s.clusters || []).map(c => c.cluster + " " + c.ready + "/" + c.endpoints + (c.drained ? " (" + c.drained +
      " drained)" : "") + (c.gone ? " (gone)" : c.inUse ? "" : " (not used)")).concat(s.ownName || []).join(", "))]), v.more.services);
  fill("traffic", (m.traffic || []).map(t => [t.service, bytes(t.sentPerSecond), bytes(t.receivedPerSecond), t.connections]),
    v.more.traffic);
  fill("sets", (v.sets || []).map(s => [s.cluster, s.namespace, s.name, s.pods, s.missing, wide(s.problem)]), v.more.sets);
  fill("lag", (v.lag || []).map(s => [s.cluster, seconds(s.seconds[s.seconds.length - 1]),
    seconds(Math.max(...s.seconds)), {course: s.seconds}]), v.more.lag);
  fill("events", (v.events || []).map(e => [clock(e.at), e.source, e.action, wide(e.object), wide(e.detail)]), v.more.events);

  if (v.picture !== picture) {
    picture = v.picture;
    byId("map").src = "mesh.svg?" + encodeURIComponent(picture);
    byId("map").alt = "The clusters and their connections. " + m.verdict;
  }
}

// lost says whether the broker is not there, or only slow: then it sends beats, and states at longer intervals. The words
// stay the same from one state to the next, as a screen reader reads each change of them.
function lost() {
  const now = Date.now(), dead = now - alive > silence;
  let words = "";
  if (dead) {
    words = "The broker does not answer since " + clock(alive) + ": what is shown may be wrong.";
  } else if (now - heard > Math.max(silence, 1500 * every)) {
    words = "The broker is slow: this is its state of " + clock(heard) + ", and it still reads the next one.";
  } else if (1000 * every > silence) {
    words = "The broker is slow: it sends its state every " + Math.round(every) + " s.";
  }
  document.body.classList.toggle("lost", dead);
  const e = byId("lost");
  if (e.textContent !== words) e.textContent = words;
  e.hidden = words === "";
}

const stream = new EventSource("state");
stream.onmessage = event => {
  const v = JSON.parse(event.data);
  heard = alive = Date.now();
  every = v.every;
  show(v);
  lost();
};
stream.addEventListener("beat", () => {
  alive = Date.now();
  lost();
});
setInterval(lost, 1000);
heard = alive = Date.now();
