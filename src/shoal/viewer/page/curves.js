// The curves of the run: mean with the range from lowest to highest, smoothed and raw, by time or by steps.
import { Bins, smoothed } from "./bins.js";
import { drawHistogram } from "./charts.js";
import { $, el, fitCanvas, number, say, short, span, theme } from "./dom.js";
import { follow } from "./socket.js";

const TITLES = { return: "Return", length: "Episode length", steps_per_s: "Steps per second" };
const RECENT = 100; // episodes of the mean in the header

export const lastEpisodes = (n) => (n === 1 ? "of the last episode" : `of the last ${number(n)} episodes`);

export class Curves {
  /** `fail` is called with a message if the other session cannot be followed. */
  constructor(fail) {
    this.fail = fail;
    this.other = null;
    this.bins = new Bins();
    this.charts = new Map();
    this.axis = "time";
    this.smooth = true;
    for (const button of document.querySelectorAll("#axis button")) {
      button.addEventListener("click", () => this.setAxis(button.value));
    }
    $("smooth").addEventListener("change", () => {
      this.smooth = $("smooth").checked;
      this.draw();
    });
  }

  clear() {
    this.bins.clear();
  }

  /** Shows the curves of another session beside those of this one; "" for none. */
  compare(name) {
    this.other?.end();
    this.other = null;
    $("compared").hidden = !name;
    if (name) {
      const other = (this.other = { name, bins: new Bins() });
      other.end = follow(name, {
        history: (...message) => {
          other.bins.take(...message);
          this.draw();
        },
        missing: (why) => this.fail(why),
      });
      say($("compared-name"), name);
    }
    this.draw();
  }

  setAxis(axis) {
    this.axis = axis;
    for (const button of document.querySelectorAll("#axis button")) {
      button.setAttribute("aria-pressed", String(button.value === axis));
    }
    this.draw();
  }

  /** Returns the mean return of about the last hundred episodes, or null. */
  get recentReturn() {
    return this.bins.recent("return", RECENT);
  }

  draw() {
    const { bins } = this;
    const known = [...new Set([...bins.names, ...(this.other?.bins.names ?? [])])];
    const names = known.length ? known : Object.keys(TITLES);
    for (const [name, chart] of this.charts) {
      if (names.includes(name)) continue;
      chart.element.remove();
      this.charts.delete(name);
    }
    for (const name of names) {
      let chart = this.charts.get(name);
      if (!chart) {
        this.charts.set(name, (chart = new CurveChart(name)));
        $("run-charts").append(chart.element);
      }
      chart.show(bins, this.axis, this.smooth, this.other?.bins);
    }
    this.drawReturns();
  }

  drawReturns() {
    const { returns } = this.bins;
    $("returns-card").hidden = !returns?.count;
    if (!returns?.count) return;
    drawHistogram($("returns-histogram"), { histogram: returns.bins, count: returns.count });
    say($("returns-low"), number(returns.low));
    say($("returns-high"), number(returns.high));
    say($("returns-about"), `${number(returns.count)} ${returns.count === 1 ? "row" : "rows"}: last episode of each`);
  }
}

class CurveChart {
  constructor(name) {
    this.name = name;
    this.format = name === "steps_per_s" ? short : number;
    const title = TITLES[name] ?? name;
    this.now = el("output", { className: "chart-now" });
    this.canvas = el("canvas", { role: "img", "aria-label": `${title} over the run`, tabIndex: 0 });
    this.about = el("p", { className: "chart-about muted" });
    const head = el("figcaption", {}, el("span", { textContent: title }), this.now);
    this.element = el("figure", { className: "chart curve", "data-curve": name }, head, this.canvas, this.about);
    Object.assign(this, { points: [], hover: null });
    this.canvas.addEventListener("pointermove", (event) => this.hoverAt(event.offsetX / this.canvas.clientWidth));
    this.canvas.addEventListener("pointerleave", () => this.hoverAt(null));
    this.canvas.addEventListener("keydown", (event) => this.onKey(event));
  }

  hoverAt(part) {
    this.hover = part;
    this.draw();
  }

  onKey(event) {
    const by = { ArrowLeft: -0.02, ArrowRight: 0.02 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation(); // the arrows move the frame elsewhere
    this.hoverAt(Math.min(1, Math.max(0, (this.hover ?? 1) + by)));
  }

  show(bins, axis, smooth, other) {
    Object.assign(this, { bins, axis, smooth, other, points: bins.points(this.name, axis) });
    this.trend = smooth ? smoothed(this.points, bins) : [];
    this.others = other?.points(this.name, axis) ?? [];
    this.otherTrend = smooth && other ? smoothed(this.others, other) : this.others.map((one) => one.mean);
    this.draw();
  }

  /** The range of the axis is that of the whole run, so all curves are aligned. */
  range() {
    const column = this.axis === "steps" ? "steps" : "end";
    const ends = [this.bins, this.other].filter((one) => one?.count).map((one) => one[column].at(-1));
    return [0, Math.max(...ends, 0) || 1];
  }

  draw() {
    if (!this.canvas.clientWidth || !this.bins) return;
    const { ctx, width, height } = fitCanvas(this.canvas),
      { points, trend } = this,
      look = theme();
    ctx.clearRect(0, 0, width, height);
    const both = [...points, ...this.others.map(({ mean }) => ({ low: mean, high: mean }))];
    const lows = both.map((one) => one.low).filter(Number.isFinite),
      highs = both.map((one) => one.high).filter(Number.isFinite);
    const min = lows.reduce((a, b) => Math.min(a, b), Infinity),
      max = highs.reduce((a, b) => Math.max(a, b), -Infinity);
    const top = 5,
      bottom = height - 5,
      [from, to] = this.range();
    const px = (x) => 2 + ((x - from) / (to - from || 1)) * (width - 5);
    const py = (y) => (max > min ? bottom - ((y - min) / (max - min)) * (bottom - top) : (top + bottom) / 2);
    ctx.strokeStyle = look.line;
    ctx.lineWidth = 1;
    for (const y of [top, bottom]) ctx.strokeRect(0, Math.round(y) + 0.5, width, 0);
    if (this.others.length) this.line(ctx, this.others, px, (i) => py(this.otherTrend[i]), look.warn, 1, 1.6);
    if (points.length) {
      this.band(ctx, px, py, look);
      this.line(ctx, points, px, (i) => py(points[i].mean), look.accent, this.smooth ? 0.45 : 1, this.smooth ? 1 : 1.6);
      if (trend.length) this.line(ctx, points, px, (i) => py(trend[i]), look.accent, 1, 2);
    }
    this.tell(ctx, px, py, look, height, min, max);
  }

  band(ctx, px, py, look) {
    const { points } = this;
    ctx.beginPath();
    points.forEach(({ x, high }, i) => ctx[i ? "lineTo" : "moveTo"](px(x), py(high)));
    for (let i = points.length - 1; i >= 0; i--) ctx.lineTo(px(points[i].x), py(points[i].low));
    ctx.closePath();
    ctx.globalAlpha = 0.16;
    ctx.fillStyle = look.accent;
    ctx.fill();
    ctx.globalAlpha = 1;
  }

  line(ctx, points, px, y, color, alpha, thick) {
    ctx.beginPath();
    points.forEach(({ x }, i) => ctx[i ? "lineTo" : "moveTo"](px(x), y(i)));
    Object.assign(ctx, { lineWidth: thick, lineJoin: "round", strokeStyle: color, globalAlpha: alpha });
    ctx.stroke();
    ctx.globalAlpha = 1;
  }

  tell(ctx, px, py, look, height, min, max) {
    const { points, bins, format } = this;
    if (!points.length) {
      say(this.now, "–");
      const none = { return: "No episode has ended yet.", length: "No episode has ended yet." };
      return say(this.about, bins.count ? (none[this.name] ?? "No value yet.") : "Waiting for the history.");
    }
    const [from, to] = this.range(),
      x = from + (this.hover ?? 1) * (to - from);
    let at = this.hover === null ? points.length - 1 : points.findIndex((one) => one.x >= x);
    if (at < 0) at = points.length - 1;
    const one = points[at];
    if (this.hover !== null) {
      ctx.fillStyle = look.muted;
      ctx.fillRect(Math.round(px(one.x)), 0, 1, height);
    }
    ctx.beginPath();
    ctx.arc(px(one.x), py(this.trend[at] ?? one.mean), 2.5, 0, 2 * Math.PI);
    ctx.fillStyle = look.accent;
    ctx.fill();
    say(this.now, format(this.trend[at] ?? one.mean));
    this.now.title = this.smooth ? `smoothed; mean of this bin: ${format(one.mean)}` : "mean of this bin";
    const where = `${span(bins.end[one.bin])} · ${short(bins.steps[one.bin])} steps`;
    const range = `lowest ${format(one.low)}, mean ${format(one.mean)}, highest ${format(one.high)}`;
    const whole = `lowest ${format(min)}, highest ${format(max)} of the run`;
    say(this.about, this.hover === null ? whole : `${where}: ${range}`);
  }
}
