// The dialog that gives somebody else a link: what read-only means, a link that works once, and an SSH tunnel.
import { $, say } from "./dom.js";

/** Opens the dialog and asks the server for a new link. */
export function openShare(connection) {
  say($("share-link"), "…");
  say($("share-note"), "");
  $("share-copy").disabled = true;
  $("share").showModal();
  connection.askForLink();
}

/** Shows the link that the server made. */
export function showShare({ url, host, port }) {
  say($("share-link"), url);
  say($("share-tunnel"), `ssh -N -L ${port}:127.0.0.1:${port} ${host}`);
  $("share-copy").disabled = false;
}

$("share-copy").addEventListener("click", async () => {
  const done = await navigator.clipboard?.writeText($("share-link").textContent).then(
    () => true,
    () => false,
  );
  say($("share-note"), done ? "Copied." : "The browser does not allow copying: select the link and copy it.");
});
