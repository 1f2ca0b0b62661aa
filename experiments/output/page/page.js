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
