// The WAN as a drawing: every direction of every link, the trees over it, the sites.

const SVG = "http://www.w3.org/2000/svg";
const BINS = [0.02, 0.4, 0.75, 0.95];
export const BIN_NAMES = ["idle", "to 40 %", "to 75 %", "to 95 %", "full"];
const ROOMY = 20; // sites; beyond, everything is drawn smaller
let WIDEST, LANE, TREE_LANE, RADIUS;

function size(sites) {
  const scale = Math.max(0.5, Math.min(1, Math.sqrt(ROOMY / sites)));
  WIDEST = 9 * scale;
  LANE = 6.5 * scale; // from the middle of a link to each direction
  TREE_LANE = 15 * scale;
  RADIUS = 11 * scale;
}

export const bin = (ratio) => BINS.findIndex((limit) => ratio < limit) < 0 ? 4 : BINS.findIndex((limit) => ratio < limit);

function element(name, attributes, parent) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (parent) parent.append(made);
  return made;
}

// A line from one point to another, moved to its right, that ends before the sites.
function lane(a, b, offset, gap) {
  const length = Math.hypot(b.x - a.x, b.y - a.y) || 1;
  const [dx, dy] = [(b.x - a.x) / length, (b.y - a.y) / length];
  const [nx, ny] = [-dy * offset, dx * offset];
  return {
    x1: a.x + dx * gap + nx, y1: a.y + dy * gap + ny, x2: b.x - dx * gap + nx, y2: b.y - dy * gap + ny, dx, dy,
  };
}

function arrow(l, at, size) {
  const [x, y] = [l.x1 + (l.x2 - l.x1) * at, l.y1 + (l.y2 - l.y1) * at];
  const point = (along, aside) => `${x + l.dx * along - l.dy * aside},${y + l.dy * along + l.dx * aside}`;
  return [point(size, 0), point(-size * 0.8, size * 0.85), point(-size * 0.8, -size * 0.85)].join(" ");
}

// What of the canvas is in use; a network that is one line needs no height.
function frameOf({ sites, width }) {
  const heights = sites.map((site) => site.y);
  const [low, high] = [Math.min(...heights) - 55, Math.max(...heights) + 50];
  const more = Math.max(0, 200 - (high - low)) / 2;
  return `0 ${low - more} ${width} ${high - low + 2 * more}`;
}

const ends = (l) => ({ x1: l.x1, y1: l.y1, x2: l.x2, y2: l.y2 });

export class WanMap {
  constructor(svg, network, onLink) {
    size(network.sites.length);
    this.svg = svg;
    this.network = network;
    svg.setAttribute("viewBox", frameOf(network));
    svg.setAttribute("aria-label",
      `The network ${network.topology}: ${network.sites.length} sites, ${network.links.length} directed links`);
    this.layer = Object.fromEntries(["links", "trees", "auxiliary", "rates", "sites"].map((name) => [name, element("g", {}, svg)]));
    this.between = new Map();
    this.drawLinks(onLink);
    this.drawSites();
  }

  drawLinks(onLink) {
    const { sites, links } = this.network;
    this.links = links.map((link, index) => {
      this.between.set(`${link.src}>${link.dst}`, index);
      const line = lane(sites[link.src], sites[link.dst], LANE, RADIUS + 4);
      const group = element("g", { class: "link", "data-link": `${sites[link.src].name}>${sites[link.dst].name}` },
        this.layer.links);
      const bed = element("line", { class: "bed", ...ends(line) }, group);
      const load = element("line", { class: "load u0", ...ends(line) }, group);
      const head = element("polygon", { class: "u0", points: arrow(line, 0.62, 6) }, group);
      const hit = element("line", { class: "hit", ...ends(line) }, group);
      hit.addEventListener("click", () => onLink(index));
      const title = element("title", {}, group);
      // Far enough aside that the figures, about 50 by 12, touch neither the link nor a tree along it.
      const aside = TREE_LANE - LANE + 5 + 25 * Math.abs(line.dy) + 6 * Math.abs(line.dx);
      const [nx, ny] = [-line.dy * aside, line.dx * aside];
      const rate = element("text", { class: "rate", x: line.x1 + (line.x2 - line.x1) * 0.3 + nx,
        y: line.y1 + (line.y2 - line.y1) * 0.3 + ny }, this.layer.rates);
      return { group, bed, load, head, title, rate };
    });
  }

  drawSites() {
    this.sites = this.network.sites.map((site) => {
      const group = element("g", { class: "site", "data-site": site.name }, this.layer.sites);
      const ring = element("circle", { class: "ring", cx: site.x, cy: site.y, r: RADIUS + 5, visibility: "hidden" }, group);
      element("circle", { cx: site.x, cy: site.y, r: RADIUS }, group);
      const label = element("text", { x: site.x, y: site.y - RADIUS - 9 }, group);
      label.textContent = site.name;
      const title = element("title", {}, group);
      return { group, ring, title };
    });
  }

  // A frame: what every direction is configured to and carries.
  showFrame(frame, numbers) {
    const { sites, links } = this.network;
    const configured = frame ? frame.configured_bps : links.map((link) => link.rate_bps);
    const widest = Math.max(...configured, 1);
    const down = new Set(frame?.down ?? []);
    this.links.forEach((drawn, index) => {
      const [rate, carried] = [configured[index], frame ? frame.achieved_bps[index] : 0];
      const ratio = rate ? carried / rate : 0;
      const width = 2.5 + (WIDEST - 2.5) * Math.sqrt(rate / widest);
      const kind = down.has(index) ? "down" : `u${bin(ratio)}`;
      drawn.bed.style.strokeWidth = width;
      drawn.load.style.strokeWidth = down.has(index) ? 3 : Math.max(1.5, width * Math.min(1, ratio));
      drawn.load.setAttribute("class", `load ${kind}`);
      drawn.head.setAttribute("class", kind);
      const { src, dst } = links[index];
      const said = down.has(index) ? "carries nothing" :
        `${mbps(carried)} of ${mbps(rate)} Mbit/s, ${Math.round(100 * ratio)} %`;
      drawn.title.textContent = `${sites[src].name} to ${sites[dst].name}: ${said}` +
        (links[index].delay_s ? `, ${(1000 * links[index].delay_s).toFixed(1)} ms` : "");
      drawn.rate.textContent = numbers ? `${mbps(carried)}/${mbps(rate)}` : "";
    });
  }

  showSites(states) {
    this.sites.forEach((drawn, k) => {
      drawn.group.setAttribute("class", `site ${states[k].kind}`);
      drawn.title.textContent = `${this.network.sites[k].name}: ${states[k].text}`;
    });
  }

  choose(index) {
    this.links.forEach((drawn, k) => drawn.group.classList.toggle("chosen", k === index));
  }

  // Trees of these roots: each child to its parent, and where results go when that is asked for.
  showTrees(roots, withPull) {
    this.layer.trees.replaceChildren();
    const names = new Map(this.network.sites.map((site, k) => [site.name, k]));
    const push = new Map();
    const pull = new Map();
    const add = (edges, from, to, share) => {
      if (to !== null && to !== undefined) edges.set(`${names.get(from)}>${names.get(to)}`,
        (edges.get(`${names.get(from)}>${names.get(to)}`) ?? 0) + share);
    };
    for (const root of roots) {
      for (const [child, parent] of Object.entries(root.parents)) add(push, child, parent, root.share);
      if (withPull) for (const [child, parent] of Object.entries(root.pull_parents ?? root.parents)) {
        if (parent !== null) add(pull, parent, child, root.share);
      }
    }
    const most = Math.max(...push.values(), ...pull.values(), 1e-9);
    const single = roots.length === 1;
    for (const [edges, kind, offset] of [[push, "push", TREE_LANE], [pull, "pulls", TREE_LANE + 6]]) {
      for (const [edge, share] of edges) this.drawEdge(edge, kind, offset, single ? 2.4 : 1 + 3 * share / most);
    }
    const chosen = new Set(roots.map((root) => names.get(root.site)));
    this.sites.forEach((drawn, k) => drawn.ring.setAttribute("visibility", chosen.has(k) ? "visible" : "hidden"));
  }

  // Chunks that take another path than their hop's own: every link of that path, along its middle.
  showAuxiliary(flows) {
    const total = new Map();
    for (const { sites, chunks_per_s: rate } of flows) {
      for (let k = 1; k < sites.length; k += 1) {
        const hop = `${sites[k - 1]}>${sites[k]}`;
        total.set(hop, (total.get(hop) ?? 0) + rate);
      }
    }
    const most = Math.max(...total.values(), 1e-9);
    this.layer.auxiliary.replaceChildren();
    for (const [hop, rate] of total) {
      const [u, v] = hop.split(">").map(Number);
      const [a, b] = [this.network.sites[u], this.network.sites[v]];
      const line = lane(a, b, 1.5, RADIUS + 4);
      const group = element("g", { "data-auxiliary": `${a.name}>${b.name}` }, this.layer.auxiliary);
      element("line", { class: "aux", ...ends(line), "stroke-width": 1.5 + 1.5 * rate / most }, group);
      element("polygon", { class: "aux", points: arrow(line, 0.8, 5) }, group);
    }
  }

  drawEdge(edge, kind, offset, width) {
    const [u, v] = edge.split(">").map(Number);
    const [a, b] = [this.network.sites[u], this.network.sites[v]];
    const line = lane(a, b, offset, RADIUS + 6);
    const group = element("g", { "data-edge": `${a.name}>${b.name}` }, this.layer.trees);
    if (this.between.has(edge)) {
      element("line", { class: kind, ...ends(line), "stroke-width": width }, group);
      element("polygon", { class: kind, points: arrow(line, 0.97, 6) }, group);
      return;
    }
    // No link joins them: the network relays it, so it is drawn aside as a bow.
    const bow = lane(a, b, 0, RADIUS + 6);
    const aside = 0.13 * Math.hypot(b.x - a.x, b.y - a.y);
    const [mx, my] = [(bow.x1 + bow.x2) / 2 - bow.dy * aside, (bow.y1 + bow.y2) / 2 + bow.dx * aside];
    element("path", { class: kind, d: `M${bow.x1},${bow.y1} Q${mx},${my} ${bow.x2},${bow.y2}`, "stroke-width": width }, group);
    const turn = Math.hypot(bow.x2 - mx, bow.y2 - my) || 1;
    const tip = { ...bow, x1: mx, y1: my, dx: (bow.x2 - mx) / turn, dy: (bow.y2 - my) / turn };
    element("polygon", { class: kind, points: arrow(tip, 0.97, 6) }, group);
  }
}

export function mbps(bps) {
  const value = bps / 1e6;
  return value >= 99.95 || value === 0 ? value.toFixed(0) : value.toFixed(1);
}
