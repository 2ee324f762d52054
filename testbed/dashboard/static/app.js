// The page: one moment of a run, shown everywhere at once. A standing testbed's moment is now.

import { BIN_NAMES, WanMap, bin, mbps } from "./map.js";
import { Charts, LEVELS, colourOf, isDark, shape } from "./charts.js";

const LIVE_WINDOW = 600; // seconds that stay on a live page's axis, and in its memory
const ROUNDING = 0.005; // files give some times in ms, others in ns
const RECORDS = ["frames", "syncs", "plans", "policies", "events", "sites", "auxiliary"];
const MANY_SITES = 20;
const ROUND_S = 3; // what went another way is shown so long
const $ = (id) => document.getElementById(id);

const view = { doc: null, t: 0, follow: false, playing: false, schedulers: [], root: 0, link: null, span: null };
let map, charts;

// The last record of a kind that had happened at a moment.
function lastAt(records, t) {
  let [low, high] = [0, records.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (records[middle].t <= t + 1e-9) low = middle + 1; else high = middle;
  }
  return low ? records[low - 1] : null;
}

// A frame tells of the time before it: at a moment between two, the coming one counts.
function frameAt(t) {
  const { frames } = view.doc;
  return frames.find((frame) => frame.t >= t - 1e-9) ?? frames.at(-1) ?? null;
}

// The last moment that anything is known of.
function latest() {
  const { doc } = view;
  const last = (records, key = "t") => records.reduce((most, r) => Math.max(most, r[key] ?? 0), 0);
  return Math.max(last(doc.frames), last(doc.syncs), last(doc.segments, "t1"), last(doc.sites), 0.001);
}

// The time axis. That of a live page keeps its length, so that nothing shrinks while one looks.
function span() {
  const end = latest();
  return view.doc.mode === "live" ? [Math.max(0, end - LIVE_WINDOW), Math.max(end, 60)] : [0, end];
}
view.span = span;

function node(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") made.className = value; else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

// --- what does not change with the moment -------------------------------------------------------------

function begin(doc) {
  view.doc = doc;
  $("map").replaceChildren();
  map = new WanMap($("map"), doc.network, chooseLink);
  $("title").textContent = doc.title;
  document.title = `${doc.title} - Stormbed`;
  const { sites, links, topology } = doc.network;
  $("about").textContent = `${topology}: ${sites.length} sites, ${links.length / 2} link${links.length === 2 ? "" : "s"}; ` +
    (doc.mode === "live" ? "a testbed that stands" : `${doc.world} run of ${new Date(doc.started_s * 1000).toLocaleString()}`);
  $("numbers").checked = links.length <= 60;
  $("scale").replaceChildren(...BIN_NAMES.map((name, k) => {
    const item = node("li", {}, name);
    item.style.setProperty("--c", `var(--u${k})`);
    return item;
  }));
  $("marks").replaceChildren(...Object.entries(LEVELS).map(([level, mark]) => node("li", {}, `${mark} ${level}`)));
  showVerdict();
  listSchedulers();
  $("links").tBodies[0].replaceChildren(...links.map((link, index) => {
    const button = node("button", { type: "button" }, `${sites[link.src].name} → ${sites[link.dst].name}`);
    button.addEventListener("click", () => chooseLink(index));
    const bar = node("span", { class: "bar" }, node("b"));
    return node("tr", { "data-index": index }, node("td", {}, button), node("td"), node("td"), node("td", {}, node("span"), bar));
  }));
  view.rows = [...$("links").tBodies[0].rows];
  $("sites").tBodies[0].replaceChildren(...sites.map((site) =>
    node("tr", {}, node("td", {}, site.name), node("td"), node("td"), node("td"))));
  const live = doc.mode === "live";
  for (const id of ["play", "speed-label"]) $(id).hidden = live;
  $("follow").hidden = !live;
  charts = new Charts({ sync: $("chart-sync"), traffic: $("chart-traffic"), events: $("chart-events") }, view, pick);
  listEvents();
}

function showVerdict() {
  const { fidelity, failure, notes, mode, status, world } = view.doc;
  const kind = { faithful: "good", exact: "good", unknown: "plain" }[fidelity.verdict] ?? "warn";
  $("verdict").className = `chip ${kind}`;
  $("verdict").textContent = fidelity.verdict === "exact" ? "simulated, exact" : `fidelity: ${fidelity.verdict}`;
  $("verdict").title = fidelity.reasons.join("; ");
  const words = failure ? [`The run failed: ${failure}`] : [];
  if (kind === "warn") words.push(`The network was ${fidelity.verdict}: ${fidelity.reasons.join("; ")}`);
  if (world === "emulated") words.push(...notes);
  $("problem").hidden = !words.length;
  $("problem").textContent = words.join(". ");
  if (mode === "replay") setMode("replay", status === "completed" ? "plain" : "warn", status === "completed" ? "" : `, ${status}`);
}

function setMode(text, kind, more = "") {
  $("mode").className = `chip ${kind}`;
  $("mode").textContent = text + more;
}

function listSchedulers() {
  const names = [...view.doc.segments.map((s) => s.scheduler), ...view.doc.syncs.map((s) => s.scheduler)];
  for (const name of names) if (!view.schedulers.includes(name)) view.schedulers.push(name);
  $("schedulers").replaceChildren(...view.schedulers.map((name, k) => {
    const mark = node("canvas", { width: 24, height: 24 });
    mark.style.width = mark.style.height = "12px";
    const context = mark.getContext("2d");
    context.fillStyle = colourOf(k);
    shape(context, k, 12, 12, 7);
    context.fill();
    const syncs = view.doc.syncs.filter((sync) => sync.scheduler === name).map((sync) => sync.seconds);
    const mean = syncs.length ? ` ${seconds(syncs.reduce((a, b) => a + b, 0) / syncs.length)}` : "";
    return node("li", { "data-scheduler": name }, mark, ` ${name}${mean}`);
  }));
}

function listEvents() {
  const { events } = view.doc;
  $("events").replaceChildren(...events.slice(-200).reverse().map((event) => {
    const mark = node("span", { class: event.level, title: event.level }, LEVELS[event.level]);
    return node("li", {}, node("time", {}, `${event.t.toFixed(1)} s`), mark, node("span", {}, event.text));
  }));
  if (!events.length) $("events").append(node("li", { class: "quiet" }, node("time"), "", node("span", {}, "nothing yet")));
}

// --- what does ------------------------------------------------------------------------------------------

const seconds = (value) => `${value >= 10 ? value.toFixed(1) : value.toPrecision(3)} s`;

let shownPlan, shownRoot, shownPull;

function show() {
  const { doc, t } = view;
  const frame = frameAt(t);
  map.showFrame(frame, $("numbers").checked);
  showLinks(frame);
  showSites(frame);
  showTrees();
  showAuxiliary();
  showNow();
  const [low, high] = span();
  Object.assign($("slider"), { min: low, max: high });
  $("slider").value = t;
  $("slider").setAttribute("aria-valuetext", `${t.toFixed(1)} seconds`);
  $("clock").textContent = `${t.toFixed(1)} s`;
  $("play").textContent = view.playing ? "❚❚" : "▶";
  charts.redraw();
}

function showLinks(frame) {
  const { links } = view.doc.network;
  const used = links.map((link, k) => frame ? frame.achieved_bps[k] / (frame.configured_bps[k] || 1) : 0);
  view.rows.forEach((row) => {
    const k = Number(row.dataset.index);
    row.cells[1].textContent = mbps(frame ? frame.achieved_bps[k] : 0);
    row.cells[2].textContent = mbps(frame ? frame.configured_bps[k] : links[k].rate_bps);
    const [text, bar] = row.cells[3].children;
    text.textContent = frame?.down?.includes(k) ? "cut" : `${Math.round(100 * used[k])} %`;
    bar.firstChild.className = `fill${bin(used[k])}`;
    bar.firstChild.style.width = `${Math.min(100, 100 * used[k])}%`;
    row.className = k === view.link ? "chosen" : "";
  });
  // A row that has the focus stays where it is under the reader's fingers.
  if ($("links").contains(document.activeElement)) return;
  const order = [...view.rows].sort((a, b) => used[b.dataset.index] - used[a.dataset.index] || a.dataset.index - b.dataset.index);
  if (order.some((row, k) => row !== $("links").tBodies[0].rows[k])) $("links").tBodies[0].append(...order);
}

function siteState(k) {
  const { doc, t } = view;
  const name = doc.network.sites[k].name;
  const phases = doc.phases[name];
  if (phases?.length) {
    const now = phases.findLast(([start, , , end]) => start <= t + 1e-9 && t <= end + ROUNDING);
    if (!now) return { kind: "", text: t < phases[0][0] ? "not begun" : "between" };
    if (t < now[1]) return { kind: "", text: "computes" };
    return t < now[2] ? { kind: "busy", text: "synchronises" } : { kind: "", text: "has the result" };
  }
  const row = lastAt(doc.sites, t)?.rows[k];
  if (!row) return { kind: "", text: "" };
  if (row.agent_up === false) return { kind: "lost", text: "agent is gone" };
  const cpu = row.cpu_ratio === null ? "" : `, ${row.cpu_ratio.toFixed(2)} cores`;
  return { kind: row.workers ? "busy" : "", text: (row.workers ? `${row.workers} at work` : "idle") + cpu };
}

function showSites(frame) {
  const { sites, links } = view.doc.network;
  const [sends, receives] = [sites.map(() => 0), sites.map(() => 0)];
  if (frame) links.forEach((link, k) => {
    sends[link.src] += frame.achieved_bps[k];
    receives[link.dst] += frame.achieved_bps[k];
  });
  const states = sites.map((_, k) => siteState(k));
  map.showSites(states);
  [...$("sites").tBodies[0].rows].forEach((row, k) => {
    row.cells[1].textContent = states[k].text;
    row.cells[2].textContent = mbps(sends[k]);
    row.cells[3].textContent = mbps(receives[k]);
  });
}

function showTrees() {
  const plan = lastAt(view.doc.plans, view.t);
  const pull = $("pull").checked;
  const roots = plan?.roots ?? [];
  // Of a single tree there is nothing to choose; what was chosen among several is kept for the next.
  const root = roots.length === 1 ? 1 : Math.min(view.root, roots.length);
  if (plan === shownPlan && root === shownRoot && pull === shownPull) return;
  if (plan !== shownPlan) {
    const entry = (name, share, value) => {
      const bar = node("b");
      bar.style.width = `${100 * share}%`;
      const button = node("button", { type: "button", role: "radio", "data-root": value }, name, node("i", {}, bar),
        value ? `${Math.round(100 * share)} %` : "");
      button.addEventListener("click", () => { view.root = value; show(); });
      return button;
    };
    const all = roots.length > 1 ? [entry(`all ${roots.length}`, 1, 0)] : [];
    $("roots").replaceChildren(...all, ...roots.map((root, k) => entry(root.site, root.share, k + 1)));
    $("trees-name").textContent = roots.length ? `Trees of ${plan.scheduler}` : "Trees";
    $("plan-source").textContent = !plan?.scheduler ? "No plan is in use." : roots.length ? plan.source : `${plan.scheduler} plans no trees ahead.`;
  }
  map.showTrees(root ? roots.slice(root - 1, root) : roots, pull);
  for (const button of $("roots").children) {
    const chosen = Number(button.dataset.root) === root;
    button.setAttribute("aria-checked", chosen);
    button.tabIndex = chosen ? 0 : -1;
  }
  [shownPlan, shownRoot, shownPull] = [plan, root, pull];
}

// What goes another way than its hop's own, drawn in the middle of the links that it visits.
function showAuxiliary() {
  const { doc, t } = view;
  const record = lastAt(doc.auxiliary, t);
  const flows = record && t - record.t < ROUND_S ? record.flows : [];
  map.showAuxiliary(flows);
  const said = flows.map(({ sites, chunks_per_s: rate }) =>
    node("li", {}, `${sites.map((k) => doc.network.sites[k].name).join(" → ")}: ${rate.toPrecision(2)} chunks/s`));
  if (said.length > 4) said.splice(4, said.length, node("li", {}, `and ${flows.length - 4} more`));
  $("auxiliary").hidden = !flows.length;
  $("auxiliary-list").replaceChildren(...said);
}

function showNow() {
  const { doc, t } = view;
  const segment = doc.segments.findLast((s) => s.t0 <= t + 1e-9 && t <= (s.t1 ?? Infinity) + ROUNDING);
  const sync = lastAt(doc.syncs, t);
  const policy = lastAt(doc.policies, t);
  const plan = lastAt(doc.plans, t);
  const done = doc.syncs.filter((s) => s.segment === segment?.label && s.t <= t + 1e-9).length;
  const iteration = segment?.iterations ? `${done} of ${segment.iterations}` : segment && sync ? `${sync.iteration}` : "-";
  const rows = [["Scheduler", segment?.scheduler ?? "-"],
    ["Iterations", iteration], ["Last synchronisation", sync ? seconds(sync.seconds) : "-"]];
  const accuracy = doc.syncs.findLast((s) => s.t <= t + 1e-9 && s.accuracy != null)?.accuracy;
  if (policy) rows.push(["Policy", `version ${policy.version}`]);
  else if (accuracy != null) rows.push(["Accuracy", `${(100 * accuracy).toFixed(1)} %`]);
  else rows.push(["Roots", plan ? String(plan.roots.length || "-") : "-"]);
  $("now").replaceChildren(...rows.map(([name, value]) => node("div", {}, node("dt", {}, name), node("dd", {}, value))));
}

// --- moving ---------------------------------------------------------------------------------------------

function chooseLink(index) {
  view.link = view.link === index ? null : index;
  map.choose(view.link);
  show();
}

function pick(t) {
  const [low] = span();
  const end = latest();
  view.t = Math.min(end, Math.max(low, t));
  view.follow = view.doc.mode === "live" && view.t >= end - 1e-9;
  show();
}

let ticked = 0;
function tick(now) {
  if (!view.playing) return;
  const passed = Math.min(0.2, (now - ticked) / 1000);
  ticked = now;
  view.t += passed * Number($("speed").value);
  if (view.t >= latest()) {
    view.t = latest();
    view.playing = false;
  }
  show();
  requestAnimationFrame(tick);
}

function play(on) {
  if (view.doc.mode === "live") return pick(latest());
  if (on && view.t >= latest() - 1e-6) view.t = 0;
  view.playing = on;
  ticked = performance.now();
  if (on) requestAnimationFrame(tick);
  show();
}

function nextRoot(step) {
  const count = $("roots").children.length;
  if (count < 2) return;
  view.root = (view.root + step + count) % count;
  show();
  if ($("roots").contains(document.activeElement)) $("roots").querySelector('[aria-checked="true"]').focus();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  if (charts) {
    listSchedulers();
    charts.build();
    show();
  }
}

const flip = (box) => { box.checked = !box.checked; show(); };
const KEYS = {
  " ": () => play(!view.playing), ArrowLeft: (e) => pick(view.t - (e.shiftKey ? 10 : 1)),
  ArrowRight: (e) => pick(view.t + (e.shiftKey ? 10 : 1)), Home: () => pick(0), End: () => pick(latest()),
  r: () => nextRoot(1), R: () => nextRoot(-1), p: () => flip($("pull")), n: () => flip($("numbers")),
  t: () => setTheme(isDark() ? "light" : "dark"), "?": () => $("help").showModal(),
};

function listen() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || $("help").open) return;
    const inRoots = $("roots").contains(event.target);
    if (inRoots && event.key.startsWith("Arrow")) {
      event.preventDefault();
      return nextRoot(["ArrowDown", "ArrowRight"].includes(event.key) ? 1 : -1);
    }
    // What a control does with a key itself stays its own.
    if (event.target.matches("select") || (event.key === " " && event.target.matches("button, input"))) return;
    if (event.target.matches(".scroll") && ["Home", "End"].includes(event.key)) return;
    if (!KEYS[event.key]) return;
    event.preventDefault();
    KEYS[event.key](event);
  });
  $("play").addEventListener("click", () => play(!view.playing));
  $("follow").addEventListener("click", () => pick(latest()));
  $("slider").addEventListener("input", () => pick(Number($("slider").value)));
  for (const id of ["pull", "numbers"]) $(id).addEventListener("change", show);
  $("theme").addEventListener("click", KEYS.t);
  $("keys").addEventListener("click", KEYS["?"]);
}

// --- a standing testbed -----------------------------------------------------------------------------------

function take(update) {
  const { doc } = view;
  for (const segment of update.segments ?? []) {
    // A segment comes again when it ends.
    const known = doc.segments.findIndex((s) => s.label === segment.label && s.t0 === segment.t0);
    if (known < 0) doc.segments.push(segment); else doc.segments[known] = segment;
  }
  for (const kind of RECORDS) doc[kind].push(...(update[kind] ?? []));
  const oldest = span()[0];
  for (const kind of ["frames", "syncs", "sites", "events"]) {
    const keep = doc[kind].findIndex((record) => record.t >= oldest);
    if (keep > 0) doc[kind].splice(0, keep);
  }
  // Of plans and policies the one that still holds is kept, however old.
  for (const kind of ["plans", "policies"]) while (doc[kind].length > 1 && doc[kind][1].t < oldest) doc[kind].shift();
  while (doc.segments.length && (doc.segments[0].t1 ?? Infinity) < oldest) doc.segments.shift();
  if (update.syncs?.length || update.segments?.length) listSchedulers();
  if (update.events?.length) listEvents();
  if (view.follow) view.t = latest();
  charts.refresh();
  show();
}

function follow() {
  const stream = new EventSource("/api/stream");
  let before = false;
  stream.addEventListener("open", () => {
    if (before) return location.reload(); // what was missed in between is in the document
    before = true;
    setMode("live", "good");
  });
  stream.addEventListener("error", () => setMode("not connected", "bad"));
  stream.addEventListener("update", (event) => take(JSON.parse(event.data)));
  stream.addEventListener("behind", () => location.reload());
  stream.addEventListener("gone", (event) => {
    stream.close();
    setMode("testbed is down", "warn");
    $("problem").textContent = JSON.parse(event.data).why;
    $("problem").hidden = false;
  });
}

async function start() {
  const query = new URLSearchParams(location.hash.slice(1));
  setTheme(query.get("theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  const answer = await fetch("/api/document");
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
  begin(await answer.json());
  listen();
  const live = view.doc.mode === "live";
  view.follow = live;
  // A link may name the moment and the root: #t=12.5&root=2
  // All trees of a large network at once are a thicket: it begins with the first.
  view.root = Number(query.get("root") ?? (view.doc.network.sites.length > MANY_SITES ? 1 : 0));
  view.t = live ? latest() : Number(query.get("t") ?? 0);
  show();
  if (live) follow();
  else if (!query.has("t") && !matchMedia("(prefers-reduced-motion: reduce)").matches) play(true);
  document.body.dataset.ready = "true";
}

start().catch((error) => {
  $("problem").textContent = `The page could not be loaded: ${error.message}`;
  $("problem").hidden = false;
});
