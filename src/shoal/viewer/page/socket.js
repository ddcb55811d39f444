// The connection: reconnects whenever it breaks, and completes frames with fields of earlier frames.
import { openMessage, readFrame } from "./fields.js";

const KEPT = 64;

export class Connection {
  /** `on` has hello, counters, history, frame, failure and status ("connecting", "open", "lost"). */
  constructor(on) {
    this.on = on;
    this.wait = 250;
    this.wanted = null;
    this.open();
  }

  open() {
    this.latest = new Map();
    const url = new URL("socket", location.href);
    url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    url.hash = "";
    const socket = (this.socket = new WebSocket(url));
    socket.binaryType = "arraybuffer";
    socket.onmessage = (event) => event.data instanceof ArrayBuffer && this.take(event.data);
    socket.onopen = () => {
      this.wait = 250;
      this.on.status("open");
    };
    socket.onclose = () => {
      this.on.status("lost");
      setTimeout(() => this.open(), this.wait);
      this.wait = Math.min(5000, this.wait * 1.7);
    };
  }

  take(buffer) {
    const { head, start } = openMessage(buffer);
    if (head.type === "hello") {
      // A new connection or another run: no frames were received and no environments requested yet.
      this.latest.clear();
      this.wanted = null;
      this.on.hello(head);
    } else if (head.type === "counters") this.on.counters(head);
    else if (head.type === "history") this.on.history(head, buffer, start);
    else if (head.type === "error") this.on.failure(head.message);
    else if (head.type === "frame") {
      const frame = readFrame(head, buffer, start, this.latest.get(head.env));
      if (!frame) return this.socket.close(); // it refers to a schema or data the page does not have: reconnect
      this.latest.delete(head.env); // keeps the map in the order of use
      this.latest.set(head.env, frame);
      if (this.latest.size > KEPT) this.latest.delete(this.latest.keys().next().value);
      this.on.frame(frame);
    }
  }

  watch(envs, rate) {
    const wanted = JSON.stringify({ type: "watch", envs, rate });
    if (wanted === this.wanted) return;
    this.wanted = wanted;
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(wanted);
  }
}
