/* Elements and their text. Nothing here reads markup: a string becomes a text node, whoever wrote it. */

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; null and false are left out, of both. */
export function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** The same of a drawing. */
export function shape(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

/** A table with a caption; each row's first cell is its heading. */
export function table(caption, headings, rows) {
  const head = headings.map((heading) => element("th", { scope: "col" }, heading));
  const body = rows.map(([first, ...others]) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, first),
      ...others.map((cell) => element("td", {}, cell)),
    ),
  );
  return element(
    "div",
    { class: "scrolled", role: "region", "aria-label": caption, tabindex: "0" },
    element(
      "table",
      {},
      element("caption", {}, caption),
      element("thead", {}, element("tr", {}, ...head)),
      element("tbody", {}, ...body),
    ),
  );
}

/** Names and what they are. */
export function facts(pairs) {
  const items = pairs.map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, value)),
  );
  return element("dl", { class: "facts" }, ...items);
}

export function byId(id) {
  return document.getElementById(id);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== false));
  return node;
}
