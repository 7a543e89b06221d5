// The keys of the page. What they do is also there as links and buttons.
"use strict";

const rows = () => [...document.querySelectorAll("tr[data-n]")];

function move(by) {
  const all = rows();
  if (!all.length) return;
  const now = all.findIndex((row) => row.getAttribute("aria-current") === "true");
  const to = all[Math.min(Math.max(now + by, 0), all.length - 1)];
  all.forEach((row) => row.removeAttribute("aria-current"));
  to.setAttribute("aria-current", "true");
  to.querySelector("a").focus();
}

function follow(selector) {
  document.querySelector(selector)?.click();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const actions = {
    "/": () => document.getElementById("search")?.focus(),
    j: () => (rows().length ? move(1) : follow('a[rel="next"]')),
    k: () => (rows().length ? move(-1) : follow('a[rel="prev"]')),
    Escape: () => follow("#back"),
  };
  const action = document.getElementById("back")
    ? { ...actions, j: () => follow('a[rel="next"]'), k: () => follow('a[rel="prev"]') }[event.key]
    : actions[event.key];
  if (action) {
    event.preventDefault();
    action();
  } else if ("rwusf".includes(event.key)) {
    follow(`button.label[data-key="${event.key}"]`);
  }
});
