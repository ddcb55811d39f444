// The strip: live thumbnails of some environments, as a row or as a grid, and the controls to choose any environment.
import { Camera } from "./camera.js";
import { $, el, fitCanvas, number, say, theme } from "./dom.js";
import { Scene, extentOf, layersOf } from "./scene.js";

const SMALLEST = 8; // thumbnails in the strip; a grid has more
const NOTHING = new Set();

export class Strip {
  constructor(pick) {
    this.pick = pick;
    this.thumbs = new Map();
    this.total = 0;
    this.page = SMALLEST;
    const field = $("env-number");
    const take = () => {
      pick(Number(field.value) || 0);
      field.value = this.env; // shows the number of the current environment, whatever was typed
    };
    field.addEventListener("change", take);
    $("env-form").addEventListener("submit", (event) => {
      event.preventDefault();
      take();
    });
    // Thumbnails that are scrolled out of view are not watched.
    this.seen = new IntersectionObserver(
      (entries) => {
        for (const entry of entries) {
          const thumb = this.thumbs.get(Number(entry.target.dataset.env));
          if (thumb) thumb.visible = entry.isIntersecting;
        }
      },
      { root: $("thumbs") },
    );
  }

  /** Shows the page of thumbnails that contains the chosen environment. */
  show(env, total) {
    this.env = env;
    const first = Math.floor(env / this.page) * this.page;
    const wanted = Array.from({ length: Math.min(this.page, total - first) }, (_, k) => first + k);
    if (wanted.join() !== [...this.thumbs.keys()].join() || total !== this.total) {
      this.total = total;
      this.seen.disconnect();
      this.thumbs = new Map(wanted.map((one) => [one, this.thumbs.get(one) || this.thumb(one)]));
      $("thumbs").replaceChildren(...[...this.thumbs.values()].map((thumb) => thumb.element));
      for (const thumb of this.thumbs.values()) this.seen.observe(thumb.element);
      $("env-number").max = total - 1;
      say($("env-total"), `of ${number(total)}`);
    }
    if (document.activeElement !== $("env-number")) $("env-number").value = env;
    for (const [one, thumb] of this.thumbs) thumb.element.setAttribute("aria-pressed", String(one === env));
  }

  /** Whether the thumbnails cover the stage, as a grid. */
  get isGrid() {
    return this.page > SMALLEST;
  }

  /** Shows this many environments at once: more than the strip holds are a grid over the stage. */
  setPage(count) {
    this.page = count;
    const thumbs = $("thumbs");
    thumbs.classList.toggle("grid", this.isGrid);
    thumbs.style.setProperty("--columns", Math.round(Math.sqrt(count)));
    if (this.isGrid) $("stage").append(thumbs);
    else $("strip").append(thumbs);
    $("grid").value = String(count);
    this.show(this.env, this.total);
  }

  thumb(env) {
    const canvas = el("canvas", { "aria-hidden": "true" });
    const element = el(
      "button",
      { type: "button", className: "thumb", "aria-label": `Environment ${env}`, "data-env": env },
      canvas,
      el("span", { textContent: String(env) }),
    );
    element.addEventListener("click", () => {
      if (this.isGrid) this.setPage(SMALLEST);
      this.pick(env);
    });
    return { element, canvas, scene: new Scene(), visible: false, drawn: 0, asked: 0 };
  }

  /** Returns the visible environments except `env` with the time of their last request (0: never), oldest first. */
  turns(env) {
    const others = [...this.thumbs].filter(([one, thumb]) => thumb.visible && one !== env);
    return others.map(([one, { asked }]) => ({ env: one, asked })).sort((a, b) => a.asked - b.asked);
  }

  asked(envs) {
    for (const env of envs) this.thumbs.get(env).asked = performance.now();
  }

  /** Resets the request times, for another run. */
  forget() {
    for (const thumb of this.thumbs.values()) thumb.asked = 0;
  }

  /** Draws an environment's thumbnail, at most twice a second. */
  draw(frame, agents) {
    const thumb = this.thumbs.get(frame.env),
      now = performance.now();
    if (!thumb?.visible || now - thumb.drawn < 500) return;
    thumb.drawn = now;
    const { ctx, width, height, ratio } = fitCanvas(thumb.canvas);
    const camera = new Camera(() => {}),
      layers = layersOf(frame, 0, agents);
    Object.assign(camera, { width, height });
    if (layers.length) camera.fit(extentOf(layers), 0);
    const look = {
      hidden: new Set(layers.filter((l) => l.kind === "entities" && l.field.shape[0] > 400).map((l) => l.key)),
      lines: false,
      selection: null,
      hovered: null,
      agents,
      view: 0,
    };
    thumb.scene.drawAll(
      ctx,
      camera,
      ratio,
      frame,
      layers,
      layers.length ? look : { ...look, hidden: NOTHING },
      theme().stage,
    );
  }
}
