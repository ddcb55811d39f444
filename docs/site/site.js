/* Light or dark, the menu of small screens, copy buttons and the search. The pages can be read without this script. */
const root = document.documentElement;
const remembered = (() => { try { return localStorage.getItem("theme"); } catch { return null; } })();
const dark = matchMedia("(prefers-color-scheme: dark)");
const paint = () => { root.dataset.theme = root.dataset.chosen || (dark.matches ? "dark" : "light"); };
if (remembered) root.dataset.chosen = remembered;
paint();
dark.addEventListener("change", paint);

/* The search index is a script and not JSON, because a page opened from a folder cannot fetch files. It is loaded at
   the first search. */
let loading;
const index = () => loading ??= new Promise((done) => {
  const script = document.createElement("script");
  script.src = "search.js";
  script.onload = () => done(window.SEARCH.map(([href, page, heading, words]) =>
    ({ href, page, heading, words, low: [page, heading, words].map((part) => part.toLowerCase()) })));
  document.head.append(script);
});

const search = (entries, text) => {
  const terms = text.toLowerCase().split(/\s+/).filter(Boolean);
  const score = (entry) => {
    let sum = 0;
    for (const term of terms) {
      const [page, heading, words] = entry.low;
      const found = (heading === term ? 40 : 0) + (heading.includes(term) ? 12 : 0) + (page.includes(term) ? 5 : 0)
        + Math.min(words.split(term).length - 1, 4);
      if (!found) return 0;
      sum += found;
    }
    return sum;
  };
  return entries.map((entry) => [score(entry), entry]).filter(([sum]) => sum)
    .sort((a, b) => b[0] - a[0]).slice(0, 12).map(([, entry]) => ({ ...entry, term: terms[0] }));
};

const marked = (text, term) => {
  const at = Math.max(text.toLowerCase().indexOf(term), 0);
  const from = Math.max(at - 40, 0);
  const line = document.createElement("small");
  const mark = document.createElement("mark");
  mark.textContent = text.toLowerCase().includes(term) ? text.slice(at, at + term.length) : "";
  line.append((from ? "…" : "") + text.slice(from, at), mark, text.slice(at + mark.textContent.length, at + 90));
  return line;
};

/* The text that a reader wants to paste: of a terminal session the commands, of a Python session the input. */
const pasted = (code, language) => {
  const lines = code.split("\n");
  const after = (prompts) => lines.flatMap((line) => {
    const prompt = prompts.find((one) => line.startsWith(one));
    return prompt ? [line.slice(prompt.length)] : [];
  }).join("\n") + "\n";
  if (language === "console") return after(["$ "]);
  return language === "pycon" ? after([">>> ", "... "]) : code;
};

/* Drawings and sample output (plain and `text` blocks) have no button. */
const addCopyButtons = () => {
  for (const pre of document.querySelectorAll('article pre[data-language]:not([data-language="text"])')) {
    const frame = Object.assign(document.createElement("div"), { className: "snippet" });
    const button = Object.assign(document.createElement("button"), { className: "copy", type: "button", textContent: "Copy" });
    button.setAttribute("aria-label", "Copy this code");
    button.addEventListener("click", async () => {
      const text = pasted(pre.querySelector("code").textContent, pre.dataset.language);
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "Copied";
      } catch { /* no clipboard: select the text instead */
        getSelection().selectAllChildren(pre.querySelector("code"));
        button.textContent = "Press Ctrl+C";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    pre.replaceWith(frame);
    frame.append(pre, button);
  }
};

addEventListener("DOMContentLoaded", () => {
  addCopyButtons();
  const input = document.getElementById("search");
  const list = document.getElementById("found");
  const show = async () => {
    const text = input.value.trim();
    if (!text) { list.hidden = true; return; }
    const found = search(await index(), text);
    if (input.value.trim() !== text) return; /* typed on meanwhile */
    list.replaceChildren(...found.map(({ href, page, heading, words, term }) => {
      const item = document.createElement("li");
      const link = Object.assign(document.createElement("a"), { href });
      const title = document.createElement("b");
      title.textContent = heading && heading !== page ? `${heading} · ${page}` : page;
      link.append(title, marked(words, term));
      item.append(link);
      return item;
    }));
    if (!found.length) list.append(Object.assign(document.createElement("li"), { className: "none", textContent: "Nothing found" }));
    list.hidden = false;
  };
  const move = (by) => {
    const links = [...list.querySelectorAll("a")];
    const at = links.indexOf(document.activeElement) + by;
    (at < 0 ? input : links[Math.min(at, links.length - 1)])?.focus();
  };
  input.addEventListener("input", show);
  input.addEventListener("focus", show);
  addEventListener("keydown", (event) => {
    const inside = event.target.closest(".search");
    if (event.key === "/" && !inside) { event.preventDefault(); input.focus(); input.select(); }
    if (event.key === "Escape") { list.hidden = true; input.blur(); }
    if (!inside) return;
    if (event.key === "ArrowDown") { event.preventDefault(); move(1); }
    if (event.key === "ArrowUp") { event.preventDefault(); move(-1); }
    if (event.key === "Enter" && event.target === input) list.querySelector("a")?.click();
  });
  addEventListener("click", (event) => {
    if (!event.target.closest(".search") || event.target.closest("#found a")) list.hidden = true;
  });

  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.chosen = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.chosen); } catch { /* then it is forgotten */ }
    paint();
  });
  const menu = document.getElementById("menu");
  menu.addEventListener("click", () => {
    menu.setAttribute("aria-expanded", document.body.classList.toggle("open"));
  });
  const nav = document.querySelector("nav");
  nav.scrollTop = Math.max((nav.querySelector("[aria-current]")?.offsetTop ?? 0) - nav.clientHeight / 2, 0);
});
