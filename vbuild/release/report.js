"use strict";
// filter and sort the rows of the table of wheels; all of them are there without this
const table = document.getElementById("table");
const rows = table ? [...table.querySelectorAll("tr.wheel")] : [];

const field = document.getElementById("filter");
if (field) {
  const texts = rows.map((row) =>
    `${row.textContent} ${row.cells[0].title} ${row.parentElement.querySelector(".group")?.textContent ?? ""}`.toLowerCase());
  const show = () => {
    const words = field.value.toLowerCase().split(/[\s,]+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, place) => {
      row.hidden = !words.every((word) => texts[place].includes(word));
      shown += row.hidden ? 0 : 1;
    });
    for (const body of table.tBodies) body.hidden = [...body.querySelectorAll(".wheel")].every((row) => row.hidden);
    document.getElementById("shown").textContent = words.length ? `${shown} of ${rows.length}` : "";
  };
  field.parentElement.hidden = false;
  field.addEventListener("input", show);
  const asked = decodeURIComponent(location.hash.slice(1));
  if (asked.startsWith("only=")) {
    field.value = asked.slice("only=".length);
    show();
  }
}

const value = (row, column, kind) => {
  const cell = row.cells[column];
  return kind === "number" ? Number(cell.dataset.value) : cell.textContent.trim();
};
const compare = (one, other) => typeof one === "number" ? one - other : one.localeCompare(other, "en", { numeric: true });
for (const head of rows.length > 1 ? table.tHead.rows[0].cells : []) {
  const kind = head.dataset.sort;
  if (!kind) continue;
  const button = document.createElement("button");
  button.type = "button";
  button.append(...head.childNodes);
  head.append(button);
  button.addEventListener("click", () => {
    // numbers from the largest on: what is large is what one looks for
    const first = kind === "number" ? "descending" : "ascending";
    const next = head.ariaSort === first ? (first === "ascending" ? "descending" : "ascending") : first;
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", next);
    const sign = next === "ascending" ? 1 : -1;
    for (const body of table.tBodies) {
      const own = [...body.querySelectorAll(".wheel")];
      own.sort((one, other) => sign * compare(value(one, head.cellIndex, kind), value(other, head.cellIndex, kind)));
      body.append(...own);
    }
  });
}
