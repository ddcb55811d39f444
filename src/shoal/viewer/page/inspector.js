// The fields panel: type, shape, range, histogram and first values of every field.
import { definitions } from "./agent.js";
import { drawHistogram } from "./charts.js";
import { $, el, number, say } from "./dom.js";
import { describeType, fieldsOf, measure, pictureShape } from "./fields.js";
import { paint } from "./scene.js";

const FIRST = 64;

export class Inspector {
  constructor() {
    this.rows = new Map();
  }

  show(frame) {
    const fields = fieldsOf(frame),
      keys = fields.map((field) => `${field.part}/${field.name}`);
    if (keys.join() !== [...this.rows.keys()].join()) {
      const rows = new Map(keys.map((key, k) => [key, this.rows.get(key) || this.row(fields[k])]));
      this.rows = rows;
      $("fields").replaceChildren(...[...rows.values()].map((row) => row.element));
    }
    fields.forEach((field, k) => this.fill(this.rows.get(keys[k]), field));
  }

  row(field) {
    const about = el("span", { className: "muted" }),
      values = el("code"),
      list = el("dl", { className: "pairs" });
    const histogram = el("canvas", { className: "histogram", role: "img", "aria-label": `histogram of ${field.name}` });
    const picture = el("canvas", { className: "picture", role: "img", "aria-label": field.name, hidden: true });
    const column = el("select", { "aria-label": `column of ${field.name}` });
    const element = el(
      "details",
      { className: "field" },
      el(
        "summary",
        {},
        el("b", { textContent: field.name }),
        el("span", { className: "part", textContent: field.part }),
        about,
      ),
      picture,
      column,
      list,
      histogram,
      values,
    );
    const row = { element, about, values, list, histogram, column, picture };
    element.addEventListener("toggle", () => row.field && this.fill(row, row.field));
    column.addEventListener("change", () => this.fill(row, row.field));
    return row;
  }

  fill(row, field) {
    row.field = field;
    say(row.about, describeType(field) + (field.role ? ` · ${field.role}` : ""));
    if (!row.element.open) return;
    const shape = field.data instanceof Uint8Array && pictureShape(field);
    row.picture.hidden = !shape;
    if (shape) paint(row.picture, { kind: "image", field, w: shape[1], h: shape[0] });
    const names = field.shape.length === 2 && field.columns.length === field.shape[1] ? field.columns : [];
    row.column.hidden = !names.length;
    if (row.column.options.length !== (names.length ? names.length + 1 : 0)) {
      row.column.replaceChildren(
        ...(names.length ? ["all columns", ...names] : []).map((name, k) =>
          el("option", { value: k - 1, textContent: name }),
        ),
      );
    }
    const column = names.length ? Number(row.column.value) : -1,
      found = measure(field, column);
    definitions(row.list, [
      ["min", number(found.min)],
      ["max", number(found.max)],
      ["mean", number(found.mean)],
      ["values", number(found.count + found.odd)],
      ["not finite", number(found.odd)],
      ["stable", field.stable ? "yes" : "no"],
    ]);
    drawHistogram(row.histogram, found);
    const stride = column < 0 ? 1 : field.shape[1];
    const first = [],
      named = field.columns.length === field.data.length; // one number for each name
    for (let i = Math.max(0, column); i < field.data.length && first.length < FIRST; i += stride)
      first.push(named ? `${field.columns[i]}: ${number(field.data[i])}` : number(field.data[i]));
    say(row.values, first.join(named ? "\n" : "  ") + (found.count + found.odd > FIRST ? "  …" : ""));
  }
}
