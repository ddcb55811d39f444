// The camera: the point of the world in the middle of the view, and the width of a tile in pixels.

const LEAST = 0.02,
  MOST = 160;

export class Camera {
  constructor(changed) {
    Object.assign(this, { x: 0, y: 0, scale: 1, fitted: true, width: 1, height: 1, changed });
  }

  toScreen(x, y) {
    return [(x - this.x) * this.scale + this.width / 2, (y - this.y) * this.scale + this.height / 2];
  }

  toWorld(sx, sy) {
    return [(sx - this.width / 2) / this.scale + this.x, (sy - this.height / 2) / this.scale + this.y];
  }

  /** Returns the scale that shows a whole extent, with a margin. */
  scaleFor({ x0, y0, x1, y1 }, margin = 16) {
    const room = (side) => Math.max(20, side - 2 * margin);
    return Math.min(room(this.width) / (x1 - x0 || 1), room(this.height) / (y1 - y0 || 1));
  }

  /** Shows a whole extent. */
  fit(extent, margin = 16) {
    const { x0, y0, x1, y1 } = extent;
    this.scale = this.scaleFor(extent, margin);
    this.x = (x0 + x1) / 2;
    this.y = (y0 + y1) / 2;
    this.fitted = true;
  }

  zoom(factor, sx = this.width / 2, sy = this.height / 2) {
    const [wx, wy] = this.toWorld(sx, sy);
    this.scale = Math.min(MOST, Math.max(LEAST, this.scale * factor));
    const [nx, ny] = this.toWorld(sx, sy);
    this.moveTo(this.x + wx - nx, this.y + wy - ny);
  }

  moveTo(x, y) {
    Object.assign(this, { x, y, fitted: false });
    this.changed();
  }

  /** Returns a copy for a view of another size that shows the same width of the world. */
  sized(width, height) {
    const copy = new Camera(() => {});
    Object.assign(copy, { x: this.x, y: this.y, width, height, scale: (this.scale * width) / this.width });
    return copy;
  }
}

/** Handles drag, wheel and pinch on an element; calls `pick` and `hover` with positions on the screen. */
export function steer(element, camera, { pick, hover }) {
  const held = new Map();
  let moved = 0;
  const place = (event) => {
    const box = element.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const spread = () => {
    const [a, b] = [...held.values()];
    return { gap: Math.hypot(a[0] - b[0], a[1] - b[1]), x: (a[0] + b[0]) / 2, y: (a[1] + b[1]) / 2 };
  };
  element.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    element.setPointerCapture(event.pointerId);
    held.set(event.pointerId, place(event));
    if (held.size === 1) moved = 0;
  });
  element.addEventListener("pointermove", (event) => {
    const now = place(event),
      was = held.get(event.pointerId);
    if (!was) return hover(...now);
    const before = held.size === 2 ? spread() : null;
    held.set(event.pointerId, now);
    moved += Math.hypot(now[0] - was[0], now[1] - was[1]);
    if (before) {
      const after = spread();
      camera.moveTo(camera.x - (after.x - before.x) / camera.scale, camera.y - (after.y - before.y) / camera.scale);
      camera.zoom(after.gap / (before.gap || 1), after.x, after.y);
    } else if (held.size === 1 && moved > 4) {
      camera.moveTo(camera.x - (now[0] - was[0]) / camera.scale, camera.y - (now[1] - was[1]) / camera.scale);
    }
  });
  element.addEventListener("pointerup", (event) => {
    if (held.delete(event.pointerId) && moved <= 4) pick(...place(event));
  });
  element.addEventListener("pointercancel", (event) => held.delete(event.pointerId));
  element.addEventListener("pointerleave", () => held.size || hover(null, null));
  element.addEventListener("dblclick", (event) => camera.zoom(2, ...place(event)));
  element.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      const pixels = event.deltaY * (event.deltaMode === 1 ? 20 : 1);
      camera.zoom(Math.exp(-pixels * 0.0016), ...place(event));
    },
    { passive: false },
  );
}
