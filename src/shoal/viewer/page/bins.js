// The history of the run as the server sends it: bins with the mean, lowest and highest value of each curve.

const COLUMNS = ["begin", "end", "steps", "episodes"];

export class Bins {
  constructor() {
    this.clear();
  }

  clear() {
    Object.assign(this, { names: [], count: 0, last: {}, returns: null, curves: new Float32Array() });
    for (const name of COLUMNS) this[name] = new Float64Array();
  }

  /** Takes a message: a whole history replaces the bins, others are added. */
  take(head, buffer, start) {
    const n = head.bins,
      width = 4 * head.names.length;
    const more = Object.fromEntries(
      COLUMNS.map((name, k) => [name, new Float64Array(buffer.slice(start + 8 * n * k, start + 8 * n * (k + 1)))]),
    );
    const from = start + 32 * n;
    more.curves = new Float32Array(buffer.slice(from, from + 4 * width * n));
    Object.assign(this, { last: head.last, returns: head.returns ?? this.returns });
    if (head.whole || !this.count) {
      Object.assign(this, more, { names: head.names, count: n });
      return;
    }
    const curves = new Float32Array(width * (this.count + n));
    this.widen(curves, width);
    curves.set(more.curves, width * this.count);
    for (const name of COLUMNS) this[name] = Float64Array.from([...this[name], ...more[name]]);
    Object.assign(this, { curves, names: head.names, count: this.count + n });
  }

  /** Copies the curves so far to rows of `width`: names may have been logged since. */
  widen(to, width) {
    const before = 4 * this.names.length;
    for (let i = 0; i < this.count; i++) to.set(this.curves.subarray(i * before, (i + 1) * before), i * width);
  }

  /** Returns one curve's points, those with values only: x (seconds or steps), mean, low, high, weight, bin. */
  points(name, axis) {
    const at = this.names.indexOf(name),
      width = 4 * this.names.length,
      found = [];
    for (let i = 0; at >= 0 && i < this.count; i++) {
      const [mean, low, high, weight] = this.curves.subarray(i * width + 4 * at, i * width + 4 * at + 4);
      if (!(weight > 0) || !Number.isFinite(mean)) continue;
      // A bin is drawn at its middle in time, and at its end in steps.
      const x = axis === "steps" ? this.steps[i] : (this.begin[i] + this.end[i]) / 2;
      found.push({ x, mean, low, high, weight, bin: i });
    }
    return found;
  }

  /** Returns the mean over the newest bins that have at least `least` values together, and how many they have. */
  recent(name, least) {
    const points = this.points(name, "time");
    let sum = 0,
      weight = 0;
    for (let i = points.length - 1; i >= 0 && weight < least; i--) {
      sum += points[i].mean * points[i].weight;
      weight += points[i].weight;
    }
    return weight ? { mean: sum / weight, weight: Math.round(weight) } : null;
  }
}

/** Returns the exponential moving average of the points over time, weighted, without the bias of its start. */
export function smoothed(points, bins) {
  if (!points.length) return [];
  const length = bins.end[points.at(-1).bin] - bins.begin[points[0].bin];
  const tau = Math.max(1e-6, length / 40);
  let sum = 0,
    weight = 0,
    last = bins.end[points[0].bin];
  return points.map(({ mean, weight: own, bin }) => {
    const keep = Math.exp(-(bins.end[bin] - last) / tau);
    last = bins.end[bin];
    sum = sum * keep + mean * own;
    weight = weight * keep + own;
    return sum / weight;
  });
}
