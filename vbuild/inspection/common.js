"use strict";
// what the map and the graph of libraries share

const sized = (size) =>
  size >= 1e10 ? `${(size / 1e9).toFixed(1)} GB` : size >= 1e5 ? `${(size / 1e6).toFixed(1)} MB`
    : size >= 1e3 ? `${(size / 1e3).toFixed(1)} kB` : `${size} B`;
const percent = (part, whole) => {
  const share = whole ? (100 * part) / whole : 0;
  return share > 0 && share < 0.5 ? "<1 %" : `${Math.round(share)} %`;
};
const element = (tag, className, text) => {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
};

const tip = document.getElementById("tip");
function show([first, ...rest], x, y) {
  tip.replaceChildren(element("b", "", first), ...rest.map((line) => element("span", "", line)));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - width - 8))}px`;
  tip.style.top = `${y + 18 + height > innerHeight ? Math.max(8, y - height - 10) : y + 18}px`;
}
const hide = () => { tip.hidden = true; };

// the one of several things at x, y that an arrow key goes to from here; none where there is nothing that way
const ARROWS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
function nearest(things, here, event) {
  if (!(event.key in ARROWS)) return undefined;
  event.preventDefault();
  const [dx, dy] = ARROWS[event.key];
  const far = (other) => {
    const along = (other.x - here.x) * dx + (other.y - here.y) * dy;
    const aside = Math.abs((other.x - here.x) * dy) + Math.abs((other.y - here.y) * dx);
    return along > 1 ? along + 2 * aside : Infinity;
  };
  const next = things.reduce((best, other) => (far(other) < far(best) ? other : best), here);
  return next === here ? undefined : next;
}

