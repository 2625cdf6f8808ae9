"use strict";
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

(() => {
  const { root, gpus, packed, forbidden, wheel, slim, whole } = JSON.parse(document.getElementById("contents").textContent);
  const map = document.getElementById("map");
  const crumbs = document.getElementById("crumbs");
  const boxes = [...document.querySelectorAll('input[name="gpu"]')];
  const search = document.getElementById("search");
  const asPacked = document.getElementById("packed");
  const strips = [...document.querySelectorAll('input[name="strip"]')];
  const command = document.getElementById("slim");
  const outcome = document.getElementById("outcome");
  const HEAD = 19, GAP = 2, SMALLEST = 3, DEEPEST = whole === "all" ? 4 : 3, TWO_LINES = 36;
  let path = [root], chosen = new Set(), sought = "", tiles = [];

  // the bit of each GPU that is chosen; of a sort's bytes those stay that one of them needs, or that none cuts
  const wanted = () => gpus.reduce((bits, { gpu }, place) => (chosen.has(gpu) ? bits | (1n << BigInt(place)) : bits), 0n);
  let bits = 0n, strip = "";
  const stays = ([size, least, needed, served, cut]) =>
    !(bits & cut) || bits & needed ? size : bits & served ? 0 : least;
  const left = (node) => {
    if (strip && !node.children && (node.look === "debug" || (strip === "unneeded" && node.look === "symbols"))) return 0;
    if (!node.shares || !bits) return node.size;
    return node.shares.reduce((sum, share) => sum + stays(share), 0);
  };
  const kept = (node) =>
    node.children ? node.children.reduce((sum, child) => sum + kept(child), 0) : left(node) * scale(node);
  // packed bytes of a file are shared out among its parts by their size and, where it was measured, their density
  const weight = (node) =>
    node.children ? node.children.reduce((sum, child) => sum + weight(child), 0) : node.size * (node.density ?? 1);
  const scale = (node) => (asPacked?.checked ? node.ratio : 1);
  const total = (node) =>
    node.children ? node.children.reduce((sum, child) => sum + total(child), 0) : node.size * scale(node);
  function prepare(node, ratio) {
    const own = node.packed === undefined ? ratio : node.packed / (weight(node) || 1);
    node.ratio = own * (node.density ?? 1);
    node.shares = node.shares?.map(([size, least, ...sets]) => [size, least, ...sets.map(BigInt)]);
    for (const child of node.children ?? []) prepare(child, own);
  }
  prepare(root, 1);
  const isCut = (node) => (node.children ? node.children.some(isCut) : left(node) < node.size);
  // a file that is cut is packed anew, each part at its own density; another one stays as it is
  const anew = (node, changes) => {
    const within = node.packed === undefined ? changes : isCut(node);
    if (node.children) return node.children.reduce((sum, child) => sum + anew(child, within), 0);
    return left(node) * (within ? node.density ?? node.ratio : node.ratio);
  };
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `600 12px ${getComputedStyle(document.body).fontFamily}`;
  const wide = (text) => pen.measureText(text).width;
  // the name, its short form, or as much of its start and end as there is room for
  function fitted(node, room) {
    const whole = [node.name, node.short].find((text) => text && wide(text) <= room);
    if (whole) return whole;
    const name = node.short ?? node.name;
    for (let most = Math.min(name.length - 1, Math.ceil(room / 5)); most > 4; most -= 1) {
      const text = `${name.slice(0, Math.floor((most - 1) / 2))}…${name.slice(name.length - Math.ceil((most - 1) / 2))}`;
      if (wide(text) <= room) return text;
    }
    return "";
  }
  const matches = (node) => `${node.name} ${node.note ?? ""}`.toLowerCase().includes(sought);
  const found = (node) => matches(node) || (node.children ?? []).some(found);
  const named = () => [...chosen].join(", ");

  // Bruls, Huizing, van Wijk: Squarified Treemaps (2000). Rows along the shorter side, as long as they get squarer.
  function squarified(nodes, { x, y, w, h }) {
    const placed = [];
    const whole = nodes.reduce((sum, node) => sum + total(node), 0);
    const items = nodes.map((node) => ({ node, area: (total(node) * w * h) / whole })).filter(({ area }) => area > 0).sort((a, b) => b.area - a.area);
    const worst = (row, sum, side) =>
      Math.max((side * side * row[0].area) / (sum * sum), (sum * sum) / (side * side * row[row.length - 1].area));
    let start = 0;
    while (start < items.length && w > 0 && h > 0) {
      const side = Math.min(w, h);
      let end = start + 1, sum = items[start].area;
      while (end < items.length) {
        const more = sum + items[end].area;
        if (worst(items.slice(start, end + 1), more, side) > worst(items.slice(start, end), sum, side)) break;
        sum = more;
        end += 1;
      }
      const depth = sum / side;
      let along = 0;
      for (const { node, area } of items.slice(start, end)) {
        const length = area / depth;
        placed.push([node, w >= h ? { x, y: y + along, w: depth, h: length } : { x: x + along, y, w: length, h: depth }]);
        along += length;
      }
      if (w >= h) { x += depth; w -= depth; } else { y += depth; h -= depth; }
      start = end;
    }
    return placed;
  }

  function draw(node, box, depth, trail) {
    for (const [child, cell] of squarified(node.children, box)) {
      const inner = { x: cell.x + GAP / 2, y: cell.y + GAP / 2, w: cell.w - GAP, h: cell.h - GAP };
      if (inner.w < SMALLEST || inner.h < SMALLEST) continue;
      const opens = child.children && depth < DEEPEST && inner.w > 34 && inner.h > HEAD + 14;
      place(child, inner, depth, [...trail, child], opens);
      if (opens) {
        const room = { x: inner.x + GAP, y: inner.y + HEAD, w: inner.w - 2 * GAP, h: inner.h - HEAD - GAP };
        draw(child, room, depth + 1, [...trail, child]);
      }
    }
  }

  function place(node, { x, y, w, h }, depth, trail, opens) {
    const zooms = trail.find((step, place) => place >= path.length && step.children);
    const tile = element("button", `tile ${opens ? `frame ${depth > 1 ? "inner" : ""}` : node.look}`);
    tile.type = "button";
    Object.assign(tile.style, { left: `${x}px`, top: `${y}px`, width: `${w}px`, height: `${h}px` });
    if (!opens) {
      const lost = 1 - kept(node) / total(node);
      if (lost > 0.001) {
        const gone = element("span", "gone");
        gone.style.width = `${100 * lost}%`;
        tile.append(gone);
      }
    }
    if (w > 40 && h > 17) {
      const size = sized(total(node));
      const room = opens ? w - 14 - wide(`${size} `) : w - 14;
      const name = element("span", "name", fitted(node, room > 60 ? room : w - 14));
      if (opens ? room > 60 : h > TWO_LINES && wide(size) < w - 12) name.append(opens ? " " : "", element("i", "", size));
      tile.append(name);
    }
    if (sought && !(trail.some(matches) || found(node))) tile.classList.add("dim");
    if (zooms) tile.classList.add("zooms");
    const said = lines(node, trail);
    tile.setAttribute("aria-label", said.join(", "));
    tile.tabIndex = tiles.length ? -1 : 0;
    tile.addEventListener("click", () => { if (zooms) zoom([...path, zooms]); });
    tile.addEventListener("mousemove", (event) => show(said, event.clientX, event.clientY));
    tile.addEventListener("mouseleave", hide);
    tile.addEventListener("focus", () => {
      if (!tile.matches(":focus-visible")) return;
      const at = tile.getBoundingClientRect();
      show(said, at.left + Math.min(at.width, 60), at.top + Math.min(at.height, 24));
    });
    tile.addEventListener("blur", hide);
    tiles.push({ tile, x: x + w / 2, y: y + h / 2 });
    map.append(tile);
  }

  function lines(node, trail) {
    const where = trail.slice(path.length, -1).map((step) => step.name).join(" › ");
    const said = [where ? `${where} › ${node.name}` : node.name, `${sized(total(node))}, ${percent(total(node), total(root))} of ${whole}`];
    if (node.note) said.push(node.note);
    if (kept(node) < total(node)) said.push(`${chosen.size ? `slimmed to ${named()}` : "stripped"}: ${sized(kept(node))}`);
    return said;
  }

  function render() {
    hide();
    tiles = [];
    map.replaceChildren();
    draw(path[path.length - 1], { x: 0, y: 0, w: map.clientWidth, h: map.clientHeight }, 1, path);
    crumbs.replaceChildren(...path.flatMap((node, place) => {
      const button = element("button", "", node.name);
      button.type = "button";
      if (place === path.length - 1) button.setAttribute("aria-current", "true");
      else button.addEventListener("click", () => zoom(path.slice(0, place + 1)));
      return place ? [element("span", "", "›"), button] : [button];
    }));
  }

  function zoom(to) {
    const within = map.contains(document.activeElement);
    path = to;
    render();
    if (!matchMedia("(prefers-reduced-motion: reduce)").matches) {
      map.animate([{ opacity: 0.2, transform: "scale(0.985)" }, {}], { duration: 220, easing: "ease-out" });
    }
    if (within && tiles.length) tiles[0].tile.focus();
  }

  map.addEventListener("keydown", (event) => {
    if ((event.key === "Escape" || event.key === "Backspace") && path.length > 1) {
      event.preventDefault();
      zoom(path.slice(0, -1));
      return;
    }
    const here = tiles.find(({ tile }) => tile === document.activeElement);
    const next = here && nearest(tiles, here, event);
    if (next) {
      here.tile.tabIndex = -1;
      next.tile.tabIndex = 0;
      next.tile.focus();
    }
  });

  function update() {
    bits = wanted();
    strip = strips.filter((box) => box.checked).at(-1)?.value ?? "";
    for (const box of boxes) box.checked = chosen.has(box.value);
    for (const row of document.querySelectorAll("tr[data-gpu]")) row.classList.toggle("chosen", chosen.has(row.dataset.gpu));
    const about = asPacked?.checked ? "about " : "";
    // the headers of the archive stay
    const before = about ? packed : total(root);
    const saved = total(root) - (about ? anew(root, false) : kept(root));
    outcome.replaceChildren();
    if (chosen.size || strip) {
      const what = chosen.size ? `Slimmed to ${named()}${chosen.size === 1 ? " alone" : ""}` : "Stripped";
      outcome.append(`${what}: ${sized(before)} become `, element("strong", "", about + sized(before - saved)),
        `, ${percent(saved, before)} less. `);
      for (const { gpu, runs } of gpus.filter((item) => chosen.has(item.gpu))) {
        const on = chosen.size > 1 ? ` on ${gpu}` : "";
        outcome.append(element("span", runs === "no" ? "lost" : "", `Its code runs ${runs}${on}. `));
      }
      if (forbidden) {
        outcome.append(element("span", "lost", `Its licence forbids changes: the command refuses without --accept-license ${forbidden}.`));
      }
    } else if (boxes.length) {
      outcome.append("Choose GPUs to see what slimming to them would take away.");
    }
    const words = [quoted(wheel)];
    if (chosen.size) words.push("--gpu", quoted([...chosen].join(",")));
    if (strip) words.push(`--strip ${strip}`);
    command.hidden = words.length === 1 || !slim;
    const typed = slim.replace("{}", () => words.join(" ")).split(" ");
    command.querySelector("code").replaceChildren(...typed.flatMap((word, place) => [place ? " " : "", element("span", "", word)]));
    render();
  }
  const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

  function choose(name, isChosen) {
    if (isChosen) chosen.add(name);
    else chosen.delete(name);
    update();
  }

  for (const box of boxes) box.addEventListener("change", () => choose(box.value, box.checked));
  for (const row of document.querySelectorAll("tr[data-gpu]")) {
    row.addEventListener("click", () => choose(row.dataset.gpu, !chosen.has(row.dataset.gpu)));
  }
  for (const box of [asPacked, ...strips]) box?.addEventListener("change", update);
  search.addEventListener("input", () => {
    sought = search.value.trim().toLowerCase();
    render();
  });
  for (const block of document.querySelectorAll(".command")) {
    const copy = block.querySelector("button");
    copy.addEventListener("click", async () => {
      const code = block.querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
        copy.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(code);
        copy.textContent = "Press Ctrl+C";
      }
      setTimeout(() => { copy.textContent = "Copy"; }, 2000);
    });
  }
  let width = 0;
  new ResizeObserver(() => {
    if (map.clientWidth * map.clientHeight !== width) {
      width = map.clientWidth * map.clientHeight;
      render();
    }
  }).observe(map);
  // a link may name GPUs, and how to count: page.html#sm_80,sm_90,packed
  const linked = new Set(decodeURIComponent(location.hash.slice(1)).split(","));
  chosen = new Set(gpus.map((item) => item.gpu).filter((gpu) => linked.has(gpu)));
  if (asPacked) asPacked.checked = linked.has("packed");
  update();
})();
