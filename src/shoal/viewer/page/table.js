// The table of entities. Only the visible rows are in the document.
import { kindColor } from "./colors.js";
import { $, el, number, say } from "./dom.js";
import { categoryOf } from "./fields.js";

const ROW = 26;

export class EntityTable {
  constructor(select) {
    this.select = select;
    this.by = { column: -1, down: false };
    this.box = $("table-box");
    this.head = $("table-head");
    this.body = $("table-body");
    this.box.addEventListener("scroll", () => this.fill());
    $("table-filter").addEventListener("input", () => this.refresh());
    $("table-layer").addEventListener("change", () => this.show(this.layers, this.selection));
  }

  show(layers, selection) {
    this.layers = layers;
    this.selection = selection;
    const tables = layers.filter((layer) => layer.kind === "entities");
    const menu = $("table-layer");
    if ([...menu.options].map((one) => one.value).join() !== tables.map((one) => one.key).join()) {
      menu.replaceChildren(...tables.map((one) => el("option", { value: one.key, textContent: one.field.name })));
      menu.hidden = tables.length < 2;
    }
    const layer = tables.find((one) => one.key === menu.value) || tables[0];
    $("table-none").hidden = Boolean(layer);
    $("table-some").hidden = !layer;
    this.layer = layer;
    if (layer) this.refresh();
  }

  refresh() {
    if (!this.layer) return;
    const { field } = this.layer;
    const columns = field.columns.join();
    if (columns !== this.columns) {
      this.columns = columns;
      this.by = { column: -1, down: false };
      this.buildHead(field);
    }
    this.order = this.sorted(field);
    say(
      $("table-count"),
      this.order.length === field.shape[0]
        ? number(field.shape[0])
        : `${number(this.order.length)} of ${number(field.shape[0])}`,
    );
    this.fill();
  }

  buildHead(field) {
    const cells = ["#", ...field.columns].map((name, k) => {
      const button = el("button", { type: "button", textContent: name });
      button.addEventListener("click", () => {
        const same = this.by.column === k - 1;
        this.by = { column: k - 1, down: same ? !this.by.down : k > 0 };
        this.refresh();
      });
      return el("th", { scope: "col" }, button);
    });
    this.head.replaceChildren(...cells);
  }

  sorted(field) {
    const stride = field.shape[1],
      { data } = field,
      { column, down } = this.by;
    const wanted = $("table-filter").value.trim().toLowerCase();
    const kind = field.columns.indexOf("kind");
    let rows = Array.from({ length: field.shape[0] }, (_, i) => i);
    if (wanted) {
      rows = rows.filter(
        (i) =>
          String(i) === wanted ||
          (kind >= 0 && (categoryOf(field, data[i * stride + kind])?.[1] ?? "").toLowerCase().includes(wanted)),
      );
    }
    const sign = down ? -1 : 1;
    if (column >= 0) rows.sort((a, b) => sign * (data[a * stride + column] - data[b * stride + column]) || a - b);
    else if (down) rows.reverse();
    [...this.head.children].forEach((cell, k) =>
      cell.setAttribute("aria-sort", k - 1 !== column ? "none" : down ? "descending" : "ascending"),
    );
    return rows;
  }

  fill() {
    if (!this.layer || !this.box.clientHeight) return;
    const { field } = this.layer,
      stride = field.shape[1],
      kind = field.columns.indexOf("kind");
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW) - 4);
    const shown = this.order.slice(first, first + Math.ceil(this.box.clientHeight / ROW) + 8);
    const { scrollLeft, clientWidth, scrollWidth } = this.box;
    $("table-more").hidden = scrollLeft + clientWidth >= scrollWidth - 1;
    $("table-above").style.height = `${first * ROW}px`;
    $("table-below").style.height = `${(this.order.length - first - shown.length) * ROW}px`;
    while (this.body.children.length > shown.length) this.body.lastChild.remove();
    shown.forEach((index, k) => {
      let row = this.body.children[k];
      if (!row || row.children.length !== stride + 1) {
        row?.remove();
        row = this.row(stride);
        this.body.insertBefore(row, this.body.children[k] || null);
      }
      row.dataset.index = index;
      const chosen = this.selection?.key === this.layer.key && this.selection.index === index;
      row.setAttribute("aria-selected", String(chosen));
      say(row.children[0].firstChild, String(index));
      for (let c = 0; c < stride; c++) {
        const value = field.data[index * stride + c],
          cell = row.children[c + 1];
        const named = c === kind ? categoryOf(field, value)?.[1] : undefined;
        if (c === kind) {
          cell.className = "kind";
          cell.style.setProperty("--kind", kindColor(field, value));
        }
        say(cell, named ?? number(value));
      }
    });
  }

  row(stride) {
    const button = el("button", { type: "button" });
    const row = el("tr", {}, el("td", {}, button), ...Array.from({ length: stride }, () => el("td")));
    row.addEventListener("click", () => this.select({ key: this.layer.key, index: Number(row.dataset.index) }));
    return row;
  }
}
