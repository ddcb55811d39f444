// The agent panel: an agent's observation, action and reward, and all values of the selected entity.
import { Chart, drawBars } from "./charts.js";
import { kindColor, painter } from "./colors.js";
import { $, el, fitCanvas, number, say } from "./dom.js";
import { categoryOf, describeType, entitiesOf, isInteger, ofAgent, pictureShape, windowShape } from "./fields.js";
import { paint } from "./scene.js";
import { describeStep } from "./tell.js";

const MOST_CHANNELS = 32;

/** Returns the selected entity's number if it is an agent, else -1. The first `agents` rows are the agents. */
export function agentOf(layers, selection, agents) {
  const first = layers.find((layer) => layer.kind === "entities");
  if (!selection || !first || first.key !== selection.key) return -1;
  return first.field.shape[0] >= agents && selection.index < agents ? selection.index : -1;
}

/** Returns the side of the window that an agent sees around itself, or 0. */
export function viewSide(frame, agent, agents) {
  if (agent < 0) return 0;
  for (const [name, field] of frame.step) {
    const shape = name.startsWith("observation") && windowShape(ofAgent(field, agent, agents));
    if (shape) return shape[0];
  }
  return 0;
}

export class AgentPanel {
  constructor() {
    this.reward = new Chart("Reward");
    $("agent-reward").append(this.reward.element);
    this.canvases = new Map();
  }

  show(frame, history, layers, selection, agent, agents) {
    this.showEntity(layers, selection);
    const told = agent >= 0 && frame.step.size > 0;
    $("agent-some").hidden = !told;
    say(
      $("agent-none"),
      selection
        ? "This entity is not an agent: it has no observation, action or reward of its own."
        : "Select an entity on the map or in the table.",
    );
    $("agent-none").hidden = told;
    if (!told) return;
    say($("agent-title"), agents > 1 ? `Agent ${agent}` : "Step");
    definitions($("agent-step"), describeStep(frame, agent, agents));
    this.showReward(history, frame, agent, agents);
    this.showObservation(frame, layers, selection, agent, agents);
  }

  showEntity(layers, selection) {
    const layer = selection && layers.find((one) => one.key === selection.key);
    $("entity-card").hidden = !layer || selection.index >= layer.field.shape[0];
    if ($("entity-card").hidden) return;
    const { field } = layer,
      all = entitiesOf(field),
      at = selection.index * all.stride;
    const kind = all.kind ? all.kind(selection.index) : null;
    say($("entity-title"), `${categoryOf(field, kind)?.[1] ?? field.name} ${selection.index}`);
    $("entity-swatch").style.background = all.kind ? kindColor(field, kind) : "";
    definitions(
      $("entity-values"),
      field.columns.map((name, c) => {
        const value = field.data[at + c];
        return [name, (name === "kind" && categoryOf(field, value)?.[1]) || number(value)];
      }),
    );
  }

  showReward(history, frame, agent, agents) {
    const every = Math.ceil(history.frames.length / 300) || 1;
    const points = history.frames.filter((_, i) => i % every === 0 || i === history.frames.length - 1);
    const ys = points.map((one) => {
      const field = one.step.get("reward");
      return field ? ofAgent(field, agent, agents).data[0] : null;
    });
    const index = history.indexOf(frame);
    const at = index >= history.frames.length - 1 ? null : Math.round(index / every);
    this.reward.set(
      points.map((one) => one.time),
      [{ name: "reward", ys }],
      at,
    );
  }

  showObservation(frame, layers, selection, agent, agents) {
    const box = $("agent-observation"),
      parts = [];
    for (const [name, field] of frame.step) {
      if (!name.startsWith("observation")) continue;
      const one = ofAgent(field, agent, agents),
        around = windowShape(one),
        picture = pictureShape(one);
      const about = describeType(one);
      if (around) parts.push(this.channels(name, about, one, around, layers, selection));
      else if (picture) parts.push(this.picture(name, about, one, picture));
      else if (one.data.length === 1) parts.push(this.single(name, about, one));
      else parts.push(this.vector(name, about, one, frame.ranges?.get(name)));
    }
    const wanted = parts.map((part) => part.element);
    if (wanted.length !== box.children.length || wanted.some((part, k) => part !== box.children[k]))
      box.replaceChildren(...wanted);
    for (const part of parts) part.draw(); // after it is in the document, because it has no size before
  }

  held(key, make) {
    if (!this.canvases.has(key)) this.canvases.set(key, make());
    return this.canvases.get(key);
  }

  frameFor(key, name, about, inner) {
    return el(
      "figure",
      { className: "observation" },
      el("figcaption", {}, el("span", { textContent: name }), el("span", { className: "muted", textContent: about })),
      inner,
    );
  }

  channels(name, about, field, [side, channels], layers, selection) {
    const n = Math.min(channels, MOST_CHANNELS);
    const held = this.held(`window ${name} ${side} ${n}`, () => {
      const canvases = Array.from({ length: n }, (_, k) =>
        el("canvas", { width: side, height: side, role: "img", "aria-label": `${name}, channel ${k}` }),
      );
      const cells = canvases.map((canvas, k) =>
        el("div", {}, canvas, el("span", { textContent: channels > 1 ? (field.columns[k] ?? `channel ${k}`) : "" })),
      );
      return { canvases, element: this.frameFor("", name, about, el("div", { className: "channels" }, ...cells)) };
    });
    const draw = () =>
      held.canvases.forEach((canvas, k) => {
        const data = field.data.filter((_, i) => i % channels === k);
        const ground = sameGround(data, side, layers, selection);
        const one = { dtype: field.dtype, shape: [side, side], data, categories: ground?.categories ?? [] };
        const color = painter(one, isInteger(field)), // 0 usually means nothing, so it is not drawn
          ctx = canvas.getContext("2d"),
          image = ctx.createImageData(side, side);
        const pixels = new Uint32Array(image.data.buffer);
        data.forEach((value, i) => (pixels[i] = color(value)));
        ctx.putImageData(image, 0, 0);
      });
    return { element: held.element, draw };
  }

  picture(name, about, field, [h, w]) {
    const held = this.held(`picture ${name} ${w} ${h}`, () => {
      const canvas = el("canvas", { className: "picture", role: "img", "aria-label": name });
      return { canvas, element: this.frameFor("", name, about, canvas) };
    });
    return { element: held.element, draw: () => paint(held.canvas, { kind: "image", field, w, h }) };
  }

  single(name, about, field) {
    const held = this.held(`single ${name}`, () => {
      const value = el("output", { className: "single" });
      return { value, element: this.frameFor("", name, about, value) };
    });
    return { element: held.element, draw: () => say(held.value, number(field.data[0])) };
  }

  vector(name, about, field, range) {
    const held = this.held(`vector ${name} ${field.data.length}`, () => {
      const canvas = el("canvas", { className: "bars", role: "img", "aria-label": name });
      canvas.style.height = `${Math.min(420, Math.max(40, field.data.length > 64 ? 120 : field.data.length * 22))}px`;
      return { canvas, element: this.frameFor("", name, about, canvas) };
    });
    const draw = () => {
      const { ctx, width, height } = fitCanvas(held.canvas);
      ctx.clearRect(0, 0, width, height);
      drawBars(ctx, 0, 0, width, height, field.data, field.columns, range);
    };
    return { element: held.element, draw };
  }
}

/** Returns the grid that a channel is a part of, so that it has that grid's colours; else undefined. */
function sameGround(data, side, layers, selection) {
  const entities = layers.find((layer) => layer.key === selection?.key);
  if (!entities) return undefined;
  const all = entitiesOf(entities.field),
    half = (side - 1) / 2;
  const top = Math.floor(all.y(selection.index)) - half,
    left = Math.floor(all.x(selection.index)) - half;
  return layers.find(({ kind, field, w, h }) => {
    if (kind !== "grid" || !field.categories.length) return false;
    let same = 0,
      inside = 0;
    data.forEach((value, i) => {
      const r = top + Math.floor(i / side),
        c = left + (i % side);
      if (r < 0 || c < 0 || r >= h || c >= w) return;
      inside++;
      same += field.data[r * w + c] === value;
    });
    return inside > 0 && same === inside;
  })?.field;
}

/** Updates a list of names and values without building it again. */
export function definitions(list, rows) {
  while (list.children.length > rows.length * 2) list.lastChild.remove();
  rows.forEach(([name, value], k) => {
    if (!list.children[2 * k]) list.append(el("dt"), el("dd"));
    say(list.children[2 * k], name);
    say(list.children[2 * k + 1], value);
  });
}
