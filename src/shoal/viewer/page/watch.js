// Which environments are watched: the chosen one always, those in the strip at a glance now and then. A run
// pays for each that is watched, and small pictures need no twenty frames a second.

const RATE = 20,
  HIDDEN_RATE = 1,
  MOST = 8;
const EVERY_MS = 3000,
  LIMIT_MS = 1200; // how often the others are looked at, and how long at most

export class Watcher {
  constructor(connection, strip, env) {
    Object.assign(this, { connection, strip, env, missing: new Set(), timer: 0 });
    setInterval(() => this.lookAround(), EVERY_MS);
    document.addEventListener("visibilitychange", () => this.ask());
  }

  /** Of the environments that are looked at, one has arrived. */
  arrived(env) {
    if (this.missing.delete(env) && !this.missing.size) this.stop();
  }

  ask() {
    const envs = [this.env(), ...this.missing].filter((env, k, all) => all.indexOf(env) === k);
    this.connection.watch(envs.slice(0, MOST), document.hidden ? HIDDEN_RATE : RATE);
  }

  lookAround() {
    if (document.hidden) return;
    this.missing = new Set(this.strip.visible.filter((env) => env !== this.env()));
    this.ask();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.stop(), LIMIT_MS);
  }

  stop() {
    clearTimeout(this.timer);
    this.missing.clear();
    this.ask();
  }
}
