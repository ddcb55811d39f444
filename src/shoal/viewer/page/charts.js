// Small charts in the theme's colours: lines over time, bars of a vector, histograms.
import { el, fitCanvas, number, say, theme } from "./dom.js";

/** A line chart with a title. Null or NaN values leave a gap in the line. */
export class Chart {
  constructor(title, { format = number, unit = "" } = {}) {
    Object.assign(this, { format, unit, series: [], xs: [], hover: null, xText: (x) => number(x) });
    this.now = el("output", { className: "chart-now" });
    this.canvas = el("canvas", { role: "img", "aria-label": `${title} over time` });
    this.names = el("ul", { className: "chart-names" });
    this.element = el(
      "figure",
      { className: "chart" },
      el("figcaption", {}, el("span", { textContent: title }), this.now),
      this.canvas,
      this.names,
    );
    this.canvas.addEventListener("pointermove", (event) => {
      this.hover = event.offsetX / this.canvas.clientWidth;
      this.draw();
    });
    this.canvas.addEventListener("pointerleave", () => {
      this.hover = null;
      this.draw();
    });
  }

  /** `series`: [{name, color, ys}] over the same xs; `cursor` is the index of the value to mark, or null. */
  set(xs, series, cursor = null) {
    Object.assign(this, { xs, series, cursor });
    this.draw();
  }

  draw() {
    if (!this.canvas.clientWidth) return;
    const { ctx, width, height } = fitCanvas(this.canvas),
      { xs, series } = this,
      look = theme();
    ctx.clearRect(0, 0, width, height);
    let min = Infinity,
      max = -Infinity;
    for (const { ys } of series)
      for (const y of ys) if (Number.isFinite(y)) [min, max] = [Math.min(min, y), Math.max(max, y)];
    const top = 6,
      bottom = height - 5,
      n = xs.length;
    const wide = xs[n - 1] - xs[0] || 1,
      tall = max - min;
    const px = (i) => 1 + ((xs[i] - xs[0]) / wide) * (width - 5);
    const py = (y) => (tall > 0 ? bottom - ((y - min) / tall) * (bottom - top) : (top + bottom) / 2);
    ctx.strokeStyle = look.line;
    ctx.lineWidth = 1;
    for (const y of [top, bottom]) ctx.strokeRect(0, Math.round(y) + 0.5, width, 0);
    for (const { ys, color = look.accent } of min <= max ? series : []) {
      if (series.length === 1) this.fill(ctx, ys, px, py, bottom, color);
      ctx.beginPath();
      ys.forEach(
        (y, i) =>
          Number.isFinite(y) && (i && Number.isFinite(ys[i - 1]) ? ctx.lineTo(px(i), py(y)) : ctx.moveTo(px(i), py(y))),
      );
      ctx.lineWidth = 1.6;
      ctx.lineJoin = "round";
      ctx.strokeStyle = color;
      ctx.stroke();
    }
    let at = n - 1;
    if (this.hover !== null && n) {
      const x = xs[0] + this.hover * wide;
      at = xs.findIndex((value) => value >= x);
      if (at < 0) at = n - 1;
    } else if (this.cursor !== null) at = Math.min(n - 1, this.cursor);
    if (n && at < n - 1) {
      ctx.fillStyle = look.muted;
      ctx.fillRect(Math.round(px(at)), 0, 1, height);
    }
    if (n && min <= max) this.dots(ctx, series, at, px, py, look);
    this.tell(at, n);
  }

  fill(ctx, ys, px, py, bottom, color) {
    const first = ys.findIndex(Number.isFinite);
    if (first < 0) return;
    ctx.beginPath();
    ctx.moveTo(px(first), bottom);
    for (let i = first; i < ys.length; i++) if (Number.isFinite(ys[i])) ctx.lineTo(px(i), py(ys[i]));
    ctx.lineTo(px(ys.length - 1), bottom);
    ctx.globalAlpha = 0.1;
    ctx.fillStyle = color;
    ctx.fill();
    ctx.globalAlpha = 1;
  }

  dots(ctx, series, at, px, py, look) {
    for (const { ys, color = look.accent } of series) {
      if (!Number.isFinite(ys[at])) continue;
      ctx.beginPath();
      ctx.arc(px(at), py(ys[at]), 2.5, 0, 2 * Math.PI);
      ctx.fillStyle = color;
      ctx.fill();
    }
  }

  tell(at, n) {
    const { series } = this,
      value = (one) => (n ? this.format(one.ys[at] ?? null) : "–") + this.unit;
    const when = n && this.hover !== null ? `${this.xText(this.xs[at])} · ` : "";
    say(this.now, series.length === 1 ? when + value(series[0]) : when.replace(" · ", ""));
    const many = series.length > 1 ? series : [];
    while (this.names.children.length > many.length) this.names.lastChild.remove();
    many.forEach((one, k) => {
      let item = this.names.children[k];
      if (!item) this.names.append((item = el("li", {}, el("i"), el("span"), el("b"))));
      item.children[0].style.background = one.color;
      say(item.children[1], one.name);
      say(item.children[2], value(one));
    });
  }
}

/** Returns the minimum and maximum of the values, of 0 and of the range so far. */
export function rangeOf(values, [low, high] = [0, 0]) {
  for (const v of values) if (Number.isFinite(v)) [low, high] = [Math.min(low, v), Math.max(high, v)];
  return [low, high];
}

/** Draws a vector as bars from zero, each with its name and value; many values become thin columns. `range` is the
 * range of such values so far, so that the scale of the bars does not change over time. */
export function drawBars(ctx, x, y, w, h, values, names = [], range = undefined) {
  const look = theme(),
    n = values.length;
  if (!n) return;
  const [low, high] = rangeOf(values, range),
    reach = Math.max(-low, high) || 1,
    least = low < 0 ? -reach : 0;
  ctx.font = "12px ui-monospace, SFMono-Regular, Menlo, monospace";
  ctx.textBaseline = "middle";
  if (n > 64 || h / n < 11) {
    const zero = least ? y + h / 2 : y + h,
      unit = (least ? h / 2 : h) / reach,
      each = w / n;
    ctx.fillStyle = look.accent;
    values.forEach(
      (v, i) =>
        Number.isFinite(v) &&
        ctx.fillRect(
          x + i * each,
          Math.min(zero, zero - v * unit),
          Math.max(1, each - (each > 4 ? 1 : 0)),
          Math.abs(v) * unit,
        ),
    );
    ctx.fillStyle = look.line;
    ctx.fillRect(x, zero, w, 1);
    return;
  }
  const small = w < 140,
    widest = small ? 0 : Math.max(...Array.from(values, (_, i) => ctx.measureText(names[i] ?? String(i)).width)),
    label = small ? 0 : Math.min(widest + 12, w * 0.4),
    figure = small ? 0 : 68;
  const room = w - label - figure,
    zero = x + label + (least ? room / 2 : 0),
    unit = (least ? room / 2 : room) / reach;
  const each = h / n,
    thick = Math.max(2, Math.min(18, each * 0.5));
  values.forEach((v, i) => {
    const middle = y + (i + 0.5) * each;
    ctx.fillStyle = look.line;
    ctx.fillRect(x + label, middle - thick / 2, room, thick);
    ctx.fillStyle = look.accent;
    if (Number.isFinite(v))
      ctx.fillRect(Math.min(zero, zero + v * unit), middle - thick / 2, Math.abs(v) * unit, thick);
    if (small) return;
    ctx.fillStyle = look.muted;
    ctx.textAlign = "left";
    ctx.fillText(names[i] ?? String(i), x, middle, label - 8);
    ctx.fillStyle = look.text;
    ctx.textAlign = "right";
    ctx.fillText(number(v), x + w, middle, figure - 6);
  });
  ctx.fillStyle = look.muted;
  if (least) ctx.fillRect(Math.round(zero), y, 1, h);
}

export function drawHistogram(canvas, { histogram, count }) {
  if (!canvas.clientWidth) return;
  const { ctx, width, height } = fitCanvas(canvas),
    look = theme();
  ctx.clearRect(0, 0, width, height);
  if (!count) return;
  const most = Math.max(...histogram),
    each = width / histogram.length;
  histogram.forEach((n, i) => {
    // Square roots, so that rare values are visible beside frequent ones.
    const tall = n ? Math.max(1, Math.sqrt(n / most) * (height - 1)) : 0;
    ctx.fillStyle = look.accent;
    ctx.fillRect(i * each, height - tall, Math.max(1, each - 1), tall);
  });
  ctx.fillStyle = look.line;
  ctx.fillRect(0, height - 1, width, 1);
}
