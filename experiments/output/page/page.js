"use strict";
// Words of a piece of a chart beside the pointer, or beside the piece that has the keyboard.
const tip = document.getElementById("tip");
function show(piece, x, y) {
  tip.textContent = piece.dataset.words;
  tip.hidden = false;
  tip.style.left = Math.max(8, Math.min(x + 12, window.innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = Math.max(8, Math.min(y + 12, window.innerHeight - tip.offsetHeight - 8)) + "px";
}
for (const piece of document.querySelectorAll(".piece")) {
  for (const title of piece.querySelectorAll("title")) title.remove(); // the browser's own would come late, and twice
  piece.addEventListener("mousemove", (event) => show(piece, event.clientX, event.clientY));
  piece.addEventListener("focus", () => {
    const box = piece.getBoundingClientRect();
    show(piece, box.left, box.bottom);
  });
  for (const end of ["mouseleave", "blur"]) piece.addEventListener(end, () => { tip.hidden = true; });
}
document.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });
// A lane of passes: the arrow keys go through them.
for (const lane of document.querySelectorAll(".lane")) {
  const passes = [...lane.querySelectorAll(".piece")];
  lane.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowLeft: -1 };
    const now = passes.indexOf(document.activeElement);
    const next = event.key === "Home" ? 0 : event.key === "End" ? passes.length - 1 : now + (steps[event.key] || NaN);
    if (!passes[next]) return;
    event.preventDefault();
    passes[next].focus();
  });
}
// A choice of the rank that is shown, where there are several.
for (const lanes of document.querySelectorAll(".lanes")) {
  const ranks = [...lanes.querySelectorAll(".rank")];
  if (ranks.length < 2) continue;
  const choice = document.createElement("select");
  choice.className = "choice";
  choice.setAttribute("aria-label", "Ranks to show");
  for (const name of ["All of them", ...ranks.map((rank) => rank.dataset.name)]) choice.add(new Option(name));
  choice.addEventListener("change", () => {
    ranks.forEach((rank, place) => { rank.hidden = choice.selectedIndex > 0 && choice.selectedIndex !== place + 1; });
  });
  lanes.prepend(choice);
}
// A filter above every long table.
for (const table of document.querySelectorAll("table")) {
  const rows = [...table.tBodies[0].rows];
  if (rows.length < 8) continue;
  const box = document.createElement("input");
  box.type = "search";
  box.className = "filter";
  box.placeholder = "Filter " + rows.length + " rows";
  box.setAttribute("aria-label", box.placeholder);
  box.addEventListener("input", () => {
    const wanted = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !wanted.every((word) => text.includes(word));
    }
  });
  table.parentNode.insertBefore(box, table);
}
