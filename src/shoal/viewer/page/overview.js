// The overview panel: the run's facts, the legend with counts, and the world's scalars.
import { Chart } from "./charts.js";
import { isQualitative, kindColor, paletteColor } from "./colors.js";
import { $, el, number, say, span } from "./dom.js";
import { categoryOf, countValues, measure } from "./fields.js";

const MOST_ROWS = 24,
  MOST_POINTS = 300;

export class Overview {
  constructor(toggle) {
    this.toggle = toggle;
    this.scalars = new Map();
    this.groups = new Map();
  }

  showFacts(facts, sessions) {
    const rows = [
      ["Environment", facts.env],
      ["Environments", number(facts.num_worlds)],
      ["Agents in each", number(facts.agents)],
      ["Workers", facts.workers ? number(facts.workers) : "threads"],
      ["Backend", facts.backend],
      ["Process", String(facts.pid)],
      ["Started", new Date(facts.started * 1000).toLocaleString()],
      ["Observations", facts.observation_space],
      ["Actions", facts.action_space],
      ["Version", facts.version],
      ["Other sessions", (sessions || []).filter((name) => name !== facts.name).join(", ")],
    ];
    $("facts").replaceChildren(
      ...rows
        .filter(([, value]) => value && value !== "–")
        .flatMap(([name, value]) => [el("dt", { textContent: name }), el("dd", { textContent: value })]),
    );
  }

  /** Makes one group for each layer: its switch, and its categories with their counts. */
  drawLegend(layers, hidden) {
    const keys = layers.map((layer) => layer.key);
    if ([...this.groups.keys()].join() !== keys.join()) {
      this.groups.clear();
      for (const layer of layers) this.groups.set(layer.key, this.group(layer));
      $("legend").replaceChildren(...[...this.groups.values()].map((group) => group.element));
      $("legend-card").hidden = !layers.length;
    }
    for (const layer of layers) {
      const group = this.groups.get(layer.key);
      group.box.checked = !hidden.has(layer.key);
      if (group.of === layer.field) continue;
      group.of = layer.field;
      this.fillGroup(group, layer);
    }
  }

  group(layer) {
    const box = el("input", { type: "checkbox", checked: true });
    box.addEventListener("change", () => this.toggle(layer.key, box.checked));
    const total = el("span", { className: "count" }),
      list = el("ul");
    const head = el("label", { className: "layer" }, box, el("span", { textContent: layer.field.name }), total);
    return { element: el("div", { className: "legend-group" }, head, list), box, list, total, of: null };
  }

  fillGroup(group, layer) {
    const { field } = layer;
    if (layer.kind === "image") return say(group.total, `${layer.w} × ${layer.h}`);
    const column = layer.kind === "entities" ? field.columns.indexOf("kind") : -1;
    const total = layer.kind === "entities" ? field.shape[0] : field.data.length;
    say(group.total, layer.kind === "entities" ? number(total) : `${layer.w} × ${layer.h}`);
    if (layer.kind === "entities" && column < 0) return;
    if (layer.kind === "grid" && !isQualitative(field)) return this.fillRamp(group, field);
    const counts = countValues(field, column);
    // A value without a category is listed as a number. In a grid above another it is not drawn, so it is not
    // listed either; the same is true for 0 if the field has no categories.
    const values = field.categories.length
      ? field.categories.map((one) => one[0])
      : [...counts.keys()].filter((value) => value || !layer.above).sort((a, b) => a - b);
    for (const value of counts.keys()) if (!layer.above && !values.includes(value)) values.push(value);
    const shown = values.slice(0, MOST_ROWS);
    while (group.list.children.length > shown.length) group.list.lastChild.remove();
    const most = Math.max(1, ...shown.map((value) => counts.get(value) || 0));
    shown.forEach((value, k) => {
      let row = group.list.children[k];
      if (!row?.children[2]) {
        row?.remove();
        row = el("li", {}, el("i"), el("span"), el("b"), el("u"));
        group.list.insertBefore(row, group.list.children[k] || null);
      }
      const n = counts.get(value) || 0;
      row.children[0].style.background = field.categories.length ? kindColor(field, value) : paletteColor(value);
      say(row.children[1], categoryOf(field, value)?.[1] ?? String(value));
      say(row.children[2], number(n));
      row.children[3].style.transform = `scaleX(${n / most})`;
      row.title = `${((100 * n) / Math.max(1, total)).toFixed(1)} %`;
    });
  }

  fillRamp(group, field) {
    const { min, max } = measure(field);
    group.list.replaceChildren(
      el(
        "li",
        { className: "ramp" },
        el("span", { textContent: number(min) }),
        el("i"),
        el("span", { textContent: number(max) }),
      ),
    );
  }

  /** Draws charts of the world's scalars over the kept frames. */
  drawScalars(history, frame) {
    const fields = [...frame.world.values()].filter(
      (field) => field.role === "scalar" && field.data.length && field.data.length <= 64,
    );
    $("scalar-card").hidden = !fields.length;
    if (!fields.length) return;
    const { frames } = history,
      every = Math.ceil(frames.length / MOST_POINTS) || 1;
    const points = frames.filter((one, i) => i % every === 0 || i === frames.length - 1);
    const xs = points.map((one) => one.time),
      at = history.indexOf(frame) >= frames.length - 1 ? null : Math.round(history.indexOf(frame) / every);
    const kinds = [...frame.world.values()].flatMap((field) => field.categories);
    for (const field of fields) {
      let chart = this.scalars.get(field.name);
      if (!chart) {
        this.scalars.set(field.name, (chart = new Chart(field.name)));
        chart.xText = (x) => `−${span(history.last.time - x)}`;
        $("scalars").append(chart.element);
      }
      const series = Array.from(field.data.slice(0, 8), (_, k) => ({
        name: field.columns[k] ?? String(k),
        // The line of a kind has the colour of that kind.
        color:
          field.data.length > 1
            ? (kinds.find((one) => one[1] === field.columns[k])?.[2] ?? paletteColor(k))
            : undefined,
        ys: points.map((one) => one.world.get(field.name)?.data[k] ?? null),
      }));
      chart.set(xs, series, at);
    }
    for (const [name, chart] of this.scalars) {
      if (!fields.some((field) => field.name === name)) {
        chart.element.remove();
        this.scalars.delete(name);
      }
    }
  }
}
