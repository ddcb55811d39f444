// Recorded episodes: lists the best, the worst and the newest one, and plays one of them in the main view.
import { $, el, number, say, span } from "./dom.js";
import { History } from "./history.js";

const KINDS = { best: "Best", worst: "Worst", newest: "Newest" };
const SHORTEST_S = 0.04,
  LONGEST_S = 0.25,
  WHOLE_S = 4; // a replay takes about this long, whatever the speed of the run

export class Replay {
  /** `on` has ask(number), show(frame), began() and ended(). */
  constructor(on) {
    Object.assign(this, { on, history: null, about: null, kind: "", playing: false, index: 0, timer: 0, list: {} });
  }

  /** Fills the list from the message "recordings". */
  showList({ kept, count, problem }) {
    const seen = new Set();
    const rows = Object.keys(KINDS).filter(
      (kind) => kept[kind] && !seen.has(kept[kind].number) && seen.add(kept[kind].number),
    );
    const key = rows.map((kind) => `${kind} ${kept[kind].number}`).join();
    if (key !== this.key) $("recordings").replaceChildren(...rows.map((kind) => this.row(kind, kept[kind])));
    this.key = key; // a row that stays keeps its button, which may have the focus
    $("recordings-card").hidden = !rows.length && !problem;
    const many = `${number(count)} whole ${count === 1 ? "episode" : "episodes"} of random environments`;
    const about = rows.length ? `Of ${many}, recorded in the last ten minutes. The Return curve has all episodes.` : "";
    say($("recordings-about"), [about, problem && `Nothing new: ${problem}.`].filter(Boolean).join(" "));
    this.list = kept;
  }

  row(kind, one) {
    const button = el("button", { type: "button", className: "text", textContent: "Replay" });
    button.setAttribute("aria-label", `Replay the ${kind} episode`);
    button.addEventListener("click", () => {
      this.kind = kind;
      this.on.ask(one.number);
    });
    const ago = span(Date.now() / 1000 - one.at);
    return el(
      "div",
      { className: "recording", "data-kind": kind },
      el("b", { textContent: KINDS[kind] }),
      el("span", { textContent: `return ${number(one.return)} · ${steps(one.length)}` }),
      el("small", { textContent: `environment ${number(one.env)}, episode ${number(one.episode)}, ${ago} ago` }),
      button,
    );
  }

  /** Begins to play a recording that has arrived. */
  begin(about, frames) {
    if (!frames.length) return;
    this.stop();
    const pause = Math.min(LONGEST_S, Math.max(SHORTEST_S, WHOLE_S / frames.length));
    const isFirst = !this.history;
    this.history = new History();
    frames.forEach((frame, k) => {
      Object.assign(frame, { time: k * pause, note: `return ${number(about.return)}` });
      this.history.push(frame);
    });
    Object.assign(this, { about, pause, index: 0 });
    this.on.began(isFirst);
    this.play();
  }

  /** Ends the replay; returns whether there was one. */
  end() {
    if (!this.history) return false;
    this.stop();
    Object.assign(this, { history: null, about: null });
    this.on.ended();
    return true;
  }

  play() {
    const { frames } = this.history;
    if (this.index >= frames.length - 1) this.index = 0;
    this.playing = true;
    const next = () => {
      this.on.show(frames[this.index]);
      if (this.index >= frames.length - 1) return this.stop();
      this.timer = setTimeout(() => {
        this.index++;
        next();
      }, this.pause * 1000);
    };
    next();
  }

  stop() {
    clearTimeout(this.timer);
    const was = this.playing;
    this.playing = false;
    if (was && this.history) this.on.show(this.history.frames[this.index]);
  }

  toggle() {
    if (this.playing) this.stop();
    else this.play();
  }

  /** Shows one frame and pauses there. */
  go(index) {
    this.stop();
    this.index = Math.min(this.history.frames.length - 1, Math.max(0, index));
    this.on.show(this.history.frames[this.index]);
  }

  get text() {
    const { about, kind } = this;
    const which = `${(KINDS[kind] ?? "A").toLowerCase()} recorded episode`;
    return `Replay: ${which}, return ${number(about.return)}, ${steps(about.length)} of environment ${number(about.env)}`;
  }

  when(frame) {
    return `tick ${number(frame.tick)} of ${number(this.about.length)}`;
  }
}

const steps = (count) => `${number(count)} ${count === 1 ? "step" : "steps"}`;
