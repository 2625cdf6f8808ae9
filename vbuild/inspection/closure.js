(() => {
  const { closure } = JSON.parse(document.getElementById("contents").textContent);
  const graph = document.getElementById("graph");
  const lines = document.getElementById("lines");
  const why = document.getElementById("why");
  const table = document.getElementById("closure-table");
  const { rows, cards, links } = closure;
  const MANY = 120;
  const VIAS = { inherited: "by the path of what loads it", name: "if loaded before" };
  const largest = Math.max(1, ...cards.map((card) => card.size ?? 0));
  const of = (id) => cards[id];
  const below = new Map(cards.map(({ id }) => [id, links.filter((link) => link.from === id)]));
  const above = new Map(cards.map(({ id }) => [id, links.filter((link) => link.to === id)]));
  let chosen = null, places = [], buttons = [];

  function drawn(card) {
    const button = element("button", `card ${card.look}`);
    button.type = "button";
    const title = element("span", "title");
    // a name too long for its card is broken where a part of it ends
    for (const piece of card.title.split(/(?<=[_-])|(?=\.)/)) title.append(piece, element("wbr"));
    button.append(title);
    if (card.note) button.append(element("span", "note", card.note));
    if (card.size !== null) {
      const size = element("span", "size", sized(card.size));
      const bar = element("i");
      bar.style.width = `${Math.max(1.5, (100 * card.size) / largest)}%`;
      button.append(size, bar);
    } else if (card.cuda) button.append(element("span", "size", card.cuda));
    button.setAttribute("aria-label", said(card).join(". "));
    button.addEventListener("click", () => choose(chosen === card.id ? null : card.id));
    button.addEventListener("mouseenter", () => light(card.id));
    button.addEventListener("mousemove", (event) => show(said(card), event.clientX, event.clientY));
    button.addEventListener("mouseleave", () => { hide(); light(chosen); });
    button.addEventListener("focus", () => {
      for (const other of buttons) other.tabIndex = -1;
      button.tabIndex = 0;
      if (button.matches(":focus-visible")) light(card.id);
    });
    button.addEventListener("blur", () => { hide(); light(chosen); });
    buttons[card.id] = button;
    return button;
  }

  // what the tooltip and a screen reader say of a card
  function said(card) {
    const [chain] = card.chains;
    const text = [card.title];
    if (card.size !== null) text.push(`${sized(card.size)}, ${what(card)}`);
    else text.push([what(card), card.note, card.cuda].filter(Boolean).join(", "));
    if (chain) text.push(chain.map((id) => of(id).title).join(" › "));
    return text;
  }
  const what = (card) => ({
    module: "extension module", program: "program", library: "library of the wheel", idle: "nothing needs or names it",
    outside: "of another package", driver: "the driver's", missing: "not found",
  })[card.look];

  function light(id) {
    graph.classList.toggle("lit", id !== null);
    const on = new Set(id === null ? [] : [id]), strong = new Set();
    const near = new Set();
    if (id !== null) {
      for (const chain of of(id).chains) {
        chain.forEach((step, place) => {
          on.add(step);
          if (place) strong.add(`${chain[place - 1]} ${step}`);
        });
      }
      for (const link of below.get(id)) near.add(link.to);
      for (const link of above.get(id)) near.add(link.from);
    }
    cards.forEach((card) => {
      const { classList } = buttons[card.id];
      classList.toggle("on", on.has(card.id));
      classList.toggle("near", near.has(card.id));
      classList.toggle("chosen", card.id === chosen);
    });
    for (const { link, path } of places) {
      const isStrong = strong.has(`${link.from} ${link.to}`);
      path.classList.toggle("on", isStrong);
      path.classList.toggle("near", !isStrong && (link.from === id || link.to === id));
      if (isStrong) lines.append(path);
    }
  }

  function join() {
    const origin = graph.getBoundingClientRect();
    const box = (id) => {
      const { left, top, width, height } = buttons[id].getBoundingClientRect();
      return { x: left - origin.left + width / 2, top: top - origin.top, bottom: top - origin.top + height, half: width / 2 };
    };
    lines.setAttribute("width", graph.clientWidth);
    lines.setAttribute("height", graph.clientHeight);
    lines.classList.toggle("many", links.filter(({ to }) => of(to).size !== null).length > MANY);
    places = links.map((link) => {
      const path = document.createElementNS(lines.namespaceURI, "path");
      path.setAttribute("class", of(link.to).size === null ? `${link.via} away` : link.via);
      const start = box(link.from), end = box(link.to);
      const bend = Math.max(14, Math.min(70, (end.top - start.bottom) / 2));
      path.setAttribute("d", end.top >= start.bottom
        ? `M${start.x},${start.bottom} C${start.x},${start.bottom + bend} ${end.x},${end.top - bend} ${end.x},${end.top}`
        : `M${start.x},${start.top} C${start.x},${start.top - 26} ${end.x},${end.bottom + 26} ${end.x},${end.bottom}`);
      return { link, path };
    });
    lines.replaceChildren(...places.map(({ path }) => path));
    light(chosen);
    if (chosen === null) explain();
  }

  function step(id, text) {
    const button = element("button", "step", text ?? of(id).title);
    button.type = "button";
    button.addEventListener("click", () => { choose(id); buttons[id].focus(); });
    return button;
  }

  function part(name, ...children) {
    return children.length ? [element("h4", "", name), ...children] : [];
  }

  function listed(name, found, end) {
    const items = found.map((link) => {
      const item = element("li");
      const card = of(link[end]);
      item.append(step(card.id));
      if (link.via in VIAS) item.append(" ", element("small", "", VIAS[link.via]));
      return item;
    });
    const list = element("ul");
    list.append(...items);
    return items.length ? part(name, list) : [];
  }

  function explain() {
    if (chosen === null) {
      const more = lines.classList.contains("many") ? " Lines are drawn for the one that you point at, they are too many together." : "";
      why.replaceChildren(element("p", "quiet", `Choose a library: what is on the way down to it is marked, and told here.${more}`));
      return;
    }
    const card = of(chosen);
    const close = element("button", "close", "×");
    close.type = "button";
    close.setAttribute("aria-label", "Let go");
    close.addEventListener("click", () => { const last = chosen; choose(null); buttons[last].focus(); });
    const parts = [close, element("h3", "", card.title), element("p", "quiet", said(card)[1])];
    if (card.files.length === 1) parts.push(element("p", "path", card.files[0].path), facts(card.files[0]));
    for (const chain of card.chains) {
      const list = element("ol", "chain");
      list.append(...chain.map((id) => {
        const item = element("li");
        item.append(id === card.id ? element("b", "", card.title) : step(id));
        return item;
      }));
      parts.push(...(chain === card.chains[0] ? part("Why it is here", list) : [list]));
    }
    parts.push(...listed("Loads", below.get(chosen).filter(({ via }) => via !== "opens"), "to"));
    parts.push(...listed("May open by name", below.get(chosen).filter(({ via }) => via === "opens"), "to"));
    parts.push(...listed("Loaded by", above.get(chosen).filter(({ via }) => via !== "opens"), "from"));
    if (card.files.length > 1) {
      const list = element("ul");
      list.append(...card.files.map((file) => {
        const item = element("li", "", `${file.name} `);
        item.append(element("small", "", sized(file.size)));
        return item;
      }));
      parts.push(...part("All that load the same", list));
    }
    why.replaceChildren(...parts);
    why.scrollTop = 0;
  }

  function facts(file) {
    const list = element("dl");
    for (const [name, text] of Object.entries(file.facts)) list.append(element("dt", "", name), element("dd", "", text));
    return list;
  }

  function choose(id) {
    chosen = id;
    for (const { id: each } of cards) buttons[each].setAttribute("aria-pressed", String(each === id));
    explain();
    light(id);
    // on a narrow screen what is told of it lies over the lower half
    if (id !== null) buttons[id].scrollIntoView({ block: "nearest" });
  }

  graph.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && chosen !== null) {
      choose(null);
      return;
    }
    const centres = buttons.map((button, id) => {
      const { left, top, width, height } = button.getBoundingClientRect();
      return { id, x: left + width / 2, y: top + height / 2 };
    });
    const here = centres.find(({ id }) => buttons[id] === document.activeElement);
    const next = here && nearest(centres, here, event);
    if (next) buttons[next.id].focus();
  });

  for (const row of rows) {
    const line = element("div", "row");
    const several = element("div", "cards");
    several.append(...row.cards.map((id) => drawn(of(id))));
    line.append(element("h3", "", row.label), several);
    graph.append(line);
  }
  if (cards.length) {
    graph.classList.toggle("dense", cards.length > 60);
    buttons.forEach((button, place) => { button.tabIndex = place ? -1 : 0; });
    document.getElementById("linkage").hidden = document.getElementById("links").hidden = false;
    for (const item of document.querySelectorAll("#links li")) {
      const { look, via } = item.dataset;
      item.hidden = !cards.some((card) => look?.includes(card.look)) && !links.some((link) => via?.includes(link.via));
    }
    table.open = false;
    addEventListener("beforeprint", () => { table.open = true; });
    // a link may name a file: page.html#demo.libs/libdemo.so
    const asked = decodeURIComponent(location.hash.slice(1));
    choose(cards.find(({ files }) => files.some(({ path }) => path === asked))?.id ?? null);
    // at once, too: a browser that draws nothing, for a dump or a print, has no size to tell of
    join();
    new ResizeObserver(join).observe(graph);
  }
})();
