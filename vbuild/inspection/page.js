(() => {
  const { root, gpus, installed } = JSON.parse(document.getElementById("contents").textContent);
  const map = document.getElementById("map");
  const crumbs = document.getElementById("crumbs");
  const select = document.getElementById("gpu");
  const outcome = document.getElementById("outcome");
  const HEAD = 19, GAP = 2, SMALLEST = 3, DEEPEST = 3, LETTER = 7.3;
  let path = [root], gpu = "", tiles = [];

  const kept = (node) =>
    node.children ? node.children.reduce((sum, child) => sum + kept(child), 0)
      : node.kept && gpu ? node.kept[gpu] ?? 0 : node.size;

  // Bruls, Huizing, van Wijk: Squarified Treemaps (2000). Rows along the shorter side, as long as they get squarer.
  function squarified(nodes, { x, y, w, h }) {
    const placed = [];
    const total = nodes.reduce((sum, node) => sum + node.size, 0);
    const items = nodes.map((node) => ({ node, area: (node.size * w * h) / total })).sort((a, b) => b.area - a.area);
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
    if (!opens && gpu) {
      const lost = 1 - kept(node) / node.size;
      if (lost > 0.001) {
        const gone = element("span", "gone");
        gone.style.width = `${100 * lost}%`;
        tile.append(gone);
      }
    }
    if (w > 40 && h > 17) {
      const name = element("span", "name", node.name);
      const size = sized(node.size);
      if (w > LETTER * (node.name.length + size.length + 3)) name.append(" ", element("i", "", size));
      tile.append(name);
    }
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
    const said = [where ? `${where} › ${node.name}` : node.name, `${sized(node.size)}, ${percent(node.size, installed)} of the wheel`];
    if (node.note) said.push(node.note);
    if (gpu && kept(node) < node.size) said.push(`slimmed to ${gpu}: ${sized(kept(node))}`);
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

  function choose(name) {
    gpu = name;
    if (select) select.value = name;
    for (const row of document.querySelectorAll("tr[data-gpu]")) row.classList.toggle("chosen", row.dataset.gpu === name);
    if (outcome) {
      outcome.replaceChildren();
      const found = gpus.find((item) => item.gpu === name);
      if (found) {
        const saved = root.size - kept(root);
        outcome.append(`Slimmed to ${name} alone: ${sized(installed)} become `, element("strong", "", sized(installed - saved)),
          `, ${percent(saved, installed)} less. `, element("span", found.runs === "no" ? "lost" : "", `Its code runs ${found.runs}.`));
      } else {
        outcome.append("Choose a GPU to see what slimming to it would take away.");
      }
    }
    render();
  }

  if (select) select.addEventListener("change", () => choose(select.value));
  for (const row of document.querySelectorAll("tr[data-gpu]")) {
    row.addEventListener("click", () => choose(row.dataset.gpu === gpu ? "" : row.dataset.gpu));
  }
  let width = 0;
  new ResizeObserver(() => {
    if (map.clientWidth !== width) {
      width = map.clientWidth;
      render();
    }
  }).observe(map);
  // a link may name the GPU: page.html#sm_90
  const asked = decodeURIComponent(location.hash.slice(1));
  choose(gpus.some((item) => item.gpu === asked) ? asked : "");
})();
