// Keeps the last minutes of one environment. Frames share unchanged fields, and each field is counted once.
import { rangeOf } from "./charts.js";

const LONGEST = 4096; // the most values drawn as bars; a longer vector is drawn as a picture

export class History {
  constructor(budget = 256 * 2 ** 20, most = 6000) {
    Object.assign(this, { budget, most });
    this.clear();
  }

  clear() {
    this.frames = [];
    this.bytes = 0;
    this.next = 0;
    this.ranges = new Map();
  }

  push(frame) {
    frame.place = this.next++;
    frame.ranges = this.ranges; // the range of each step vector over all frames since the last clear
    for (const [name, { data }] of frame.step) {
      if (data.length <= LONGEST) this.ranges.set(name, rangeOf(data, this.ranges.get(name)));
    }
    this.frames.push(frame);
    this.bytes += frame.bytes;
    while (this.frames.length > 1 && (this.bytes > this.budget || this.frames.length > this.most)) this.dropOldest();
  }

  /** Drops the oldest frame. Fields that it shares with the next frame are counted for the next frame. */
  dropOldest() {
    const [old, heir] = this.frames;
    let kept = 0;
    for (const part of ["world", "step"]) {
      old[part].forEach((field, name) => (kept += heir[part].get(name) === field ? field.bytes : 0));
    }
    heir.bytes += kept;
    this.bytes -= old.bytes - kept;
    this.frames.shift();
  }

  get last() {
    return this.frames[this.frames.length - 1];
  }

  /** Returns the index of a frame; 0, the oldest, if the frame was dropped. */
  indexOf(frame) {
    return Math.max(0, frame.place - (this.frames[0]?.place ?? 0));
  }

  /** Returns the frames of the last seconds, at most `rate` per second. */
  lastSeconds(seconds, rate, until = this.last) {
    const picked = [];
    for (const frame of this.frames) {
      if (frame.place > until.place || frame.time < until.time - seconds) continue;
      if (!picked.length || frame.time - picked[picked.length - 1].time >= 0.9 / rate) picked.push(frame);
    }
    return picked;
  }
}
