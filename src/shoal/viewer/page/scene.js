// Draws a frame: pictures and grids as the ground, entities on top.
import { painter } from "./colors.js";
import { number, theme } from "./dom.js";
import { entitiesOf, ofAgent, pictureShape } from "./fields.js";
import { drawEntities } from "./marks.js";
import { drawBars } from "./charts.js";

/** Returns a frame's layers, lowest first. Without a world: the environment's picture, or its observation. */
export function layersOf(frame, agent = 0, agents = 1) {
  const layers = [];
  const add = (kind, field, w, h) => layers.push({ kind, field, w, h, key: `${field.part}/${field.name}` });
  const fields = [...frame.world.values()];
  for (const field of fields) {
    const picture = field.role === "image" && pictureShape(field);
    if (picture) add("image", field, picture[1], picture[0]);
  }
  for (const field of fields) {
    if (field.role === "grid" && field.shape.length === 2 && field.data.length)
      add("grid", field, field.shape[1], field.shape[0]);
  }
  layers.filter((layer) => layer.kind === "grid").forEach((layer, k) => (layer.above = k > 0));
  for (const field of fields) if (field.role === "entities" && entitiesOf(field)) add("entities", field, 0, 0);
  if (layers.length) return layers;
  const own = frame.step.get("frame");
  if (own && pictureShape(own)) {
    add("image", own, own.shape[1], own.shape[0]);
    return layers;
  }
  for (const [name, field] of frame.step) {
    if (!name.startsWith("observation")) continue;
    const one = ofAgent(field, agent, agents),
      shape = pictureShape(one);
    if (shape) {
      add("image", one === field ? field : { ...one, of: field, agent }, shape[1], shape[0]);
      break;
    }
  }
  return layers;
}

/** Returns the extent of all layers. */
export function extentOf(layers) {
  const ground = layers.filter((layer) => layer.w);
  if (ground.length) {
    return { x0: 0, y0: 0, x1: Math.max(...ground.map((l) => l.w)), y1: Math.max(...ground.map((l) => l.h)) };
  }
  let [x0, y0, x1, y1] = [Infinity, Infinity, -Infinity, -Infinity];
  for (const layer of layers) {
    const all = entitiesOf(layer.field);
    for (let i = 0; i < all.count; i++) {
      if (!all.there(i)) continue;
      x0 = Math.min(x0, all.x(i));
      x1 = Math.max(x1, all.x(i));
      y0 = Math.min(y0, all.y(i));
      y1 = Math.max(y1, all.y(i));
    }
  }
  if (!(x0 <= x1)) return { x0: 0, y0: 0, x1: 1, y1: 1 };
  // Rounded outwards, so that the view does not shake when an entity moves at the edge.
  const step = 2 ** Math.ceil(Math.log2(Math.max(x1 - x0, y1 - y0, 1e-6) / 6));
  const out = (v, round) => round(v / step) * step;
  return {
    x0: out(x0, Math.floor),
    y0: out(y0, Math.floor),
    x1: out(x1, Math.ceil) || step,
    y1: out(y1, Math.ceil) || step,
  };
}

/** Writes a grid or a picture into a canvas, one pixel for each tile or pixel. */
export function paint(canvas, layer) {
  const { field, w, h } = layer;
  if (canvas.width !== w || canvas.height !== h) Object.assign(canvas, { width: w, height: h });
  const ctx = canvas.getContext("2d");
  const image = ctx.createImageData(w, h),
    { data } = field;
  if (layer.kind === "grid" || !(data instanceof Uint8Array)) {
    const color = painter(field, layer.above),
      pixels = new Uint32Array(image.data.buffer);
    const channels = layer.kind === "grid" ? 1 : field.shape[2] || 1;
    for (let i = 0; i < pixels.length; i++) pixels[i] = color(data[i * channels]);
  } else {
    const channels = field.shape[2] || 1,
      out = image.data;
    for (let i = 0, at = 0, to = 0; i < w * h; i++, at += channels, to += 4) {
      out[to] = data[at];
      out[to + 1] = data[channels > 2 ? at + 1 : at];
      out[to + 2] = data[channels > 2 ? at + 2 : at];
      out[to + 3] = channels === 4 ? data[at + 3] : 255;
    }
  }
  ctx.putImageData(image, 0, 0);
}

/** Draws frames. It keeps a painted canvas for each layer and repaints it when the field changes. */
export class Scene {
  constructor() {
    this.painted = new Map();
    this.paints = 0;
  }

  ground(layer) {
    let held = this.painted.get(layer.key);
    if (!held) this.painted.set(layer.key, (held = { canvas: document.createElement("canvas"), of: null }));
    const of = layer.field.of || layer.field;
    if (held.of !== of || held.agent !== layer.field.agent) {
      paint(held.canvas, layer);
      Object.assign(held, { of, agent: layer.field.agent });
      this.paints++;
    }
    return held.canvas;
  }

  drawGround(ctx, camera, ratio, layers, hidden, lines) {
    ctx.clearRect(0, 0, camera.width, camera.height);
    const shown = layers.filter((layer) => layer.w && !hidden.has(layer.key));
    const all = extentOf(layers);
    for (const layer of shown) {
      // A picture above a grid covers the same area as the grid.
      const over = layer.kind === "image" && layers.some((one) => one.kind === "grid");
      const [x, y] = camera.toScreen(0, 0);
      const w = (over ? all.x1 : layer.w) * camera.scale,
        h = (over ? all.y1 : layer.h) * camera.scale;
      const each = (w / layer.w) * ratio;
      ctx.imageSmoothingEnabled = each < 1 || (layer.kind === "image" && each < 3);
      ctx.imageSmoothingQuality = each < 1 ? "medium" : "low";
      ctx.drawImage(this.ground(layer), x, y, w, h);
    }
    if (lines && camera.scale >= 5 && layers.length) this.drawLines(ctx, camera, all);
  }

  drawLines(ctx, camera, { x0, y0, x1, y1 }) {
    const [left, top] = camera.toWorld(0, 0),
      [right, bottom] = camera.toWorld(camera.width, camera.height);
    const [sx0, sy0] = camera.toScreen(x0, y0),
      [sx1, sy1] = camera.toScreen(x1, y1);
    ctx.beginPath();
    for (let x = Math.max(x0, Math.floor(left)); x <= Math.min(x1, right + 1); x++) {
      const at = Math.round(camera.toScreen(x, 0)[0]) + 0.5;
      ctx.moveTo(at, Math.max(0, sy0));
      ctx.lineTo(at, Math.min(camera.height, sy1));
    }
    for (let y = Math.max(y0, Math.floor(top)); y <= Math.min(y1, bottom + 1); y++) {
      const at = Math.round(camera.toScreen(0, y)[1]) + 0.5;
      ctx.moveTo(Math.max(0, sx0), at);
      ctx.lineTo(Math.min(camera.width, sx1), at);
    }
    ctx.lineWidth = 1;
    ctx.strokeStyle = "rgba(0,0,0,0.22)";
    ctx.stroke();
  }

  /** `look`: hidden, selection and hovered ({key, index} or null), agents, view (side of the window, or 0). */
  drawMarks(ctx, camera, ratio, layers, look) {
    ctx.clearRect(0, 0, camera.width, camera.height);
    for (const layer of layers) {
      if (layer.kind !== "entities" || look.hidden.has(layer.key)) continue;
      const of = (one) => (one && one.key === layer.key ? one.index : -1);
      drawEntities(ctx, camera, ratio, layer.field, {
        agents: look.agents,
        selected: of(look.selection),
        hovered: of(look.hovered),
        view: look.view,
        accent: theme().accent,
      });
    }
  }

  /** Draws the whole frame onto any context, for thumbnails and exports. */
  drawAll(ctx, camera, ratio, frame, layers, look, background) {
    const under = document.createElement("canvas");
    Object.assign(under, { width: ctx.canvas.width, height: ctx.canvas.height });
    const mark = under.getContext("2d");
    mark.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.drawGround(ctx, camera, ratio, layers, look.hidden, look.lines);
    ctx.globalCompositeOperation = "destination-over";
    ctx.fillStyle = background;
    ctx.fillRect(0, 0, camera.width, camera.height);
    ctx.globalCompositeOperation = "source-over";
    if (!layers.length) drawPlain(ctx, camera.width, camera.height, frame, 0, look.agents);
    this.drawMarks(mark, camera, ratio, layers, look);
    ctx.drawImage(under, 0, 0, camera.width, camera.height);
  }
}

/** Draws the observation as bars or a number, for an environment without a world or a picture. */
export function drawPlain(ctx, width, height, frame, agent, agents) {
  const found = [...frame.step.values()].find((field) => field.name.startsWith("observation"));
  if (!found) return;
  const one = ofAgent(found, agent, agents);
  if (one.data.length === 1) {
    const size = Math.round(Math.min(64, width / 4, height / 3));
    ctx.font = `600 ${size}px system-ui, sans-serif`;
    Object.assign(ctx, { textAlign: "center", textBaseline: "middle", fillStyle: theme().text });
    ctx.fillText(number(one.data[0]), width / 2, height / 2, width - 8);
    ctx.font = `${Math.max(10, Math.round(size / 3))}px system-ui, sans-serif`;
    ctx.fillStyle = theme().muted;
    return ctx.fillText(one.columns[0] ?? found.name, width / 2, height / 2 + size, width - 8);
  }
  const w = Math.min(width - 8, 760),
    rows = Math.min(64, one.data.length);
  const h = Math.min(height - 8, Math.max(90, rows * 44));
  drawBars(ctx, (width - w) / 2, (height - h) / 2, w, h, one.data, one.columns, frame.ranges?.get(found.name));
}
