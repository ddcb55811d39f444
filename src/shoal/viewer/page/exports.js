// Exports pictures and videos of the view, made in the page from the kept frames.
import { $, el, say, theme } from "./dom.js";
import { GifWriter } from "./gif.js";
import { Scene, layersOf } from "./scene.js";

const RATE = 10,
  WIDEST = 720;
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

/** Draws frames with the view's current camera, layers and selection. */
class Studio {
  constructor(view, widest, ratio = 1) {
    const width = Math.min(widest, Math.round(view.camera.width));
    const height = Math.round((width / view.camera.width) * view.camera.height);
    Object.assign(this, { view, ratio, scene: new Scene(), camera: view.camera.sized(width, height) });
    this.canvas = el("canvas", { width: Math.round(width * ratio), height: Math.round(height * ratio) });
    this.ctx = this.canvas.getContext("2d", { willReadFrequently: ratio === 1 });
  }

  draw(frame) {
    const { ctx, view, camera, ratio } = this;
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    const layers = layersOf(frame, Math.max(0, view.agent), view.look.agents);
    this.scene.drawAll(ctx, camera, ratio, frame, layers, view.look, theme().stage);
    const parts = [`env ${frame.env}`, `episode ${frame.episode}`, `tick ${frame.tick}`, frame.note];
    const text = parts.filter(Boolean).join(" · ");
    ctx.font = "12px system-ui, sans-serif";
    ctx.textBaseline = "middle";
    ctx.textAlign = "left";
    const long = ctx.measureText(text).width + 16;
    ctx.fillStyle = "rgba(8,14,20,0.72)";
    ctx.fillRect(0, camera.height - 24, long, 24);
    ctx.fillStyle = "#ffffff";
    ctx.fillText(text, 8, camera.height - 12);
    return this.canvas;
  }
}

export function makePng(view, frame) {
  const studio = new Studio(view, Infinity, window.devicePixelRatio || 1);
  return new Promise((done) => studio.draw(frame).toBlob(done, "image/png"));
}

export async function makeGif(view, frames, progress) {
  const studio = new Studio(view, WIDEST);
  const gif = new GifWriter(studio.canvas.width, studio.canvas.height);
  for (let i = 0; i < frames.length; i++) {
    studio.draw(frames[i]);
    const { data } = studio.ctx.getImageData(0, 0, studio.canvas.width, studio.canvas.height);
    gif.add(data, i + 1 < frames.length ? frames[i + 1].time - frames[i].time : 1 / RATE);
    progress((i + 1) / frames.length);
    await pause(0); // keeps the page responsive
  }
  return gif.finish();
}

export const canFilm = (type) =>
  typeof MediaRecorder !== "undefined" &&
  "captureStream" in HTMLCanvasElement.prototype &&
  MediaRecorder.isTypeSupported(`video/${type}`);

/** Plays the frames again at their original speed and records them with the browser's recorder. */
export async function makeVideo(view, frames, progress, type) {
  const studio = new Studio(view, 1280);
  studio.draw(frames[0]);
  const recorder = new MediaRecorder(studio.canvas.captureStream(30), {
    mimeType: `video/${type}`,
    videoBitsPerSecond: 8e6,
  });
  const parts = [];
  recorder.ondataavailable = (event) => parts.push(event.data);
  const ended = new Promise((done) => (recorder.onstop = done));
  recorder.start();
  const began = performance.now();
  for (let i = 0; i < frames.length; i++) {
    await pause((frames[i].time - frames[0].time) * 1000 - (performance.now() - began));
    studio.draw(frames[i]);
    progress((i + 1) / frames.length);
  }
  await pause(120);
  recorder.stop();
  await ended;
  return new Blob(parts, { type: `video/${type}` });
}

export const makeWebm = (view, frames, progress) => makeVideo(view, frames, progress, "webm");
const makeMp4 = (view, frames, progress) => makeVideo(view, frames, progress, "mp4");

export function save(blob, name) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** The export dialog: format and duration. `view()` and `frame()` return the current view and frame, and `episode()`
 * the frames of the episode that is replayed, if there is one: then all of it is exported. */
export function exportDialog({ view, frame, history, episode, name }) {
  const dialog = $("export"),
    bar = $("export-progress"),
    note = $("export-note");
  const progress = (part) => (bar.value = part);
  const buttons = ["export-png", "export-gif", "export-webm", "export-mp4"].map($);
  const allow = () => {
    for (const button of buttons) button.disabled = false;
    $("export-webm").disabled = !canFilm("webm");
    $("export-mp4").hidden = !canFilm("mp4");
  };
  allow();
  async function run(make) {
    for (const button of buttons) button.disabled = true;
    try {
      await make();
    } catch (error) {
      say(note, `The export failed: ${error.message}`);
    }
    bar.hidden = true;
    allow();
  }
  const film = (make, ending) =>
    run(async () => {
      const seconds = Math.min(300, Math.max(1, Number($("export-seconds").value) || 5));
      bar.hidden = false;
      const isNext = $("export-when").value === "now" && !episode();
      if (isNext) {
        // Future frames are kept as well: wait for them, then take the last seconds.
        for (let s = 0; s < seconds; s++) {
          say(note, `Recording: ${seconds - s} s left`);
          progress(s / seconds);
          await pause(1000);
        }
      }
      const until = isNext ? history.last : frame();
      const frames = episode() ?? history.lastSeconds(seconds, ending === "gif" ? RATE : 30, until);
      say(note, `Making ${frames.length} pictures`);
      const blob = await make(view(), frames, progress);
      save(blob, `${name()}.${ending}`);
      say(note, `Saved, ${(blob.size / 1e6).toFixed(1)} MB`);
    });
  $("export-png").addEventListener("click", () =>
    run(async () => {
      save(await makePng(view(), frame()), `${name()}.png`);
      say(note, "Saved");
    }),
  );
  $("export-gif").addEventListener("click", () => film(makeGif, "gif"));
  $("export-webm").addEventListener("click", () => film(makeWebm, "webm"));
  $("export-mp4").addEventListener("click", () => film(makeMp4, "mp4"));
  return () => {
    say(note, episode() ? "GIF and video have the whole replayed episode; PNG has this frame." : "");
    $("export-span").hidden = !!episode();
    dialog.showModal();
  };
}
