// Keeps the page current: fetches it again and puts the parts that changed in place, so that focus,
// selection and scrolling stay where they are.
"use strict";

const everyMs = 2000;
const timeoutMs = 5000;

async function refresh() {
  const stale = document.getElementById("stale");
  try {
    const answer = await fetch(location.pathname, { cache: "no-store", signal: AbortSignal.timeout(timeoutMs) });
    if (!answer.ok) {
      throw new Error(String(answer.status));
    }
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    document.title = next.title;
    for (const part of document.querySelectorAll("[data-live]")) {
      const newer = next.getElementById(part.id);
      if (newer === null) {
        continue;
      }
      if (part.className !== newer.className) {
        part.className = newer.className;
      }
      if (part.innerHTML !== newer.innerHTML) {
        const focused = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
        part.innerHTML = newer.innerHTML;
        if (focused !== null) {
          part.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
        }
      }
    }
    stale.hidden = true;
  } catch {
    stale.hidden = false;
  }
  setTimeout(refresh, document.hidden ? 5 * everyMs : everyMs);
}

document.addEventListener("visibilitychange", () => {
  document.documentElement.dataset.seen = String(!document.hidden);
});
setTimeout(refresh, everyMs);
