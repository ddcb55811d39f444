// Chooses which environments are watched: always the chosen one, and from time to time those in the strip, for one
// frame each. A run limits the time it spends on being watched, so each frame of another environment costs the chosen
// one about a frame. The chosen environment keeps four fifths of its frames.

const RATE = 20,
  HIDDEN_RATE = 1,
  MOST = 8,
  MOST_IN_GRID = 16,
  GRID_PAUSE_MS = 150,
  FRAMES_EACH = 4; // frames of the chosen environment for each frame of another
const EVERY_MS = 3000, // the interval between two rounds of the strip
  LIMIT_MS = 1200; // the maximum duration of a round, if frames come quickly

export class Watcher {
  /** `state` has the chosen environment and the state of the run. */
  constructor(connection, strip, state) {
    Object.assign(this, { connection, strip, state, missing: new Set(), timer: 0, frames: 0, last: 0, gap: 0 });
    setInterval(() => this.lookAround(), EVERY_MS);
    document.addEventListener("visibilitychange", () => this.ask());
  }

  /** Watches only the newly chosen environment first, and the others after its first frame. */
  begin() {
    Object.assign(this, { frames: 0, last: 0 });
    this.stop();
    setTimeout(() => this.lookAround(), 150); // after the strip knows which thumbnails are visible
  }

  /** Handles the arrival of a frame. */
  arrived(env) {
    if (this.missing.delete(env) && !this.missing.size) this.stop();
    if (env !== this.state.env) return;
    const now = performance.now();
    if (this.last) this.gap = now - this.last;
    this.last = now;
    this.frames++;
    const [first] = this.strip.turns(env);
    if (first?.asked === 0 && !this.missing.size) this.lookAround(); // new environments do not wait
  }

  ask() {
    const envs = [this.state.env, ...this.missing].filter((env, k, all) => all.indexOf(env) === k);
    this.connection.watch(envs.slice(0, this.most), document.hidden ? HIDDEN_RATE : RATE);
  }

  lookAround() {
    if (document.hidden || this.missing.size) return;
    const turns = this.strip.turns(this.state.env).map(({ env }) => env);
    // If the run does not step, watching the others costs nothing, and their last frames come at once.
    // In a grid all environments are worth the same.
    const isFree = this.state.run !== "stepping" || this.strip.isGrid;
    const envs = turns.slice(0, Math.min(isFree ? Infinity : Math.floor(this.frames / FRAMES_EACH), this.most - 1));
    if (!envs.length) return;
    this.frames = 0;
    this.missing = new Set(envs);
    this.strip.asked(envs);
    this.ask();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.stop(), Math.max(LIMIT_MS, 4 * this.gap));
  }

  /** The most environments at once: as many as a run publishes, or fewer, to leave some for other pages. */
  get most() {
    return this.strip.isGrid ? MOST_IN_GRID : MOST;
  }

  stop() {
    clearTimeout(this.timer);
    this.missing.clear();
    this.ask();
    if (this.strip.isGrid) this.timer = setTimeout(() => this.lookAround(), GRID_PAUSE_MS);
  }
}
