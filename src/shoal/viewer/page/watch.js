// Which environments are watched: the chosen one always, those in the strip at a glance now and then. A run gives
// only so much of its time to being watched, so each glance at another costs the chosen one about a frame: there
// are no more glances than leave it four fifths of its frames.

const RATE = 20,
  HIDDEN_RATE = 1,
  MOST = 8,
  FRAMES_EACH = 4; // of the chosen environment, for each glance at another
const EVERY_MS = 3000, // how often the others are looked at
  LIMIT_MS = 1200; // how long at most, if frames come quickly

export class Watcher {
  /** `state` has the environment that is chosen, and what the run does. */
  constructor(connection, strip, state) {
    Object.assign(this, { connection, strip, state, missing: new Set(), timer: 0, frames: 0, last: 0, gap: 0 });
    setInterval(() => this.lookAround(), EVERY_MS);
    document.addEventListener("visibilitychange", () => this.ask());
  }

  /** Another environment is chosen: first it alone, and the others once it is there. */
  begin() {
    Object.assign(this, { frames: 0, last: 0 });
    this.stop();
    setTimeout(() => this.lookAround(), 150); // once the strip knows which of it are in sight
  }

  /** A frame has come. */
  arrived(env) {
    if (this.missing.delete(env) && !this.missing.size) this.stop();
    if (env !== this.state.env) return;
    const now = performance.now();
    if (this.last) this.gap = now - this.last;
    this.last = now;
    this.frames++;
    const [first] = this.strip.turns(env);
    if (first?.asked === 0 && !this.missing.size) this.lookAround(); // those never seen need not wait
  }

  ask() {
    const envs = [this.state.env, ...this.missing].filter((env, k, all) => all.indexOf(env) === k);
    this.connection.watch(envs.slice(0, MOST), document.hidden ? HIDDEN_RATE : RATE);
  }

  lookAround() {
    if (document.hidden || this.missing.size) return;
    const turns = this.strip.turns(this.state.env).map(({ env }) => env);
    // Where nothing moves nothing is lost, and what was shown last is there at once.
    const most = this.state.run === "stepping" ? Math.floor(this.frames / FRAMES_EACH) : MOST - 1;
    const envs = turns.slice(0, Math.min(most, MOST - 1));
    if (!envs.length) return;
    this.frames = 0;
    this.missing = new Set(envs);
    this.strip.asked(envs);
    this.ask();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.stop(), Math.max(LIMIT_MS, 4 * this.gap));
  }

  stop() {
    clearTimeout(this.timer);
    this.missing.clear();
    this.ask();
  }
}
