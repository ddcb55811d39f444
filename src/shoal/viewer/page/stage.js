// The main view: draws the state when it has changed, and describes what is under the pointer.
import { agentOf, viewSide } from "./agent.js";
import { Camera, steer } from "./camera.js";
import { $, fitCanvas, say } from "./dom.js";
import { entitiesOf } from "./fields.js";
import { entityAt } from "./marks.js";
import { Scene, drawPlain, extentOf } from "./scene.js";
import { describePlace } from "./tell.js";

export class Stage {
  /** `agents()` returns the number of agents per environment; `select` is called with the clicked entity. */
  constructor(state, { agents, select, drawn }) {
    Object.assign(this, { state, agents, drawn, scene: new Scene(), wanted: 0, groundKey: "", shape: "" });
    this.camera = new Camera(() => this.redraw());
    this.timing = { last: 0, mean: 0, worst: 0, count: 0 };
    const pick = (sx, sy) => state.frame && select(entityAt(this.camera, state.layers, state.hidden, sx, sy));
    steer($("marks"), this.camera, { pick, hover: (sx, sy) => this.hoverAt(sx, sy) });
    new ResizeObserver(() => this.redraw()).observe($("stage"));
  }

  /** Takes the layers of another frame; fits the view again if their sizes changed. */
  changed() {
    const { layers } = this.state;
    const shape = layers.map((layer) => `${layer.key} ${layer.w} ${layer.h}`).join();
    if (this.camera.fitted && (shape !== this.shape || !layers.some((layer) => layer.w))) this.fit();
    this.shape = shape;
    if (this.state.pointer) this.hoverAt(...this.state.pointer);
    this.redraw();
  }

  redraw(all = false) {
    if (all) this.groundKey = "";
    if (!this.wanted) this.wanted = requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.wanted = 0;
    const began = performance.now();
    const { camera, scene, state } = this;
    const { clientWidth: width, clientHeight: height } = $("stage");
    const resized = camera.width !== width || camera.height !== height;
    Object.assign(camera, { width, height });
    if (resized && camera.fitted) this.fit();
    const ground = fitCanvas($("ground")),
      marks = fitCanvas($("marks"));
    if (state.frame) {
      this.drawGround(ground, width, height);
      scene.drawMarks(marks.ctx, camera, marks.ratio, state.layers, this.look());
    } else {
      for (const { ctx } of [ground, marks]) ctx.clearRect(0, 0, width, height);
      this.groundKey = "";
    }
    const { timing } = this;
    timing.last = performance.now() - began;
    timing.count++;
    timing.worst = Math.max(timing.worst, timing.last);
    timing.mean += (timing.last - timing.mean) / Math.min(timing.count, 100);
    this.drawn();
  }

  /** Draws the ground if a ground layer or the camera has changed. */
  drawGround({ ctx, ratio, changed }, width, height) {
    const { camera, scene, state } = this,
      { layers, hidden, lines } = state;
    for (const layer of layers) if (layer.w && !hidden.has(layer.key)) scene.ground(layer);
    const place = [camera.x, camera.y, camera.scale, width, height, ratio];
    const key = [...place, lines, scene.paints, this.shape, ...hidden].join();
    if (key === this.groundKey && !changed && layers.length) return;
    scene.drawGround(ctx, camera, ratio, layers, hidden, lines);
    if (!layers.length) drawPlain(ctx, width, height, state.frame, Math.max(0, this.agent), this.agents());
    this.groundKey = key;
  }

  /** Returns the selected agent; the first agent if nothing can be selected; else -1. */
  get agent() {
    const { layers, selection } = this.state,
      found = agentOf(layers, selection, this.agents());
    return found < 0 && !layers.some((layer) => layer.kind === "entities") ? 0 : found;
  }

  look() {
    const { hidden, lines, selection, hovered, frame, layers } = this.state,
      agents = this.agents();
    return {
      hidden,
      lines,
      selection,
      hovered,
      agents,
      view: viewSide(frame, agentOf(layers, selection, agents), agents),
    };
  }

  /** Returns everything needed to draw a picture of the view. */
  get view() {
    return { camera: this.camera, look: this.look(), agent: this.agent };
  }

  fit() {
    this.camera.fit(extentOf(this.state.layers));
    this.redraw();
  }

  /** Prepares for another environment: the camera stays if it is zoomed in, else it will fit the world. */
  leave() {
    const { camera } = this;
    if (camera.scale > 1.01 * camera.scaleFor(extentOf(this.state.layers))) return;
    camera.fitted = true;
    this.shape = "";
  }

  /** Returns the position of the selected entity, or null. */
  selected() {
    const { layers, selection } = this.state;
    const layer = selection && layers.find((one) => one.key === selection.key),
      all = layer && entitiesOf(layer.field);
    if (!all || selection.index >= all.count || !all.there(selection.index)) return null;
    return [all.x(selection.index), all.y(selection.index)];
  }

  inSight() {
    const at = this.selected(),
      { camera } = this;
    if (!at) return false;
    const [sx, sy] = camera.toScreen(...at);
    return sx >= 0 && sy >= 0 && sx <= camera.width && sy <= camera.height;
  }

  /** Moves the selected entity to the middle. */
  centre() {
    const at = this.selected();
    if (at) this.camera.moveTo(...at);
  }

  hoverAt(sx, sy) {
    const { state, camera } = this,
      out = sx === null || !state.frame;
    state.pointer = out ? null : [sx, sy];
    const found = out ? null : entityAt(camera, state.layers, state.hidden, sx, sy);
    if (found?.index !== state.hovered?.index || found?.key !== state.hovered?.key) this.redraw();
    state.hovered = found;
    const text = out ? "" : describePlace(state.layers, state.hidden, ...camera.toWorld(sx, sy), found);
    $("hover").hidden = !text;
    say($("hover"), text);
  }
}
