// Three charts over one time axis: synchronisations, what the WAN carries, events.

const LIGHT = ["#0072b2", "#d55e00", "#00805c", "#b04a8c", "#7a5c00", "#3d9bd1", "#5b5bd6", "#8a3b12"];
const DARK = ["#56b4e9", "#ff9d3b", "#38cfa0", "#ef9fd0", "#f0e442", "#9ec9ff", "#b3a6ff", "#e0a080"];
export const LEVELS = { info: "●", change: "◆", warning: "▲", failure: "✕" };
const LEFT = 76; // one width of the axis at the left, so that times stand above each other
const RIGHT = 14;

export const isDark = () => document.documentElement.dataset.theme === "dark";
export const colourOf = (place) => (isDark() ? DARK : LIGHT)[place % LIGHT.length];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// One shape a scheduler, so that colour is never all that tells them apart.
export function shape(context, place, x, y, r) {
  const corners = [0, 4, 3, 4, 5, 6, 3, 8][place % 8];
  const turn = [0, Math.PI / 4, -Math.PI / 2, 0, -Math.PI / 2, 0, Math.PI / 2, 0][place % 8];
  context.beginPath();
  if (!corners) context.arc(x, y, r, 0, 2 * Math.PI);
  for (let k = 0; k < corners; k++) {
    const angle = turn + k * 2 * Math.PI / corners;
    context.lineTo(x + 1.25 * r * Math.cos(angle), y + 1.25 * r * Math.sin(angle));
  }
  context.closePath();
}

export class Charts {
  constructor(nodes, view, onPick) {
    this.nodes = nodes;
    this.view = view; // {doc, t, span(), schedulers}
    this.onPick = onPick;
    this.build();
    new ResizeObserver(() => this.resize()).observe(nodes.sync);
  }

  base(node, height, extra) {
    const axis = { stroke: css("--quiet"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false },
      font: '12px system-ui, "DejaVu Sans", sans-serif' };
    return {
      width: Math.max(200, node.clientWidth), height, legend: { show: false }, padding: [8, RIGHT, 0, 0],
      cursor: { sync: { key: "time" }, drag: { x: false, y: false }, y: false, points: { show: false } },
      scales: { x: { time: false, range: () => this.view.span() }, ...extra.scales },
      axes: [{ ...axis, size: extra.times ? 26 : 6, gap: 2,
               values: (u, splits) => extra.times ? splits.map((t) => `${+t.toFixed(2)} s`) : splits.map(() => "") },
             { ...axis, size: LEFT, gap: 6, ...extra.left }],
      series: extra.series,
      hooks: { draw: [(u) => extra.draw?.(u), (u) => this.drawNow(u)],
               ready: [(u) => u.over.addEventListener("click", () => this.onPick(u.posToVal(u.cursor.left, "x")))] },
    };
  }

  build() {
    const { sync, traffic, events } = this.nodes;
    for (const node of [sync, traffic, events]) node.replaceChildren();
    const top = (u, low, high) => [0, (high || 1) * 1.12];
    this.sync = new uPlot(this.base(sync, 150, {
      scales: { y: { range: top } }, left: { values: (u, s) => s.map((v) => `${+v.toFixed(3)} s`) },
      series: [{}, ...this.view.schedulers.map((name, k) => ({ label: name, stroke: colourOf(k), width: 1.5,
        spanGaps: false, points: { show: false } }))],
      draw: (u) => this.drawShapes(u),
    }), this.syncData(), sync);
    this.traffic = new uPlot(this.base(traffic, 110, {
      scales: { y: { range: top } }, left: { values: (u, s) => s.map((v) => rate(v)) },
      series: [{}, { stroke: css("--u2"), fill: `${css("--u2")}33`, width: 1.5, points: { show: false } },
        { stroke: css("--quiet"), dash: [5, 4], width: 1.2, points: { show: false } }],
    }), this.trafficData(), traffic);
    this.events = new uPlot(this.base(events, 92, {
      times: true, scales: { y: { range: () => [0, 1] } },
      left: { values: (u, s) => s.map(() => ""), grid: { show: false } },
      series: [{}, { points: { show: false }, stroke: "transparent" }], draw: (u) => this.drawEvents(u),
    }), this.eventData(), events);
  }

  refresh() {
    if (this.sync.series.length !== this.view.schedulers.length + 1) return this.build();
    this.sync.setData(this.syncData());
    this.traffic.setData(this.trafficData());
    this.events.setData(this.eventData());
  }

  redraw() {
    for (const chart of [this.sync, this.traffic, this.events]) chart.redraw(false);
  }

  resize() {
    for (const [name, height] of [["sync", 150], ["traffic", 110], ["events", 92]]) {
      this[name].setSize({ width: Math.max(200, this.nodes[name].clientWidth), height });
    }
  }

  // One column a scheduler; a gap where another one's turn begins.
  syncData() {
    const { doc, schedulers } = this.view;
    const times = doc.syncs.map((sync) => sync.t);
    const columns = schedulers.map((name) => doc.syncs.map((sync) => sync.scheduler === name ? sync.seconds : null));
    return [times, ...columns];
  }

  trafficData() {
    const sum = (values) => values.reduce((a, b) => a + b, 0);
    const { frames } = this.view.doc;
    return [frames.map((f) => f.t), frames.map((f) => sum(f.achieved_bps)), frames.map((f) => sum(f.configured_bps))];
  }

  eventData() {
    const [low, high] = this.view.span();
    return [[low, high], [null, null]];
  }

  drawShapes(u) {
    const context = u.ctx;
    context.save();
    const near = this.view.doc.syncs.length > 400 ? 2 : 4;
    this.view.schedulers.forEach((name, k) => {
      context.fillStyle = colourOf(k);
      for (const sync of this.view.doc.syncs) {
        if (sync.scheduler !== name) continue;
        shape(context, k, u.valToPos(sync.t, "x", true), u.valToPos(sync.seconds, "y", true), near * devicePixelRatio);
        context.fill();
      }
    });
    context.restore();
  }

  drawEvents(u) {
    const { doc, schedulers } = this.view;
    const context = u.ctx;
    const dpr = devicePixelRatio;
    const { left, top, width, height } = u.bbox;
    const at = (t) => u.valToPos(t, "x", true);
    context.save();
    context.beginPath();
    context.rect(left, top, width + RIGHT * dpr, height);
    context.clip();
    context.font = `${12 * dpr}px system-ui, "DejaVu Sans", sans-serif`;
    context.textBaseline = "middle";
    context.textAlign = "left";
    const end = this.view.span()[1];
    for (const segment of doc.segments) {
      const k = schedulers.indexOf(segment.scheduler);
      const [x0, x1] = [at(segment.t0), at(segment.t1 ?? end)];
      context.globalAlpha = 0.2;
      context.fillStyle = colourOf(k);
      context.fillRect(x0, top, x1 - x0, 18 * dpr);
      context.globalAlpha = 1;
      context.fillRect(x0, top, 2 * dpr, 18 * dpr);
      context.fillStyle = css("--ink");
      if (context.measureText(segment.label).width < x1 - x0 - 12 * dpr) {
        context.fillText(segment.label, x0 + 7 * dpr, top + 9.5 * dpr);
      }
    }
    const colours = { info: "--quiet", change: "--focus", warning: "--warn", failure: "--down" };
    context.textAlign = "center";
    for (const event of doc.events) {
      context.fillStyle = css(colours[event.level]);
      context.fillText(LEVELS[event.level], at(event.t), top + 30 * dpr);
    }
    context.fillStyle = css("--tree");
    for (const policy of doc.policies) context.fillText(`v${policy.version}`, at(policy.t), top + 44 * dpr);
    context.restore();
  }

  drawNow(u) {
    const x = u.valToPos(this.view.t, "x", true);
    u.ctx.save();
    u.ctx.strokeStyle = css("--ink");
    u.ctx.lineWidth = 1.5 * devicePixelRatio;
    u.ctx.setLineDash([]);
    u.ctx.beginPath();
    u.ctx.moveTo(x, u.bbox.top);
    u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
    u.ctx.stroke();
    u.ctx.restore();
  }
}

function rate(bps) {
  return bps >= 1e9 ? `${+(bps / 1e9).toFixed(2)} Gbit/s` : `${Math.round(bps / 1e6)} Mbit/s`;
}
