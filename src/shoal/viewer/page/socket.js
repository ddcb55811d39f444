// The connection: reconnects whenever it breaks, and completes frames with fields of earlier frames.
import { openMessage, readFrame } from "./fields.js";

const KEPT = 64;
const NO_SESSION = 4404;

function socketUrl(session) {
  const url = new URL("socket", location.href);
  url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  url.hash = url.search = "";
  if (session) url.searchParams.set("session", session);
  return url;
}

/** Follows the history of another session; `on` has history and missing. Returns a function that ends it. */
export function follow(session, on) {
  const socket = new WebSocket(socketUrl(session));
  socket.binaryType = "arraybuffer";
  socket.onmessage = ({ data }) => {
    const { head, start } = openMessage(data);
    if (head.type === "history") on.history(head, data, start);
  };
  socket.onclose = (event) => on.missing(event.reason || "The connection to the other session was lost");
  return () => {
    socket.onclose = socket.onmessage = null;
    socket.close();
  };
}

/** Decodes the frames of a recording; each one is a message of its own. */
function readFrames({ frames }, buffer, start) {
  const all = [];
  for (const [offset, bytes] of frames) {
    const data = buffer.slice(start + offset, start + offset + bytes),
      one = openMessage(data),
      frame = readFrame(one.head, data, one.start, all[all.length - 1]);
    if (frame) all.push(frame);
  }
  return all;
}

export class Connection {
  /** `on` has hello, counters, history, recordings, recording, frame, link, failure, missing and status ("connecting", "open", "lost"). */
  constructor(on) {
    this.on = on;
    this.wait = 250;
    this.wanted = null;
    this.session = "";
    this.open();
  }

  /** Connects to another session of this user; "" is the one that the viewer was started with. */
  choose(session) {
    if (session === this.session) return;
    this.session = session;
    this.socket.onclose = this.socket.onmessage = null;
    this.socket.close();
    clearTimeout(this.timer);
    this.on.status("connecting");
    this.open();
  }

  open() {
    this.latest = new Map();
    const socket = (this.socket = new WebSocket(socketUrl(this.session)));
    socket.binaryType = "arraybuffer";
    socket.onmessage = (event) => event.data instanceof ArrayBuffer && this.take(event.data);
    socket.onopen = () => {
      this.wait = 250;
      this.on.status("open");
    };
    socket.onclose = (event) => {
      if (event.code === NO_SESSION) return this.on.missing(event.reason);
      this.on.status("lost");
      this.timer = setTimeout(() => this.open(), this.wait);
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
    else if (head.type === "recordings") this.on.recordings(head);
    else if (head.type === "recording") this.on.recording(head, readFrames(head, buffer, start));
    else if (head.type === "link") this.on.link(head);
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

  askForLink() {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify({ type: "link" }));
  }

  askForRecording(number) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify({ type: "recording", number }));
  }

  watch(envs, rate) {
    const wanted = JSON.stringify({ type: "watch", envs, rate });
    if (wanted === this.wanted) return;
    this.wanted = wanted;
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(wanted);
  }
}
